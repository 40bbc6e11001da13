// SPDX-License-Identifier: Apache-2.0

// Where the nodes of a graph are drawn: in columns, so that data flows from left to
// right, and ordered in these so that few edges cross.

const sweeps = 12;

// arrangeGraph returns for each node its column, and its row, which need not be whole.
// What the kernel has is looked at by tables that it follows from, too: these edges
// lead back, and move nothing.
export function arrangeGraph(nodes, edges) {
  const kinds = new Map(nodes.map((node) => [node.name, node.kind]));
  const mirrors = new Set(edges.filter((edge) => kinds.get(edge.from) === "map").map((edge) => edge.to));
  const forward = acyclic(nodes, edges.filter((edge) => !edge.feedback && !mirrors.has(edge.from)));
  const depth = depths(nodes, forward);
  const joined = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  const columns = [];
  for (const { name, kind } of nodes) {
    const column = joined.has(name) || kind === "source" ? depth.get(name) : 1; // that of what is read
    (columns[column] ??= []).push(name);
  }
  for (let i = 0; i < columns.length; i++) columns[i] ??= [];
  return level(untangle(columns, forward), forward);
}

// acyclic returns the edges without those that close a circle, as found from the
// sources on.
function acyclic(nodes, edges) {
  const next = new Map(nodes.map((node) => [node.name, []]));
  for (const edge of edges) next.get(edge.from).push(edge);
  const state = new Map(); // 1: being looked at, 2: done
  const kept = [];
  const visit = (name) => {
    state.set(name, 1);
    for (const edge of next.get(name)) {
      if (state.get(edge.to) === 1) continue;
      kept.push(edge);
      if (!state.has(edge.to)) visit(edge.to);
    }
    state.set(name, 2);
  };
  for (const node of nodes) if (!state.has(node.name)) visit(node.name);
  return kept;
}

// depths returns the length of the longest way to each node.
function depths(nodes, edges) {
  const before = new Map(nodes.map((node) => [node.name, []]));
  for (const edge of edges) before.get(edge.to).push(edge.from);
  const depth = new Map();
  const find = (name) => {
    if (!depth.has(name)) depth.set(name, Math.max(0, ...before.get(name).map((from) => find(from) + 1)));
    return depth.get(name);
  };
  for (const node of nodes) find(node.name);
  return depth;
}

// untangle orders each column by the middle of what its nodes are joined with.
function untangle(columns, edges) {
  const joined = new Map();
  for (const { from, to } of edges) {
    joined.set(from, [...(joined.get(from) ?? []), to]);
    joined.set(to, [...(joined.get(to) ?? []), from]);
  }
  const place = new Map();
  const number = () => columns.forEach((column) => column.forEach((name, i) => place.set(name, (i + 0.5) / column.length)));
  number();
  for (let sweep = 0; sweep < sweeps; sweep++) {
    const order = sweep % 2 ? [...columns.keys()].reverse() : columns.keys();
    for (const at of order) {
      const middle = new Map(columns[at].map((name) => {
        const others = (joined.get(name) ?? []).map((other) => place.get(other));
        return [name, others.length ? others.reduce((a, b) => a + b) / others.length : place.get(name)];
      }));
      columns[at].sort((a, b) => middle.get(a) - middle.get(b) || (a < b ? -1 : 1));
      number();
    }
  }
  return columns;
}

// level puts each node, in the order of its column, as near to the middle of what it
// comes from as those above it allow.
function level(columns, edges) {
  const before = new Map();
  for (const { from, to } of edges) before.set(to, [...(before.get(to) ?? []), from]);
  const tallest = Math.max(...columns.map((column) => column.length));
  const at = new Map();
  columns.forEach((names, column) => {
    let free = 0;
    names.forEach((name, i) => {
      const rows = (before.get(name) ?? []).map((from) => at.get(from).row);
      const middle = rows.length ? rows.reduce((a, b) => a + b) / rows.length : ((i + 0.5) / names.length) * tallest - 0.5;
      const row = Math.max(free, Math.min(middle, tallest - (names.length - i)));
      at.set(name, { column, row });
      free = row + 1;
    });
  });
  return at;
}
