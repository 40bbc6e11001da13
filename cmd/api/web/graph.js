// SPDX-License-Identifier: Apache-2.0

// How data flows from the sources through the tables to the maps and the programs,
// drawn, and as a list.

import { count, h, s, setAttribute, setText } from "./dom.js";
import { get, poll } from "./net.js";
import { arrangeGraph } from "./layout.js";
import { Grid } from "./grid.js";
import { conditionOf, tablePath } from "./tables.js";

const box = { width: 172, height: 38 };
const gap = { x: 44, y: 10 };
const margin = 12;

export function showGraph(element, signal) {
  const drawing = h("div", { class: "drawing", role: "region", "aria-label": "Drawing of the data flow", tabindex: "0" });
  const about = h("p", { class: "hint about" }, "Go over a node, or to it by the keyboard, to see what it comes from and what comes of it.");
  const fit = h("input", { type: "checkbox", onchange: () => drawing.classList.toggle("fit", fit.checked) });
  const list = new Grid({ label: "nodes of the graph", link: (cells) => ({ column: "Node", href: hrefs.get(cells[0]) ?? "" }) });
  list.setColumns(["Node", "Kind", "Rows", "Pending", "Failed", "From", "To", "Waits for"]);
  const hrefs = new Map();
  element.append(h("h1", {}, "How data flows"),
    h("p", { class: "hint" }, "Sources, tables, maps, programs: from left to right. Dashed edges lead back: what the kernel has decides what may come next."),
    h("div", { class: "tools" }, legend(), h("label", {}, fit, " Fit the width")),
    h("button", { type: "button", class: "reached", onclick: () => list.search.focus() }, "Skip the drawing"), drawing, about, h("h2", {}, "The same as a list"), list.element);

  let picture = null;
  poll(3000, signal, async () => {
    const graph = await get("graph", signal);
    if (!picture || !picture.draws(graph)) {
      picture = new Picture(graph, about);
      drawing.replaceChildren(picture.svg);
    }
    picture.update(graph.nodes);
    for (const node of graph.nodes) hrefs.set(node.name, node.table ? tablePath(node.table) : "");
    list.replace(graph.nodes.map((node, i) => ({
      key: String(i).padStart(4, "0"),
      cells: [node.name, node.kind, String(node.rows), String(node.pending), String(node.errors), picture.from(node.name).join(", ") || "-",
        picture.to(node.name).join(", ") || "-", node.waits?.join(", ") || "-"],
      condition: conditionOf(node),
    })));
  });
  return "Graph";
}

function legend() {
  return h("ul", { class: "legend", "aria-label": "Legend" },
    [["", "as it should be"], ["pending", "pending"], ["error", "with errors"]].map(([condition, text]) => h("li", { class: condition }, text)));
}

// Picture draws a graph of which only the numbers change.
class Picture {
  constructor({ nodes, edges }, about) {
    this.edges = edges;
    this.names = nodes.map((node) => node.name).join();
    this.about = about;
    this.joins = edges.length;
    this.place(arrangeGraph(nodes, edges));
    this.lines = edges.map((edge) => this.line(edge));
    this.shapes = new Map(nodes.map((node) => [node.name, this.shape(node)]));
    this.svg = s("svg", { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height, role: "group",
      "aria-label": `Graph of ${count(nodes.length, "node")} and ${count(edges.length, "edge")}; the list below says the same` },
    s("g", { "aria-hidden": "true" }, this.lines), ...[...this.shapes.values()].map(({ link }) => link));
  }

  draws({ nodes, edges }) {
    return this.joins === edges.length && this.names === nodes.map((node) => node.name).join();
  }

  place(places) {
    this.at = new Map();
    this.width = this.height = 0;
    for (const [name, { column, row }] of places) {
      const x = margin + column * (box.width + gap.x);
      const y = margin + row * (box.height + gap.y);
      this.at.set(name, { x, y });
      this.width = Math.max(this.width, x + box.width + margin);
      this.height = Math.max(this.height, y + box.height + margin);
    }
  }

  line({ from, to }) {
    const a = this.at.get(from);
    const b = this.at.get(to);
    const x1 = a.x + box.width;
    const y1 = a.y + box.height / 2;
    const y2 = b.y + box.height / 2;
    const bend = Math.max(gap.x, Math.abs(b.x - x1) / 2);
    return s("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${b.x - bend} ${y2} ${b.x} ${y2}`, class: b.x <= a.x ? "edge back" : "edge" });
  }

  shape({ name, kind, table }) {
    const { x, y } = this.at.get(name);
    const numbers = s("text", { x: x + 10, y: y + 30, class: "numbers" });
    const link = s("a", { href: table ? tablePath(table) : "#/tables", class: "node", "data-name": name,
      onfocus: () => this.mark(name), onblur: () => this.mark(null), onmouseenter: () => this.mark(name), onmouseleave: () => this.mark(null) },
    s("rect", { x, y, width: box.width, height: box.height, rx: kind === "map" ? 0 : kind === "source" ? box.height / 2 : 6 }),
    s("text", { x: x + 10, y: y + 16 }, name), numbers);
    return { link, numbers };
  }

  from(name) {
    return [...new Set(this.edges.filter((edge) => edge.to === name).map((edge) => edge.from))];
  }

  to(name) {
    return [...new Set(this.edges.filter((edge) => edge.from === name).map((edge) => edge.to))];
  }

  // mark shows what a node is joined with, and nothing else, or all for null.
  mark(name) {
    this.svg.classList.toggle("marked", name !== null);
    const near = new Set([name, ...this.from(name), ...this.to(name)]);
    for (const [other, { link }] of this.shapes) link.classList.toggle("near", near.has(other));
    this.edges.forEach((edge, i) => this.lines[i].classList.toggle("near", edge.from === name || edge.to === name));
    if (name) {
      setText(this.about, `${name}: from ${this.from(name).join(", ") || "nothing in the agent"}; to ${this.to(name).join(", ") || "nothing in the agent"}.`);
    }
  }

  update(nodes) {
    for (const node of nodes) {
      const { link, numbers } = this.shapes.get(node.name);
      const parts = node.errors && !node.initialized ? [] : [count(node.rows, node.kind === "map" ? "entry" : node.kind === "program" ? "device" : "row", node.kind === "map" ? "entries" : undefined)];
      if (node.errors) parts.push(count(node.errors, "error"));
      if (node.pending) parts.push(`${node.pending.toLocaleString("en")} pending`);
      if (!node.initialized) parts.push("incomplete");
      const text = parts.join(", ");
      setText(numbers, text);
      setAttribute(link, "class", `node ${node.kind} ${conditionOf(node)}${link.classList.contains("near") ? " near" : ""}${node.rows ? "" : " void"}`);
      setAttribute(link, "aria-label", `${node.kind} ${node.name}: ${text}`);
    }
  }
}
