// SPDX-License-Identifier: Apache-2.0

// What is wrong, if anything, and where to look: the first page.

import { announce, arrange, count, h, setAttribute, setText } from "./dom.js";
import { get, poll } from "./net.js";
import { traceOf } from "./cells.js";
import { conditionOf, tablePath } from "./tables.js";

const mostPolicies = 12; // named
const full = 80; // percent of a map

export function showOverview(element, signal) {
  const title = h("h1", { class: "verdict" }, "Asking the agent");
  const summary = h("p", { class: "hint" });
  const reasons = section("What is wrong", "reasons", h("p", {}, h("a", { href: "#/table/health?problems=1" }, "Health of all parts")));
  const waiting = section("What is not ready", "waiting");
  const policies = section("Policies that are not as they should be", "policies");
  const tables = section("Tables with rows to look at", "stuck");
  const tiles = h("ul", { class: "tiles", "aria-label": "State of this node" });
  element.append(title, summary, reasons.element, waiting.element, policies.element, tables.element,
    h("h2", {}, "This node"), tiles);

  poll(3000, signal, async () => {
    const [health, ready, graph] = await Promise.all([
      get("healthz", signal, true), get("readyz", signal, true), get("graph", signal)]);
    const [bad, maps] = await Promise.all([wrongPolicies(graph, signal), get("tables/bpf-maps?format=json", signal)]);

    const condition = health.status !== "ok" ? "error" : ready.ready ? "ok" : "pending";
    const words = {
      error: `${health.status === "failed" ? "Failed" : "Degraded"}: ${count(reasonsOf(health).length, "problem")}`,
      pending: `Not ready yet: ${count(ready.pending?.length ?? 0, "thing")} to wait for`,
      ok: "Healthy",
    };
    if (title.textContent !== words[condition]) announce(words[condition]);
    setText(title, words[condition]);
    setAttribute(title, "class", "verdict " + condition);
    setText(summary, `${count(health.modules.length, "part")} of the agent report. Last looked at ${new Date().toLocaleTimeString("en-GB")}.`);

    reasons.show(wrong(reasonsOf(health)));
    waiting.show(unready(ready.pending ?? []));
    policies.show(bad);
    tables.show(graph.nodes.filter((n) => n.kind === "table" && n.errors + n.pending > 0 && n.name !== "health").map(stuck));
    arrange(tiles, tilesOf(health, graph, maps).map((tile) => shownTile(tiles, tile)));
  });
  return "Overview";
}

// reasonsOf returns why the agent is unhealthy: /healthz of a healthy one has no such field.
const reasonsOf = (health) => health.reasons ?? [];

// section is a heading with a list, hidden while the list is empty.
function section(title, name, below) {
  const list = h("ul", { class: "problems" });
  const element = h("section", { "aria-labelledby": name }, h("h2", { id: name }, title), list, below);
  element.hidden = true;
  const items = new Map();
  const show = (entries) => {
    element.hidden = entries.length === 0;
    arrange(list, entries.map(({ key, condition, content }) => {
      if (!items.has(key)) items.set(key, h("li", { class: condition }, content));
      return items.get(key);
    }));
  };
  return { element, show };
}

const alike = 3; // reasons of one module, and more, are shown as one

// wrong returns what /healthz says: first the part of the agent. What many jobs of a
// module say, which often has one cause, is one entry.
function wrong(reasons) {
  const modules = new Map();
  for (const text of reasons) {
    const module = text.slice(0, text.indexOf(": ")).split(".job-")[0];
    modules.set(module, [...(modules.get(module) ?? []), text]);
  }
  return [...modules].flatMap(([module, texts]) => {
    if (texts.length <= alike) return texts.map((text) => ({ key: text, condition: "error", content: told(text) }));
    return [{ key: texts.join(), condition: "error",
      content: [h("strong", {}, module), ` ${count(texts.length, "part")}, such as: `, ...told(texts[0]), more("All of them", texts.map(told))] }];
  });
}

function told(text) {
  const at = text.indexOf(": ");
  return [h("strong", {}, text.slice(0, at)), " ", text.slice(at + 2)];
}

// unready returns what /readyz waits for: that which follows from the rest is put away.
function unready(pending) {
  const derived = /: waits for (derive$|sluice_)/;
  const first = pending.filter((text) => !derived.test(text));
  const entries = (first.length ? first : pending).map((text) => ({ key: text, condition: "pending", content: [text] }));
  const rest = first.length ? pending.filter((text) => derived.test(text)) : [];
  if (rest.length) entries.push({ key: rest.join(), condition: "pending", content: [more(`${count(rest.length, "table")} that follow from these`, rest)] });
  return entries;
}

function more(summary, entries) {
  return h("details", {}, h("summary", {}, summary), h("ul", {}, entries.map((entry) => h("li", {}, entry))));
}

function stuck({ name, errors, pending }) {
  const text = [errors && count(errors, "row") + " with an error", pending && count(pending, "row") + " pending"].filter(Boolean).join(", ");
  return { key: name + text, condition: errors ? "error" : "pending", content: [h("a", { href: tablePath(name, true) }, name), ": " + text] };
}

// wrongPolicies asks for policies only if some are not as they should be.
async function wrongPolicies(graph, signal) {
  const names = ["egress-policy-status", "network-policy-status"]
    .filter((name) => graph.nodes.some((n) => n.name === name && conditionOf(n)));
  const entries = [];
  for (const name of names) {
    const { columns, rows } = await get(`tables/${name}?format=json`, signal);
    const wrong = rows.map((cells) => ({ cells, problem: problemOf(columns, cells) })).filter(({ problem }) => problem);
    wrong.sort((a, b) => dropsFirst(a.problem) - dropsFirst(b.problem));
    for (const { cells, problem } of wrong.slice(0, mostPolicies)) {
      const { column, href } = traceOf(name, columns, cells);
      const policy = cells[columns.indexOf(column)];
      entries.push({ key: name + policy + problem.text, condition: problem.condition,
        content: [h("a", { href }, policy), ": " + problem.text] });
    }
    if (wrong.length > mostPolicies) {
      entries.push({ key: name + wrong.length, condition: "error",
        content: [h("a", { href: tablePath(name, true) }, `${wrong.length - mostPolicies} more`)] });
    }
  }
  return entries;
}

const dropsFirst = ({ text }) => (text.startsWith("drops ") ? 0 : 1);

function problemOf(columns, cells) {
  const cell = (column) => cells[columns.indexOf(column)];
  const state = cell("State");
  if ((cell("Drops") ?? "-") !== "-") return { condition: "error", text: "drops the packets of its pods: " + cell("Drops") };
  if ((cell("TooLarge") ?? "-") !== "-") return { condition: "error", text: "drops the packets of its pods: " + cell("TooLarge") };
  if (cell("Errors") !== "-") return { condition: "error", text: cell("Errors") };
  if (cell("Failed") !== "0") return { condition: "error", text: `the kernel refused ${cell("Failed")} of its entries` };
  if ((cell("Unsupported") ?? "-") !== "-") return { condition: "error", text: "not supported: " + cell("Unsupported") };
  const [done, all] = cell("Programmed").split("/");
  if (done !== all || state === "pending") return { condition: "pending", text: `${done} of ${all} entries are in the kernel` };
  return null;
}

function tilesOf(health, graph, maps) {
  const node = (name) => graph.nodes.find((n) => n.name === name) ?? { rows: 0, errors: 0, pending: 0, initialized: true };
  const rows = (name, title, href = tablePath(name)) =>
    ({ title, href, value: node(name).rows.toLocaleString("en"), condition: conditionOf(node(name)), note: noteOf(node(name)) });
  const pressure = maps.rows.map((cells) => ({ name: cells[0], percent: parseFloat(cells[maps.columns.indexOf("Pressure")]), max: cells[maps.columns.indexOf("MaxEntries")] }))
    .filter(({ max }) => max !== "1").reduce((a, b) => (b.percent > a.percent ? b : a), { name: "-", percent: 0 });
  const inKernel = graph.nodes.filter((n) => n.kind === "map");
  const sum = (field) => inKernel.reduce((total, n) => total + n[field], 0);
  const wrong = health.modules.filter((m) => m.level === "Degraded").length;
  return [
    { title: "Parts of the agent", href: "#/table/health", value: String(health.modules.length), condition: wrong ? "error" : "", note: wrong ? `${wrong} degraded` : "all well" },
    rows("egress-policy-status", "Egress policies", "#/policies"),
    rows("network-policy-status", "Network policies", "#/policies"),
    rows("local-endpoints", "Addresses of pods here"),
    rows("nodes", "Nodes"),
    { title: "Entries in the kernel", href: "#/table/bpf-maps", value: sum("rows").toLocaleString("en"),
      condition: sum("errors") ? "error" : sum("pending") ? "pending" : "", note: noteOf({ errors: sum("errors"), pending: sum("pending"), initialized: true }) },
    { title: "Fullest map", href: "#/table/bpf-maps", value: pressure.percent.toFixed(1) + "%", condition: pressure.percent >= full ? "error" : "", note: pressure.name },
    rows("attachments", "Programs at devices"),
    rows("object-sources", "Sources of objects"),
    { ...rows("drops", "Drops, by pod and reason"), note: "since the start of the agent" },
  ];
}

function noteOf({ errors, pending, initialized }) {
  if (errors) return `${errors.toLocaleString("en")} with an error`;
  if (pending) return `${pending.toLocaleString("en")} pending`;
  return initialized ? "all well" : "not read yet";
}

// shownTile returns the element of a tile, the one that is there if there is one.
function shownTile(tiles, { title, href, value, condition, note }) {
  let tile = [...tiles.children].find((li) => li.dataset.title === title);
  if (!tile) tile = h("li", { "data-title": title }, h("a", { href }, h("span", { class: "name" }, title), h("span", { class: "value" }), h("span", { class: "note" })));
  setAttribute(tile, "class", condition || null);
  setText(tile.querySelector(".value"), value);
  setText(tile.querySelector(".note"), note);
  return tile;
}
