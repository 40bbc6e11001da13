// SPDX-License-Identifier: Apache-2.0

// The list of all tables, and one table as it changes.

import { announce, count, h, setText } from "./dom.js";
import { follow, get, poll } from "./net.js";
import { traceOf } from "./cells.js";
import { Grid } from "./grid.js";

// tablePath returns where a table is shown.
export function tablePath(name, problemsOnly = false) {
  return "#/table/" + encodeURIComponent(name) + (problemsOnly ? "?problems=1" : "");
}

// conditionOf returns how a node of the graph is doing.
export function conditionOf(node) {
  if (node.errors > 0) return "error";
  return node.pending > 0 || !node.initialized ? "pending" : "";
}

export function showTables(element, signal) {
  const grid = new Grid({ label: "tables", link: (cells) => ({ column: "Table", href: tablePath(cells[0]) }) });
  grid.setColumns(["Table", "Rows", "Pending", "Failed", "From", "Waits for"]);
  element.append(h("h1", {}, "Tables"),
    h("p", { class: "hint" }, "Everything that the agent knows, derives and wants in the kernel. Failed counts rows with an error."), grid.element);
  poll(3000, signal, async () => {
    const graph = await get("graph", signal);
    const from = new Map();
    for (const edge of graph.edges) from.set(edge.to, [...(from.get(edge.to) ?? []), edge.from]);
    grid.replace(graph.nodes.filter((node) => node.kind === "table").map((node) => ({
      key: node.name,
      cells: [node.name, String(node.rows), String(node.pending), String(node.errors),
        [...new Set(from.get(node.name) ?? [])].join(", ") || "-", node.waits?.join(", ") || "-"],
      condition: conditionOf(node),
    })));
  });
  return "Tables";
}

const quiet = 5000; // ms between two sentences about changes

export function showTable(element, signal, name, parameters) {
  const grid = new Grid({
    label: name,
    link: (cells) => traceOf(name, grid.columns, cells),
    filtered: (text, problemsOnly) => {
      const query = new URLSearchParams();
      if (text) query.set("q", text);
      if (problemsOnly) query.set("problems", "1");
      history.replaceState(null, "", tablePath(name) + (query.size ? "?" + query : ""));
    },
  });
  const message = h("p", { class: "message", role: "alert" });
  element.append(h("h1", {}, name), h("p", { class: "hint" }, h("a", { href: "#/tables" }, "All tables"), " · ",
    h("a", { href: `tables/${encodeURIComponent(name)}?format=json` }, "as JSON"), " · press / to search"), message, grid.element);
  grid.filter(parameters.get("q") ?? "", parameters.get("problems") === "1");

  let changes = 0;
  const say = setInterval(() => {
    if (changes > 0) announce(`${count(changes, "change")} in ${name}`);
    changes = 0;
  }, quiet);
  signal.addEventListener("abort", () => clearInterval(say));

  followTable(name, signal, grid, {
    changed: (n) => { changes += n; },
    failed: (err) => setText(message, err.message),
    opened: () => setText(message, ""),
  });
  return name;
}

// followTable keeps a grid as a table is.
export function followTable(name, signal, grid, { changed = () => {}, failed = () => {}, opened = () => {} } = {}) {
  let seen = null; // keys, until all rows that there are at first have come
  follow(`statedb/changes/${encodeURIComponent(name)}?cells=true`, signal, {
    opened,
    failed,
    lines: (batch) => {
      for (const line of batch) {
        if (line.columns) {
          seen = new Set();
          if (grid.columns.join() !== line.columns.join()) grid.setColumns(line.columns);
        } else if (line.complete) {
          for (const key of grid.rows.keys()) if (!seen.has(key)) grid.remove(key);
          seen = null;
          grid.complete = true;
        } else if (line.deleted) {
          grid.remove(line.key);
          changed(1);
        } else if (line.key !== undefined) {
          seen?.add(line.key);
          take(grid, line, seen === null);
          if (seen === null) changed(1);
        }
      }
      grid.refresh();
    },
  });
}

function take(grid, { key, cells, condition = "" }, changed) {
  const old = grid.rows.get(key);
  if (old && old.condition === condition && old.cells.length === cells.length && old.cells.every((cell, i) => cell === cells[i])) return;
  grid.put({ key, cells, condition, changed });
}
