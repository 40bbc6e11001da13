// SPDX-License-Identifier: Apache-2.0

// What the agent answers: once, again and again, or as it changes. A page that is
// not seen asks nothing and follows nothing, as the agent has only so many streams.

const firstPause = 500; // ms before what failed is tried again; it doubles
const longestPause = 15000;
const silence = 75000; // ms without a line, of which there is one every 30 s

const listeners = new Set();
let state = { connected: true, reason: "" };

// onConnection has a function told whether the agent answers, now and when that changes.
export function onConnection(listener) {
  listeners.add(listener);
  listener(state);
}

function tell(connected, reason = "") {
  if (state.connected === connected && state.reason === reason) return;
  state = { connected, reason };
  for (const listener of listeners) listener(state);
}

// Refusal is an answer that is an error: the agent is there.
export class Refusal extends Error {}

async function request(path, signal) {
  try {
    return await fetch(path, { signal });
  } catch (err) {
    if (!signal?.aborted) tell(false, "the agent does not answer");
    throw err;
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  return new Refusal(body.err ?? `${response.status} ${response.statusText}`);
}

// get returns the JSON of a path, which begins without a slash, so that the page may be
// reached through a proxy that has it below another path. With anyStatus that of an error too, as those of
// /healthz and /readyz, which say the same either way.
export async function get(path, signal, anyStatus = false) {
  const response = await request(path, signal);
  tell(true);
  if (!response.ok && !anyStatus) throw await refusal(response);
  return response.json();
}

// poll calls a function again and again until the signal aborts. What it throws is
// handed to failed.
export async function poll(interval, signal, ask, failed = () => {}) {
  let pause = firstPause;
  while (!signal.aborted) {
    await visible(signal);
    if (signal.aborted) return;
    let wait = interval;
    try {
      await ask();
      pause = firstPause;
    } catch (err) {
      if (signal.aborted) return;
      failed(err);
      wait = Math.max(Math.min(interval, longestPause), pause);
      pause = Math.min(2 * pause, longestPause);
    }
    await sleep(wait, signal);
  }
}

// follow hands on the lines of a stream of JSON, in batches as they come. When the
// stream ends it begins anew, after a pause, with opened.
export async function follow(path, signal, { opened, lines, failed = () => {} }) {
  let pause = firstPause;
  while (!signal.aborted) {
    await visible(signal);
    if (signal.aborted) return;
    const stop = new AbortController();
    const end = () => stop.abort();
    const hidden = () => document.hidden && end();
    signal.addEventListener("abort", end);
    document.addEventListener("visibilitychange", hidden);
    try {
      const response = await request(path, stop.signal);
      if (!response.ok) throw await refusal(response);
      tell(true);
      opened();
      await read(response.body, stop, (batch) => {
        pause = firstPause;
        lines(batch);
      });
      if (!signal.aborted && !document.hidden) throw new Error("the agent ended the stream");
    } catch (err) {
      if (!signal.aborted && !document.hidden) {
        if (!(err instanceof Refusal)) tell(false, "the agent does not answer");
        failed(err);
        await sleep(pause * (1 + Math.random() / 2), signal);
        pause = Math.min(2 * pause, longestPause);
      }
    } finally {
      end();
      signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", hidden);
    }
  }
}

async function read(body, stop, lines) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let quiet = setTimeout(() => stop.abort(), silence);
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(quiet);
      quiet = setTimeout(() => stop.abort(), silence);
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      if (parts.length > 0) lines(parts.map((line) => JSON.parse(line)));
    }
  } finally {
    clearTimeout(quiet);
  }
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

// visible returns when the page is seen.
function visible(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    signal.addEventListener("abort", check, { once: true });
  });
}
