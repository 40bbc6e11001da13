// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/testdata/demo"
)

// page is the page of an agent that reads the demo's manifests, of which the test has
// a copy.
type page struct {
	*agent
	*browser
	manifests string
}

func startPage(t *testing.T) *page {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, demo.FS))
	a := newAgentOf(t, "--source=files", "--manifests="+dir, "--bpf=memory")
	b := startBrowser(t, a)
	a.startReady()
	return &page{a, b, dir}
}

// rewrite changes a manifest.
func (p *page) rewrite(t testing.TB, name, old, new string) {
	path := filepath.Join(p.manifests, name)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), old, new)), 0o600))
}

const policyManifest = "5-egress-policies.yaml"

// Expressions about the table that is shown.
const (
	bodyRows = `document.querySelectorAll("tbody > tr:not(.details)").length`
	heading  = `document.querySelector("h1").textContent`
	shown    = `document.querySelector(".shown")?.textContent`
)

// column is an expression: the cells of a column, from 1 on, with commas.
func column(n int) string {
	return fmt.Sprintf(`[...document.querySelectorAll("tbody > tr:not(.details) > td:nth-child(%d)")].map((td) => td.textContent).join()`, n+1)
}

// TestPage looks at the page of an agent in a browser.
func TestPage(t *testing.T) {
	_, err := fs.Stat(demo.FS, policyManifest)
	require.NoError(t, err)
	p := startPage(t)
	run := func(name string, test func(*inBrowser)) {
		t.Run(name, func(t *testing.T) {
			b := p.browser.within(t)
			test(b)
			b.requireNoProblems()
		})
	}
	run("what is wrong is said first", p.testOverview)
	run("tables are searched and sorted", p.testTable)
	run("changes appear", p.testLive)
	run("text stays text", p.testHostile)
	run("the graph has what the agent has", p.testGraph)
	run("the trace of a policy", p.testTrace)
	run("connections as a plot", p.testPlot)
	run("many rows", p.testManyRows)
	run("what has one cause is said once", p.testCauses)
	run("light and dark", p.testTheme)
	run("by the keyboard", p.testKeyboard)
	run("for a screen reader", p.testAccessibility)
	run("on a narrow screen", p.testNarrow)
	run("the agent goes and comes back", p.testConnection)
}

// TestPageOfHealthyNode looks at the page of an agent with which nothing is wrong.
func TestPageOfHealthyNode(t *testing.T) {
	p := startPage(t)
	p.rewrite(t, policyManifest, "198.19.0.0/33", "198.19.0.0/16")
	p.rewrite(t, policyManifest, "interface: eth1 # and the nodeSelector is missing",
		"nodeSelector: {matchLabels: {kubernetes.io/hostname: node-2}}")
	b := p.browser.within(t)
	b.open("")
	await(b, "Healthy", heading)
	await(b, 0, `document.querySelectorAll(".problems > li").length`)
	await(b, true, `document.querySelectorAll(".tiles > li").length > 5`)
	b.requireNoProblems()
}

func (p *page) testOverview(b *inBrowser) {
	b.open("")
	await(b, "Degraded: 2 problems", heading)
	await(b, "dropping", `document.querySelector("#reasons + .problems strong").textContent`) // first
	await(b, true, `document.querySelector("#reasons + .problems").textContent.includes('"198.19.0.0/33": prefix length out of range')`)
	await(b, "#/policy/CiliumEgressGatewayPolicy/partner", `document.querySelector("#policies + .problems a").getAttribute("href")`)
	await(b, "partner: drops the packets of its pods: spec.egressGateway.nodeSelector: required", `document.querySelector("#policies + .problems > li").textContent`)
	await(b, "1 with an error", `document.querySelector("[data-title='Egress policies'] .note").textContent`)
	await(b, true, `document.querySelectorAll(".tiles > li").length > 5`)
	await(b, "on "+localNode, `document.getElementById("node").textContent`)
	await(b, "Connected", `document.getElementById("connection").textContent`)
}

func (p *page) testTable(b *inBrowser) {
	b.open("#/table/egress-rules")
	await(b, "7 rows", shown)
	require.Equal(b.t, "egress-rules · Sluice", eval[string](b, "document.title"))
	require.Equal(b.t, "RulesetDestinationGatewaysPolicySelectorOverridesStatusError", eval[string](b,
		`[...document.querySelectorAll("th button")].map((th) => th.textContent).join("")`))

	b.do(chromedp.SendKeys("input[type=search]", "FINANCE 198.51", chromedp.ByQuery))
	await(b, "4 of 7 rows", shown)
	await(b, "4 of 7 rows", `document.getElementById("announcer").textContent`)
	await(b, 4, bodyRows)
	require.Contains(b.t, eval[string](b, "location.href"), "?q=FINANCE+198.51")
	b.do(chromedp.KeyEvent("a", chromedp.KeyModifiers(input.ModifierCtrl)), chromedp.KeyEvent(kb.Delete))
	await(b, "7 rows", shown)

	const third = `document.querySelectorAll("th")[2].ariaSort`
	click := func() { b.do(chromedp.Click("th:nth-child(3) button", chromedp.ByQuery)) }
	require.Equal(b.t, "none", eval[string](b, third))
	click()
	await(b, "ascending", third)
	await(b, "198.18.0.0/16,198.51.100.0/24,198.51.100.0/24,198.51.100.128/25,198.51.100.128/25,203.0.113.0/24,203.0.113.0/24", column(2))
	click()
	await(b, "descending", third)
	await(b, "203.0.113.0/24,203.0.113.0/24,198.51.100.128/25,198.51.100.128/25,198.51.100.0/24,198.51.100.0/24,198.18.0.0/16", column(2))
	click()
	await(b, "none", third)

	// What is not as it should be is marked, and found.
	b.open("#/table/egress-policies")
	await(b, "3 rows", shown)
	require.Equal(b.t, "error", eval[string](b, `document.querySelector("tbody > tr:nth-child(3)").className`))
	b.do(chromedp.Click("input[type=checkbox]", chromedp.ByQuery))
	await(b, "partner", column(1))
}

func (p *page) testLive(b *inBrowser) {
	b.open("#/table/egress-rules")
	await(b, "7 rows", shown)
	b.do(chromedp.Evaluate("window.loaded = 1", nil))
	p.rewrite(b.t, policyManifest, "198.51.100.128/25", "198.51.100.64/26")
	await(b, true, column(2)+`.includes("198.51.100.64/26")`)
	await(b, false, column(2)+`.includes("198.51.100.128/25")`)
	await(b, true, `document.querySelector("tr.changed") !== null`)
	await(b, true, `document.getElementById("announcer").textContent.endsWith("in egress-rules")`)
	p.rewrite(b.t, policyManifest, "198.51.100.64/26", "198.51.100.128/25")
	await(b, true, column(2)+`.includes("198.51.100.128/25")`)
	require.Equal(b.t, 1, eval[int](b, "window.loaded"), "the page was not loaded anew")
}

// testHostile has a policy with markup in it, which shows in its mistakes.
func (p *page) testHostile(b *inBrowser) {
	const markup = `<img src=x onerror=document.title=1>`
	p.rewrite(b.t, policyManifest, "198.19.0.0/33", `"`+markup+`"`)
	for _, hash := range []string{"#/", "#/table/egress-policies", "#/policies", "#/policy/CiliumEgressGatewayPolicy/partner"} {
		b.open(hash)
		await(b, true, fmt.Sprintf(`document.querySelector("main").textContent.includes(%q)`, markup))
		require.Zero(b.t, eval[int](b, `document.querySelectorAll("main img").length`), hash)
	}
	p.rewrite(b.t, policyManifest, `"`+markup+`"`, "198.19.0.0/33")
	b.open("#/policy/CiliumEgressGatewayPolicy/" + strings.Repeat("%3Cb%3E", 3))
	await(b, true, `document.querySelector(".verdict").textContent.includes("there is no policy CiliumEgressGatewayPolicy/<b><b><b>")`)
	b.mu.Lock()
	b.problems = nil // the browser says that the answer was 404
	b.mu.Unlock()
}

func (p *page) testGraph(b *inBrowser) {
	var g api.Graph
	p.decode("/graph", &g)
	b.open("#/graph")
	await(b, len(g.Nodes), `document.querySelectorAll("svg a.node").length`)
	require.Equal(b.t, len(g.Edges), eval[int](b, `document.querySelectorAll("svg path.edge").length`))
	for _, n := range g.Nodes {
		require.True(b.t, eval[bool](b, fmt.Sprintf(`document.querySelector("a.node[data-name='%s']").getAttribute("aria-label").startsWith("%s %s: ")`, n.Name, n.Kind, n.Name)), n.Name)
	}
	require.True(b.t, eval[bool](b, `document.querySelector("a.node[data-name=egress-policies]").matches(".error")`))
	require.Equal(b.t, "table egress-policies: 3 rows, 1 error", eval[string](b, `document.querySelector("a.node[data-name=egress-policies]").getAttribute("aria-label")`))
	// The drawing goes from left to right, and no two nodes are at one place.
	const x = `Number(document.querySelector("a.node[data-name='%s'] rect").getAttribute("x"))`
	for _, pair := range [][2]string{{"files", "endpoints"}, {"egress-policies", "egress-groups"}, {"egress-rules", "sluice_egress"}, {"sluice_egress", "map-egress"}, {"sluice_policy", "from_pod"}} {
		require.True(b.t, eval[bool](b, fmt.Sprintf(x+" < "+x, pair[0], pair[1])), pair)
	}
	require.Equal(b.t, len(g.Nodes), eval[int](b, `new Set([...document.querySelectorAll("a.node rect")].map((r) => r.getAttribute("x") + " " + r.getAttribute("y"))).size`))

	// What a node is joined with is shown when it has the focus; the list says the same.
	b.do(chromedp.Focus("a.node[data-name=sluice_egress]", chromedp.ByQuery))
	await(b, true, `document.querySelector(".about").textContent.startsWith("sluice_egress: from egress-rules; to map-egress, ")`)
	await(b, fmt.Sprint(len(g.Nodes), " rows"), shown)
	b.do(chromedp.SendKeys(
		"input[type=search]", "map sluice_egress egress-rules from_pod", chromedp.ByQuery,
	))
	await(b, "sluice_egress", column(1))
	b.do(chromedp.Focus("a.node[data-name=egress-rules]", chromedp.ByQuery), chromedp.KeyEvent(kb.Enter))
	await(b, "egress-rules", heading)
}

func (p *page) testTrace(b *inBrowser) {
	b.open("#/policies")
	await(b, "bank", `document.querySelector("tbody tr td:nth-child(2)")?.textContent`)
	b.do(chromedp.Click(`//a[text()="finance"]`))
	await(b, "finance", heading)
	await(b, "All of it is as it should be", `document.querySelector(".verdict").textContent`)
	require.Equal(b.t, "egress-policies,egress-policy-status,egress-rulesets,egress-rules,map-egress,egress-groups,egress-gateways,map-gateways,subject-routes,map-routes,pods",
		eval[string](b, `[...document.querySelectorAll(".chain .name")].map((e) => e.textContent).join()`))
	await(b, true, `/ruleset=\d+ 198\.51\.100\.128\/25/.test(document.getElementById("step-map-egress").parentElement.textContent)`)
	b.do(chromedp.Click(".chain li:nth-child(4) button", chromedp.ByQuery))
	await(b, "step-egress-rules", "document.activeElement.id")

	b.open("#/policy/CiliumEgressGatewayPolicy/partner")
	await(b, true, `document.querySelector(".verdict")?.textContent.startsWith("It drops the packets of its pods: spec.egressGateway.nodeSelector: required")`)
	require.Equal(b.t, "error", eval[string](b, `document.querySelector(".chain li").className`))
	b.open("#/policy/NetworkPolicy/shop/web")
	await(b, "network-policies,network-policy-status,compiled-policies,rulesets,selectors,selector-matches,policy-entries,map-policy,verdicts,map-verdicts,subjects,map-subjects,pods",
		`[...document.querySelectorAll(".chain .name")].map((e) => e.textContent).join()`)
}

// replacePasses has the agent tell of passes, of which it makes none without programs.
func (b *inBrowser) replacePasses() {
	text := `{"columns":["ID","Set","Map","Method","Reason","Scanned","Expired","Translations",` +
		`"Orphans","Released","Flushed","Condemned","Error","Duration","Started"]}` + "\n"
	for i := range 40 {
		text += fmt.Sprintf(`{"key":"%02x","cells":["%d","global","sluice_ct4_%s","iterator","interval","%d","%d","1","0","0","0","0","-","%d.5ms","2026-11-21T10:%02d:00Z"]}`+"\n",
			i, i, []string{"tcp", "any"}[i%2], 1000+10*i, i, i, i)
	}
	b.replace(passes, text+`{"complete":true}`+"\n")
}

const passes = "/statedb/changes/ct-gc-runs"

func (p *page) testPlot(b *inBrowser) {
	b.open("#/connections")
	await(b, "No pass has found an entry yet.", `document.querySelector(".plots")?.textContent`)
	b.replacePasses()
	defer b.restore(passes)
	b.open("#/connections")
	await(b, 3, `document.querySelectorAll(".plots svg[role=img]").length`)
	await(b, "40 rows", shown)
	require.Equal(b.t, 6, eval[int](b, `document.querySelectorAll(".plots polyline").length`))
	require.Equal(b.t, 120, eval[int](b, `document.querySelectorAll(".plots circle").length`))
	require.Equal(b.t, "0 1,000 2,000", eval[string](b, `[...document.querySelectorAll(".plots svg:first-of-type .axes")[0].querySelectorAll(".rule + text")].map((t) => t.textContent).join(" ")`))
	require.Equal(b.t, "Entries removed: 40 passes through 2 maps; at most 40 entries, last 40 entries. The table below has all numbers.",
		eval[string](b, `document.querySelectorAll(".plots svg")[1].getAttribute("aria-label")`))
	require.Equal(b.t, "39", eval[string](b, `document.querySelector("tbody td:nth-child(2)").textContent`), "the last pass comes first")
}

// testManyRows shows that a large table is a page of rows, and is still found in.
func (p *page) testManyRows(b *inBrowser) {
	const many = 50000
	var text strings.Builder
	text.WriteString(`{"columns":["Prefix","Member","Flags","Status","Error"]}` + "\n")
	for i := range many {
		fmt.Fprintf(&text, `{"key":"%08x","cells":["10.%d.%d.%d/32","%d","in-cluster, pod","Done","-"]}`+"\n", i, i>>16, i>>8&255, i&255, i%97)
	}
	text.WriteString(`{"complete":true}` + "\n")
	b.replace("/statedb/changes/ipcache", text.String())
	defer b.restore("/statedb/changes/ipcache")
	b.open("#/table/ipcache")
	await(b, "50,000 rows", shown)
	b.do(chromedp.Evaluate(`window.longest = 0; new PerformanceObserver((l) => l.getEntries().forEach((e) => { longest = Math.max(longest, e.duration); })).observe({ type: "longtask" })`, nil))
	require.Equal(b.t, 100, eval[int](b, bodyRows))
	b.do(chromedp.Click(`//button[text()="Next"]`))
	await(b, "10.0.0.100/32", `document.querySelector("tbody td:nth-child(2)").textContent`)
	b.do(
		chromedp.Click(`//th/button[text()="Member"]`),
		chromedp.Click(`//th/button[text()="Prefix"]`),
		chromedp.Click(`//th/button[text()="Prefix"]`),
	)
	await(b, "10.0.195.79/32", `document.querySelector("tbody td:nth-child(2)").textContent`)
	b.do(chromedp.SendKeys("input[type=search]", "10.0.100.7/32", chromedp.ByQuery))
	await(b, "1 of 50,000 rows", shown)
	b.t.Logf("the page was busy for %.0f ms at a stretch, at most", eval[float64](b, "longest"))
}

// testCauses has the agent wait for an API server that is not there.
func (p *page) testCauses(b *inBrowser) {
	var reasons []string
	for _, kind := range []string{"pods", "nodes", "services", "namespaces"} {
		reasons = append(reasons, fmt.Sprintf(`"sources.kubernetes.job-reflect-%s: cannot follow %s: connection refused"`, kind, kind))
	}
	b.replace("/healthz", fmt.Sprintf(`{"status":"degraded","reasons":[%s],"modules":[]}`, strings.Join(reasons, ",")))
	b.replace("/readyz", `{"ready":false,"pending":["table endpoints: waits for pods","table members: waits for derive","table bpf-maps: waits for sluice_egress"]}`)
	defer b.restore("/healthz", "/readyz")
	b.open("")
	await(b, "Degraded: 4 problems", heading)
	await(b, 1, `document.querySelectorAll("#reasons + .problems > li").length`)
	await(b, true, `document.querySelector("#reasons + .problems > li").textContent.startsWith("sources.kubernetes 4 parts, such as: sources.kubernetes.job-reflect-pods cannot follow pods: connection refused")`)
	await(b, "table endpoints: waits for pods|2 tables that follow from these",
		`[...document.querySelectorAll("#waiting + .problems > li")].map((li) => li.querySelector("summary")?.textContent ?? li.textContent).join("|")`)
}

func (p *page) testTheme(b *inBrowser) {
	system := func(scheme string) chromedp.Action {
		return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}})
	}
	const background = "getComputedStyle(document.body).backgroundColor"
	const light, dark = "rgb(246, 247, 249)", "rgb(18, 22, 28)"
	press := func() { b.do(chromedp.Click("#theme", chromedp.ByQuery)) }
	defer b.do(system(""))
	b.do(system("dark"))
	b.open("#/")
	await(b, dark, background)
	await(b, "Theme: system", `document.getElementById("theme").textContent`)
	press()
	await(b, light, background)
	b.open("#/tables")
	await(b, light, background)
	await(b, "Theme: light", `document.getElementById("theme").textContent`)
	b.do(system("light"))
	press()
	await(b, dark, background)
	press()
	await(b, light, background)
	await(b, "Theme: system", `document.getElementById("theme").textContent`)
}

// testNarrow shows that the page fits a narrow screen: what is wide scrolls by itself.
func (p *page) testNarrow(b *inBrowser) {
	defer b.do(chromedp.EmulateViewport(1400, 900))
	b.do(chromedp.EmulateViewport(360, 700))
	b.replacePasses()
	defer b.restore(passes)
	for hash, complete := range pagesShown {
		b.open(hash)
		await(b, true, complete)
		require.LessOrEqual(b.t, eval[int](b, "document.documentElement.scrollWidth"), 360, hash)
	}
}

func (p *page) testConnection(b *inBrowser) {
	b.open("#/table/egress-rules")
	await(b, "7 rows", shown)
	b.mu.Lock()
	b.offline = true
	b.mu.Unlock()
	p.kill()
	await(b, true, `document.getElementById("connection").textContent.startsWith("Not connected: the agent does not answer")`)
	require.Equal(b.t, 7, eval[int](b, bodyRows), "what was known stays to be looked at")
	p.rewrite(b.t, policyManifest, "203.0.113.0/24, 198.51.100.0/24", "198.51.100.0/24")
	p.startReady()
	await(b, "Connected", `document.getElementById("connection").textContent`)
	await(b, "6 rows", shown)
}
