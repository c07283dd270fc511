// The server, as the page sees it: JSON, streams of events, and problems in words.
import {kept} from "./dom.js";

export class Problem extends Error {
  constructor(message, more = {}) {
    super(message);
    const {message: _, ...rest} = more;
    Object.assign(this, {status: 0, code: null, wait: null}, rest);
  }
}

export const access = {
  get key() { return kept.read("key") ?? ""; },
  set key(value) { kept.write("key", value || null); },
  onRefused: () => {},  // a key is missing or wrong
};

/** The answer to GET (or, with `body`, POST) `path`, below the address of this page; raises `Problem`. */
export async function call(path, {body = null, signal = null} = {}) {
  const headers = body === null ? {} : {"Content-Type": "application/json"};
  if (access.key) headers.Authorization = `Bearer ${access.key}`;
  let response;
  try {
    response = await fetch(path, {method: body === null ? "GET" : "POST", headers, signal, cache: "no-store", body: body && JSON.stringify(body)});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running?", {code: "gone"});
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export const json = async (path, options) => (await call(path, options)).json();

async function problemOf(response) {
  let found = null, progress = null;
  try { ({error: found, progress} = await response.json()); } catch { /* no JSON: not this server, or a proxy before it */ }
  const again = response.status === 429 || (response.status === 503 && (found?.code ?? "unavailable") === "unavailable");
  const wait = again ? Number(response.headers.get("retry-after") ?? 1) || 1 : null;
  if (response.status === 401) setTimeout(() => access.onRefused());  // when the request has ended for all who wait for it
  return new Problem(sentence(found?.message ?? `the server answered ${response.status}`), {...found, progress: found?.progress ?? progress, status: response.status, wait});
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?`]$/.test(text) ? "" : ".");
}

/** The events of a stream of chat completions as objects; raises `Problem` for one that tells of a problem, or breaks off. */
export async function* events(path, body, signal) {
  const response = await call(path, {body, signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    let value, done;
    try {
      ({value, done} = await reader.read());
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Problem("The connection broke off in the middle of the answer.", {code: "broken"});
    }
    if (done) throw new Problem("The answer broke off: the server ended it early.", {code: "broken"});
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") { reader.cancel().catch(() => {}); return; }
      const event = JSON.parse(data);
      if (event.error) throw new Problem(sentence(event.error.message ?? "the server reports a problem"), {...event.error, status: 500});
      yield event;
    }
  }
}
