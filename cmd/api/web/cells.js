// SPDX-License-Identifier: Apache-2.0

// What the cells of tables mean, by their columns: which are well, and their order.

const words = {
  Status: { Done: "ok", Refreshing: "ok", Pending: "pending", Error: "error" },
  State: {
    "in force": "ok", synced: "ok", syncing: "pending", pending: "pending", unsupported: "error", invalid: "error",
    failed: "error", broken: "error", kept: "error",
  },
  Level: { OK: "ok", Degraded: "error", Stopped: "pending" },
  Wanted: { same: "ok", other: "pending", absent: "pending" },
  Ready: { true: "ok", false: "pending" },
  Verdict: { allow: "ok", deny: "deny" },
};

const mistakes = new Set(["Error", "Errors", "Unsupported"]);

// meaning returns "ok", "pending", "error" or "" for a cell of a column.
export function meaning(column, text) {
  if (mistakes.has(column)) return text === "-" || text === "" ? "" : "error";
  switch (column) {
    case "Failed":
      return text === "0" ? "" : "error";
    case "Pending":
    case "Waiting":
      return /^[1-9]/.test(text) ? "pending" : "";
    case "Conflicts":
      return text === "-" ? "" : "pending";
    case "Programmed":
      return text.split("/")[0] === text.split("/")[1] ? "ok" : "pending";
    case "Pressure": {
      const percent = parseFloat(text);
      return percent >= 95 ? "error" : percent >= 80 ? "pending" : "";
    }
  }
  return words[column]?.[text] ?? "";
}

// words that stand for themselves are shown as labels; sentences are not.
export function isLabel(column) {
  return column in words || column === "Programmed";
}

const duration = /^(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)(s|ms|µs|ns))?$/;
const unit = { s: 1, ms: 1e-3, "µs": 1e-6, ns: 1e-9 };
const ipv4 = /^(\d+)\.(\d+)\.(\d+)\.(\d+)(?:\/(\d+))?$/;

// sortValue returns what a cell is ordered by: a number where it is one.
export function sortValue(text) {
  if (text === "-" || text === "") return null;
  if (/^-?\d+(\.\d+)?%?$/.test(text)) return parseFloat(text);
  const address = ipv4.exec(text);
  if (address) return address.slice(1, 5).reduce((n, part) => 256 * n + Number(part), 0) * 64 + Number(address[5] ?? 32);
  return seconds(text) ?? text;
}

// seconds returns the length of a time as Go writes it, undefined if it is none.
export function seconds(text) {
  const m = duration.exec(text);
  if (!m || text === "") return undefined;
  return 3600 * (m[1] ?? 0) + 60 * (m[2] ?? 0) + (m[3] ?? 0) * (unit[m[4]] ?? 0);
}

const collator = new Intl.Collator("en", { numeric: true });

// compare orders values of sortValue: numbers, then words, then what is missing.
export function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return collator.compare(a, b);
}

// traceOf returns where the trace of the policy is that a row is about, "" if it is
// about none, and the column that names it.
export function traceOf(table, columns, cells) {
  const cell = (column) => cells[columns.indexOf(column)];
  switch (table) {
    case "egress-policies":
      return { column: "Name", href: tracePath("CiliumEgressGatewayPolicy/" + cell("Name")) };
    case "egress-policy-status":
      return { column: "Policy", href: tracePath("CiliumEgressGatewayPolicy/" + cell("Policy")) };
    case "network-policies":
    case "network-policy-status":
      return { column: "Name", href: tracePath(cell("Kind") + "/" + cell("Name")) };
  }
  return { column: "", href: "" };
}

// tracePath returns where the trace of a policy is.
export function tracePath(policy) {
  return "#/policy/" + policy.split("/").map(encodeURIComponent).join("/");
}
