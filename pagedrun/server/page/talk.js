// What is asked of the server, and the key it may want.

import { local, session } from "./storage.js";

const KEY = "pagedrun.key";

export const key = {
  get: () => session.get(KEY) || local.get(KEY) || "",
  set(value, remember) {
    session.set(KEY, value);
    if (remember) local.set(KEY, value);
    else local.remove(KEY);
  },
};

/** An answer that is no answer. status: 0 when the server cannot be reached. */
export class Refused extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (/[^\x20-\x7e]/.test(key.get())) throw new Refused(401, "A key has letters that no header may have.");
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  let told = null;
  try {
    told = (await answer.json()).error;
  } catch {
    // no JSON: a proxy's answer
  }
  throw new Refused(answer.status, told?.message || `The server answered ${answer.status}.`, told?.code);
}

export async function get(path) {
  return (await send(path)).json();
}

/** The chunks of an answer as they come. Raises Refused; AbortError when `signal` says so. */
export async function* chat(body, signal) {
  const answer = await send("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue; // an empty line, or a sign of life
        const data = line.slice(6);
        if (data === "[DONE]") {
          ended = true;
          continue;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Refused(500, chunk.error.message, chunk.error.code);
        yield chunk;
      }
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Refused(0, "The connection broke off.");
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!ended) throw new Refused(0, "The connection broke off.");
}
