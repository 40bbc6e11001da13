// SPDX-License-Identifier: Apache-2.0

// A plot of values over time, a line for each map.

import { count, h, s } from "./dom.js";

const width = 420;
const height = 190;
const frame = { left: 52, right: 10, top: 12, bottom: 26 };

// plot returns a figure of what value(run) is of runs, each of a map at a time. Lines
// are told apart by their dashes too.
export function plot(title, unit, runs, value) {
  const maps = [...new Set(runs.map((run) => run.map))].sort();
  const begin = Math.min(...runs.map((run) => run.time));
  const span = Math.max(...runs.map((run) => run.time)) - begin || 1;
  const most = nice(Math.max(...runs.map(value)));
  const x = (time) => frame.left + ((time - begin) / span) * (width - frame.left - frame.right);
  const y = (n) => height - frame.bottom - (n / most) * (height - frame.top - frame.bottom);
  const lines = maps.map((map, i) => {
    const points = runs.filter((run) => run.map === map).sort((a, b) => a.time - b.time);
    return s("g", { class: "line-" + (i % 6) },
      s("polyline", { points: points.map((run) => `${x(run.time).toFixed(1)},${y(value(run)).toFixed(1)}`).join(" ") }),
      points.map((run) => s("circle", { cx: x(run.time).toFixed(1), cy: y(value(run)).toFixed(1), r: 2.5 }, s("title", {}, `${map} ${clock(run.time)}: ${number(value(run))} ${unit}`))));
  });
  const last = runs.reduce((a, b) => (b.time >= a.time ? b : a));
  const text = `${title}: ${count(runs.length, "pass", "passes")} through ${count(maps.length, "map")}; at most ${number(Math.max(...runs.map(value)))} ${unit}, ` +
    `last ${number(value(last))} ${unit}. The table below has all numbers.`;
  return h("figure", {}, h("figcaption", {}, `${title} (${unit})`),
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text }, axes(most, begin, span, x, y), lines),
    h("ul", { class: "lines" }, maps.map((map, i) => h("li", { class: "line-" + (i % 6) }, map))));
}

function axes(most, begin, span, x, y) {
  const rows = [0, 0.5, 1].map((part) => [
    s("path", { class: "rule", d: `M${frame.left} ${y(part * most)}H${width - frame.right}` }),
    s("text", { x: frame.left - 6, y: y(part * most) + 4, "text-anchor": "end" }, number(part * most)),
  ]);
  const times = [begin, begin + span].map((time, i) =>
    s("text", { x: x(time), y: height - 8, "text-anchor": i ? "end" : "start" }, clock(time)));
  return s("g", { class: "axes" }, rows, times);
}

function clock(time) {
  return new Date(time).toLocaleTimeString("en-GB");
}

function number(n) {
  return n >= 10000 ? new Intl.NumberFormat("en", { notation: "compact" }).format(n) : Number(n.toPrecision(3)).toLocaleString("en");
}

// nice rounds up to a number with one digit.
function nice(n) {
  if (n <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return Math.ceil(n / power) * power;
}
