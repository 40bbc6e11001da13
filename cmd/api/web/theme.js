// SPDX-License-Identifier: Apache-2.0

// The theme that was chosen last, before anything is drawn: no module, which would be late.
{
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
