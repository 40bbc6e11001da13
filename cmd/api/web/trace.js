// SPDX-License-Identifier: Apache-2.0

// The policies, and what comes of one of them: from the object to the maps.

import { announce, arrange, count, h, setAttribute, setText } from "./dom.js";
import { get, poll } from "./net.js";
import { tracePath } from "./cells.js";
import { Grid } from "./grid.js";
import { conditionOf, followTable, tablePath } from "./tables.js";

const kindEgress = "CiliumEgressGatewayPolicy";

export function showPolicies(element, signal) {
  const egress = policyGrid("egress policies", "Policy", (cells) => `${kindEgress}/${cells[0]}`);
  const network = policyGrid("network policies", "Name", (cells) => `${cells[0]}/${cells[1]}`);
  element.append(h("h1", {}, "Policies"), h("p", { class: "hint" }, "Choose one to see what comes of it, from the object to the maps."),
    h("h2", {}, "Egress policies"), egress.element, h("h2", {}, "Network policies"), network.element);
  followTable("egress-policy-status", signal, egress);
  followTable("network-policy-status", signal, network);
  return "Policies";
}

function policyGrid(label, column, policy) {
  return new Grid({ label, link: (cells) => ({ column, href: tracePath(policy(cells)) }) });
}

export function showTrace(element, signal, policy) {
  const title = h("h1", {}, policy.split("/").slice(1).join("/"));
  const verdict = h("p", { class: "verdict small", role: "status" });
  const chain = h("ol", { class: "chain", "aria-label": "Steps from the object to the maps" });
  const steps = h("div");
  element.append(title, h("p", { class: "hint" }, policy.split("/")[0], " · ", h("a", { href: "#/policies" }, "All policies")), verdict, chain, steps);

  const views = new Map();
  const texts = { error: "Something is wrong: look at the steps that are marked", pending: "On its way: not all of it is in the kernel", "": "All of it is as it should be" };
  poll(2000, signal, async () => {
    const trace = await get("trace?policy=" + encodeURIComponent(policy), signal);
    const text = trace.drops ? "It drops the packets of its pods: " + trace.drops : texts[trace.condition ?? ""];
    if (verdict.textContent !== text) announce(text);
    setText(verdict, text);
    setAttribute(verdict, "class", "verdict small " + (trace.condition ?? "ok"));
    const shown = trace.steps.map((step, i) => {
      if (!views.has(step.table)) views.set(step.table, new StepView(step, i));
      views.get(step.table).show(step);
      return views.get(step.table);
    });
    arrange(chain, shown.map((view) => view.item));
    arrange(steps, shown.map((view) => view.section));
  }, (err) => {
    setText(verdict, err.message);
    setAttribute(verdict, "class", "verdict small error");
  });
  return policy;
}

// StepView shows the rows of one table that come of a policy, and its link in the chain.
class StepView {
  constructor({ table, meaning, columns }, i) {
    const id = "step-" + table;
    this.heading = h("h2", { id, tabindex: "-1" }, `${i + 1}. ${table}`);
    this.note = h("span", { class: "note" });
    this.button = h("button", { type: "button", onclick: () => this.go() }, h("span", { class: "name" }, table), this.note);
    this.item = h("li", {}, this.button);
    this.grid = new Grid({ label: table, small: true, order: false });
    this.grid.setColumns(columns);
    this.more = h("p", { class: "hint" });
    this.section = h("section", { "aria-labelledby": id }, this.heading,
      h("p", { class: "hint" }, meaning[0].toUpperCase() + meaning.slice(1) + ". ", h("a", { href: tablePath(table) }, "The whole table")), this.grid.element, this.more);
  }

  go() {
    this.heading.focus();
    this.section.scrollIntoView();
  }

  show(step) {
    const condition = conditionOf({ ...step, initialized: true });
    setAttribute(this.item, "class", condition || (step.total ? "ok" : "void"));
    setAttribute(this.section, "class", condition || null);
    const parts = [count(step.total, "row")];
    if (step.errors) parts.push(`${step.errors} with an error`);
    if (step.pending) parts.push(`${step.pending} pending`);
    setText(this.note, parts.join(", "));
    setText(this.more, step.total > step.rows.length ? `${step.rows.length} of ${count(step.total, "row")}; those that are not as they should be come first.` : "");
    this.grid.element.hidden = step.total === 0;
    if (step.total === 0) setText(this.more, "No rows.");
    this.grid.replace(step.rows.map((cells, i) => ({ key: String(i).padStart(4, "0"), cells, condition: step.conditions[i] })));
  }
}
