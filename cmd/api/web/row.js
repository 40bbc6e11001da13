// SPDX-License-Identifier: Apache-2.0

// One row of a table, and under it, if they are asked for, all of its cells in full.

import { h, setAttribute } from "./dom.js";
import { isLabel, meaning } from "./cells.js";

// RowView shows a row of a grid.
export class RowView {
  constructor(grid, key) {
    this.grid = grid;
    this.key = key;
    this.button = h("button", { type: "button", class: "open", "aria-expanded": "false", onclick: () => this.toggle() });
    this.cells = grid.columns.map(() => h("td"));
    this.element = h("tr", {}, h("td", { class: "more" }, this.button), this.cells);
  }

  elements() {
    return this.details ? [this.element, this.details] : [this.element];
  }

  // show makes the elements say what a row does, if they do not.
  show(row) {
    if (this.row === row) return;
    const { columns, options } = this.grid;
    const link = options.link?.(row.cells) ?? { column: "", href: "" };
    row.cells.forEach((text, i) => {
      if (this.row?.cells[i] === text) return;
      const cell = this.cells[i];
      const href = columns[i] === link.column ? link.href : "";
      cell.replaceChildren(href ? h("a", { href }, text) : labeled(columns[i], text));
      setAttribute(cell, "class", meaning(columns[i], text) || null);
    });
    setAttribute(this.element, "class", row.condition || null);
    setAttribute(this.button, "aria-label", "Details of " + (row.cells[columns.indexOf(link.column)] ?? row.cells[0]));
    if (row.changed) this.flash();
    this.row = row;
    if (this.details) this.fill();
  }

  flash() {
    this.element.classList.remove("changed");
    void this.element.offsetWidth; // so that the animation begins anew
    this.element.classList.add("changed");
  }

  toggle() {
    if (this.details) {
      this.details.remove();
      this.details = null;
    } else {
      this.details = h("tr", { class: "details" }, h("td", { colspan: this.grid.columns.length + 1 }));
      this.fill();
      this.element.after(this.details);
    }
    setAttribute(this.button, "aria-expanded", String(this.details !== null));
  }

  fill() {
    const list = this.grid.columns.map((column, i) => {
      const text = this.row.cells[i];
      return h("div", {}, h("dt", {}, column), h("dd", { class: meaning(column, text) || null }, text));
    });
    this.details.firstChild.replaceChildren(h("dl", {}, list));
  }
}

// labeled is the text of a cell: a label if its column has words that stand for
// themselves, so that they are told apart by more than their color.
export function labeled(column, text) {
  return isLabel(column) && text !== "" && text !== "-" ? h("span", { class: "label" }, text) : document.createTextNode(text);
}
