// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// pagesShown are the pages, each with what is true when it shows what it has to.
var pagesShown = map[string]string{
	"#/":                   `document.querySelectorAll(".tiles > li").length > 5`,
	"#/policies":           bodyRows + " === 4",
	"#/tables":             bodyRows + " > 50",
	"#/table/egress-rules": bodyRows + " === 7",
	"#/graph":              `document.querySelectorAll("a.node").length > 50 && ` + bodyRows + " > 50",
	"#/policy/CiliumEgressGatewayPolicy/partner": `document.querySelectorAll(".chain li").length === 11 && ` + bodyRows + " > 100",
	"#/policy/NetworkPolicy/shop/web":            `document.querySelectorAll(".chain li").length === 13 && ` + bodyRows + " > 10",
	"#/connections":                              `document.querySelectorAll(".plots svg").length === 3`,
}

// testKeyboard does without a mouse what one does with it.
func (p *page) testKeyboard(b *inBrowser) {
	const active = "document.activeElement.id || document.activeElement.textContent || document.activeElement.getAttribute('aria-label')"
	press := func(keys string) { b.do(chromedp.KeyEvent(keys)) }
	b.open("#/table/egress-rules")
	await(b, "7 rows", shown)
	var order []string
	for range 9 {
		press(kb.Tab)
		order = append(order, eval[string](b, active))
		require.NotEqual(b.t, "none", eval[string](b, "getComputedStyle(document.activeElement).outlineStyle"), "the focus is seen")
	}
	require.Equal(b.t, []string{"skip", "Overview", "Policies", "Tables", "Graph", "Connections", "theme", "All tables", "as JSON"}, order)

	b.do(chromedp.Focus("#skip", chromedp.ByQuery))
	press(kb.Enter)
	await(b, "main", "document.activeElement.id")
	require.Contains(b.t, eval[string](b, "location.hash"), "#/table/egress-rules")
	// As of one key that is pressed: KeyEvent would send the character in any case.
	b.do(input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/"))
	await(b, "Search in egress-rules", "document.activeElement.getAttribute('aria-label')")
	press("excluded")
	await(b, "2 of 7 rows", shown)

	// From the search over the heads of the columns to the rows, of which one is in the order of tabs.
	for eval[string](b, "document.activeElement.className") != "open" {
		press(kb.Tab)
		require.NotEqual(b.t, "BODY", eval[string](b, "document.activeElement.tagName"), "the rows are reached")
	}
	first := eval[string](b, "document.activeElement.closest('tr').textContent")
	press(kb.ArrowDown)
	require.NotEqual(b.t, first, eval[string](b, "document.activeElement.closest('tr').textContent"))
	press(kb.Enter)
	await(b, "true", "document.activeElement.getAttribute('aria-expanded')")
	await(b, true, "document.activeElement.closest('tr').nextSibling.matches('.details')")
	press(kb.Enter)
	await(b, "false", "document.activeElement.getAttribute('aria-expanded')")

	// A link leads to another page, and the focus goes there.
	b.do(chromedp.Focus("#pages li:nth-child(3) a", chromedp.ByQuery))
	press(kb.Enter)
	await(b, "Tables", heading)
	await(b, "main", "document.activeElement.id")
	await(b, "page", `document.querySelector("#pages li:nth-child(3) a").ariaCurrent`)
}

// named are roles that need a name.
var named = []string{
	"button", "link", "textbox", "searchbox", "checkbox", "combobox", "img", "image", "graphics-document",
	"region", "navigation", "table", "columnheader", "heading",
}

// testAccessibility looks at the pages as a screen reader does.
func (p *page) testAccessibility(b *inBrowser) {
	b.replacePasses()
	defer b.restore(passes)
	for hash, complete := range pagesShown {
		b.open(hash)
		await(b, true, complete)
		roles := map[string]int{}
		for _, n := range b.accessible() {
			role := n.Role.Value
			roles[role]++
			if slices.Contains(named, role) {
				require.NotEmpty(b.t, n.Name.Value, "%s: a %s without a name", hash, role)
			}
		}
		for _, role := range []string{"main", "banner", "navigation", "status"} {
			require.NotZero(b.t, roles[role], "%s: %s", hash, role)
		}
		require.NotZero(b.t, roles["button"], hash)
		require.NotZero(b.t, roles["link"], hash)
		if eval[int](b, `document.querySelectorAll("table:not([hidden] table)").length`) > 0 {
			require.NotZero(b.t, roles["columnheader"], hash)
			require.NotZero(b.t, roles["cell"]+roles["gridcell"], hash)
		}
		require.Equal(b.t, 1, eval[int](b, `document.querySelectorAll("h1").length`), hash)
		require.Equal(b.t, "en", eval[string](b, `document.documentElement.lang`))
		require.Empty(b.t, eval[[]string](b, `[...document.querySelectorAll("[id]")].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)`), "%s: an id twice", hash)
		for _, scheme := range []string{"light", "dark"} {
			b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			require.Empty(b.t, eval[[]string](b, faint), "%s, %s: text that is hard to read", hash, scheme)
		}
	}
	b.do(emulation.SetEmulatedMedia())

	// Who wants no motion gets none.
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}}))
	b.open("#/table/egress-rules")
	await(b, "7 rows", shown)
	b.do(chromedp.Evaluate(`document.querySelector("tbody tr").classList.add("changed")`, nil))
	require.Equal(b.t, "none", eval[string](b, `getComputedStyle(document.querySelector("tr.changed > td")).animationName`))
	b.do(emulation.SetEmulatedMedia())
}

// accessibleNode is what a screen reader is told of an element. The generated type knows
// fewer properties than the browser has.
type accessibleNode struct {
	Ignored bool            `json:"ignored"`
	Role    accessibleValue `json:"role"`
	Name    accessibleValue `json:"name"`
}

type accessibleValue struct {
	Value string `json:"value"`
}

// accessible returns what a screen reader is told of the page.
func (b *inBrowser) accessible() []accessibleNode {
	b.t.Helper()
	var tree struct {
		Nodes []accessibleNode `json:"nodes"`
	}
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		return cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree)
	}))
	require.NotEmpty(b.t, tree.Nodes)
	return slices.DeleteFunc(tree.Nodes, func(n accessibleNode) bool { return n.Ignored })
}

// faint is an expression: the texts whose contrast with what is behind them is less than
// 4.5, by the formula of WCAG 2.
var faint = fmt.Sprintf(`(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const [r, g, b] = color.map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = rgba(getComputedStyle(element).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const found = new Set();
  for (const element of document.querySelectorAll("body *:not(svg *):not(.unseen):not(:disabled)")) {
    if (![...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim() !== "")) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < %v) found.add(element.tagName + "." + element.className + " " + contrast.toFixed(2));
  }
  return [...found];
})()`, 4.5)
