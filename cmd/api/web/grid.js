// SPDX-License-Identifier: Apache-2.0

// A table to look at: searched, sorted, a page of rows at a time, so that it does not
// matter how many there are. Rows may change at any time; what is shown follows once
// a frame at most, and less often where that takes long.

import { announce, arrange, count, h, setAttribute, setText } from "./dom.js";
import { compare, sortValue } from "./cells.js";
import { RowView } from "./row.js";

const pageSize = 100;
const share = 4; // of the time that is left to others

// Grid shows rows: { key, cells, condition, changed }. Of options, label is what the
// table is called; link(cells) says where a row leads, as { column, href }; order: false has the
// rows stay as they came, sort in that of a { column, descending } at first;
// small leaves out searching, for a few rows; rendered is called after all that changed
// is shown.
export class Grid {
  constructor(options) {
    this.options = options;
    this.rows = new Map();
    this.columns = [];
    this.sort = { column: -1, descending: false };
    this.words = [];
    this.problemsOnly = false;
    this.page = 0;
    this.complete = false;
    this.views = new Map(); // of the rows that are shown, by key
    this.ready = 0; // when there is time again
    this.build();
  }

  build() {
    this.head = h("tr");
    this.body = h("tbody");
    this.caption = h("caption", { class: "unseen" }, this.options.label);
    this.table = h("table", {}, this.caption, h("thead", {}, this.head), this.body);
    this.status = h("p", { class: "shown" });
    this.search = h("input", { type: "search", "aria-label": "Search in " + this.options.label, placeholder: "Search", autocomplete: "off", spellcheck: "false",
      oninput: () => this.filter(this.search.value, this.problemsOnly, true) });
    this.problems = h("input", { type: "checkbox", onchange: () => this.filter(this.search.value, this.problems.checked, true) });
    this.previous = h("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.next = h("button", { type: "button", onclick: () => this.turn(1) }, "Next");
    this.pages = h("span");
    this.pager = h("div", { class: "pager", role: "group", "aria-label": "Pages of " + this.options.label }, this.previous, this.pages, this.next);
    this.tools = h("div", { class: "tools" }, this.search, h("label", {}, this.problems, " Problems only"), this.status, this.pager);
    this.element = h("div", { class: "grid" }, this.options.small ? null : this.tools,
      h("div", { class: "scroll", role: "region", "aria-label": this.options.label, tabindex: "0" }, this.table));
    this.body.addEventListener("keydown", (event) => this.move(event));
  }

  // setColumns begins anew, without rows.
  setColumns(columns) {
    this.rows.clear();
    this.views.clear();
    this.body.replaceChildren();
    this.complete = false;
    if (this.columns.join() === columns.join()) return;
    this.columns = columns;
    const { column, descending } = this.options.sort ?? {};
    this.sort = { column: columns.indexOf(column), descending: Boolean(descending) };
    this.buttons = columns.map((name, i) => h("button", { type: "button", onclick: () => this.sortBy(i) }, name));
    this.head.replaceChildren(h("th", { scope: "col", class: "more" }, h("span", { class: "unseen" }, "Details")),
      ...this.buttons.map((button) => h("th", { scope: "col", "aria-sort": "none" }, button)));
  }

  // put takes in a row, new or changed; remove takes one out.
  put(row) {
    this.rows.set(row.key, row);
    this.refresh();
  }

  remove(key) {
    this.rows.delete(key);
    this.refresh();
  }

  // replace makes the rows those that are given. Rows that say the same stay.
  replace(rows) {
    const keys = new Set(rows.map((row) => row.key));
    for (const key of this.rows.keys()) if (!keys.has(key)) this.rows.delete(key);
    for (const row of rows) {
      const old = this.rows.get(row.key);
      if (old && old.condition === row.condition && old.cells.join("\n") === row.cells.join("\n")) continue;
      this.rows.set(row.key, { ...row, changed: this.complete });
    }
    this.complete = true;
    this.refresh();
  }

  // filter shows rows with all words of a text, or such with problems only. What the
  // reader did is told to options.filtered.
  filter(text, problemsOnly, byReader = false) {
    this.search.value = text;
    this.problems.checked = this.problemsOnly = problemsOnly;
    this.words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
    this.page = 0;
    this.filtered = byReader;
    if (byReader) this.options.filtered?.(text, problemsOnly);
    this.refresh();
  }

  sortBy(column) {
    const again = this.sort.column === column;
    this.sort = again && this.sort.descending ? { column: -1, descending: false } : { column, descending: again };
    this.page = 0;
    const { column: by, descending } = this.sort;
    announce(by < 0 ? "Sorted as in the agent" : `Sorted by ${this.columns[by]}, ${descending ? "descending" : "ascending"}`);
    this.refresh();
  }

  turn(by) {
    this.page += by;
    this.refresh(false);
    this.table.parentElement.scrollTop = 0;
  }

  // refresh has what is shown follow soon. Unless told otherwise it selects anew.
  refresh(anew = true) {
    if (anew) this.selected = null;
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => requestAnimationFrame(() => {
      this.scheduled = false;
      const begin = performance.now();
      this.render();
      const now = performance.now();
      this.ready = now + share * (now - begin);
    }), Math.max(0, this.ready - performance.now()));
  }

  matches(row) {
    if (this.problemsOnly && !row.condition) return false;
    if (this.words.length === 0) return true;
    row.text ??= row.cells.join("\n").toLowerCase();
    return this.words.every((word) => row.text.includes(word));
  }

  // select returns the rows that match, in order.
  select() {
    const rows = [...this.rows.values()].filter((row) => this.matches(row));
    const { column, descending } = this.sort;
    const byKey = (a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0);
    if (column < 0) return this.options.order === false ? rows : rows.sort(byKey);
    const valued = rows.map((row) => ({ row, value: sortValue(row.cells[column]) }));
    const sign = descending ? -1 : 1;
    return valued.sort((a, b) => sign * compare(a.value, b.value) || byKey(a.row, b.row)).map(({ row }) => row);
  }

  render() {
    const rows = (this.selected ??= this.select());
    const last = Math.max(0, Math.ceil(rows.length / pageSize) - 1);
    this.page = Math.min(Math.max(this.page, 0), last);
    const first = this.page * pageSize;
    const shown = rows.slice(first, first + pageSize);

    const views = new Map();
    for (const row of shown) {
      const view = this.views.get(row.key) ?? new RowView(this, row.key);
      view.show(row);
      views.set(row.key, view);
    }
    this.views = views;
    arrange(this.body, [...views.values()].flatMap((view) => view.elements()));
    this.rove();
    this.renderHead(first, rows.length, last);
    this.options.rendered?.();
  }

  renderHead(first, matching, last) {
    [...this.head.children].slice(1).forEach((cell, i) => {
      const sorted = this.sort.column === i;
      setAttribute(cell, "aria-sort", sorted ? (this.sort.descending ? "descending" : "ascending") : "none");
    });
    const all = this.rows.size;
    let text = matching === all ? count(all, "row") : `${matching.toLocaleString("en")} of ${count(all, "row")}`;
    if (!this.complete) text += ", loading";
    setText(this.status, text);
    if (this.filtered) {
      this.filtered = false;
      announce(text);
    }
    this.pager.hidden = last === 0;
    this.previous.disabled = this.page === 0;
    this.next.disabled = this.page === last;
    const range = `${(first + 1).toLocaleString("en")}–${Math.min(first + pageSize, matching).toLocaleString("en")}`;
    setText(this.pages, ` ${range} `);
    setText(this.caption, last === 0 ? this.options.label : `${this.options.label}, rows ${range} of ${matching.toLocaleString("en")}`);
    this.table.classList.toggle("empty", matching === 0);
  }

  // rove has one row in the order of tabs: from there the arrows lead on.
  rove() {
    if (!this.views.has(this.current)) this.current = this.views.keys().next().value;
    for (const [key, view] of this.views) view.button.tabIndex = key === this.current ? 0 : -1;
  }

  move(event) {
    const keys = [...this.views.keys()];
    const at = keys.findIndex((key) => this.views.get(key).button === event.target);
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: keys.length - 1 }[event.key];
    if (to === undefined || !keys[to]) return;
    event.preventDefault();
    this.current = keys[to];
    this.rove();
    this.views.get(this.current).button.focus();
  }
}
