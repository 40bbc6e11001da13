// SPDX-License-Identifier: Apache-2.0

// The page: what is shown at which address, the connection, and the theme.

import { announce, h, setAttribute, setText } from "./dom.js";
import { get, onConnection } from "./net.js";
import { showOverview } from "./overview.js";
import { showTable, showTables } from "./tables.js";
import { showGraph } from "./graph.js";
import { showPolicies, showTrace } from "./trace.js";
import { showConnections } from "./connections.js";

const main = document.getElementById("main");

// What an address shows: a function that fills an element until a signal aborts, with
// the rest of the address and its parameters, and returns the title.
const views = [
  ["#/table/", showTable],
  ["#/policy/", showTrace],
  ["#/policies", showPolicies],
  ["#/tables", showTables],
  ["#/graph", showGraph],
  ["#/connections", showConnections],
  ["#/", showOverview],
];

// The page of the navigation to which an address belongs.
const parents = { "#/table/": "#/tables", "#/policy/": "#/policies" };

let current = new AbortController();
let shown = "";

function route() {
  const [path, query = ""] = (location.hash || "#/").split("?");
  if (!path.startsWith("#/") || path === shown) return; // the skip link; parameters that the page set itself
  const first = shown === "";
  shown = path;
  const [prefix, view] = views.find(([start]) => path.startsWith(start));
  current.abort();
  current = new AbortController();
  const element = h("div");
  main.replaceChildren(element);
  const title = view(element, current.signal, decodeURIComponent(path.slice(prefix.length)), new URLSearchParams(query));
  document.title = title + " · Sluice";
  for (const link of document.querySelectorAll("#pages a")) {
    setAttribute(link, "aria-current", link.getAttribute("href") === (parents[prefix] ?? prefix) ? "page" : null);
  }
  if (first) return;
  main.focus();
  scrollTo(0, 0);
  announce(title);
}

addEventListener("hashchange", route);

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
  const search = main.querySelector("input[type=search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
});

const connection = document.getElementById("connection");
onConnection(({ connected, reason }) => {
  setAttribute(connection, "class", connected ? "ok" : "error");
  setText(connection, connected ? "Connected" : "Not connected: " + reason + ". What is shown may be old.");
  document.body.classList.toggle("lost", !connected);
});

// The theme is that of the system, unless another one is chosen.
const themes = ["system", "light", "dark"];
const button = document.getElementById("theme");
let theme = document.documentElement.dataset.theme ?? "system";
function setTheme(name) {
  theme = name;
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setText(button, "Theme: " + name);
}
button.addEventListener("click", () => {
  setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]);
  localStorage.setItem("theme", theme);
});
setTheme(theme);

get("version").then(({ node, version }) => {
  const text = `on ${node}`;
  setText(document.getElementById("node"), text);
  setAttribute(document.getElementById("node"), "title", version);
}, () => {}); // the connection says so

route();
