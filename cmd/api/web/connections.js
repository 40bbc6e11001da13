// SPDX-License-Identifier: Apache-2.0

// What the passes through the maps of connections found and removed, over time.

import { h } from "./dom.js";
import { seconds } from "./cells.js";
import { Grid } from "./grid.js";
import { followTable } from "./tables.js";
import { plot } from "./plot.js";

const removals = ["Expired", "Translations", "Orphans", "Released", "Flushed", "Condemned"];

export function showConnections(element, signal) {
  const plots = h("div", { class: "plots" });
  const draw = () => {
    const cell = (row, column) => row.cells[grid.columns.indexOf(column)];
    const runs = [...grid.rows.values()].filter((row) => cell(row, "Map") !== "-").map((row) => ({
      map: cell(row, "Map"),
      time: Date.parse(cell(row, "Started")),
      found: Number(cell(row, "Scanned")),
      removed: removals.reduce((sum, column) => sum + Number(cell(row, column)), 0),
      took: 1000 * (seconds(cell(row, "Duration")) ?? 0),
    }));
    if (runs.length === 0) {
      plots.replaceChildren(h("p", { class: "hint" }, grid.complete ? "No pass has found an entry yet." : "Loading."));
      return;
    }
    plots.replaceChildren(
      plot("Entries found", "entries", runs, (run) => run.found),
      plot("Entries removed", "entries", runs, (run) => run.removed),
      plot("Duration", "ms", runs, (run) => run.took),
    );
  };
  const grid = new Grid({ label: "ct-gc-runs", sort: { column: "ID", descending: true }, rendered: draw });
  element.append(h("h1", {}, "Connections that have ended"),
    h("p", { class: "hint" }, "Each pass of the garbage collection through each map: how many entries it came by, how many it removed, and how long it took."),
    plots, h("h2", {}, "Passes"), grid.element);
  followTable("ct-gc-runs", signal, grid);
  return "Connections";
}
