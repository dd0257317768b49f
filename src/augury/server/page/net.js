// Asking the server this page came from, and nobody else.

/** An answer that is no success; the message is the server's own. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server was not reached, or broke off. */
export class Lost extends Error {}

const names = { api: "augury.key", trace: "augury.trace-key" };
const keys = {};

/** The key for a kind of routes; without a trace key the API key stands for it. Kept as long as the tab. */
export function keyOf(kind) {
  if (keys[kind] === undefined) {
    try {
      keys[kind] = sessionStorage.getItem(names[kind]) ?? "";
    } catch {
      keys[kind] = "";
    }
  }
  return keys[kind] || (kind === "trace" ? keyOf("api") : "");
}

export function setKey(kind, key) {
  keys[kind] = key;
  try {
    if (key) sessionStorage.setItem(names[kind], key);
    else sessionStorage.removeItem(names[kind]);
  } catch {
    // It is known until the page is left.
  }
}

/** The response of a route.
 *
 * @throws {Refusal} it is an error.
 * @throws {Lost} there is none.
 */
export async function ask(path, { body, signal, headers } = {}) {
  const key = keyOf(path.startsWith("/trace") ? "trace" : "api");
  const sent = { ...headers };
  if (key) sent.Authorization = `Bearer ${key}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw new Lost(String(error?.message ?? error));
  }
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = String((await response.json()).error.message);
  } catch {
    // An error that is not in the server's own form has its status alone.
  }
  throw new Refusal(response.status, message);
}

/** The JSON of a route. */
export async function json(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    throw new Lost(String(error?.message ?? error));
  }
}

/** The events of a stream, as {id, event, data}, data as text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let found = { id: "", event: "message", data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (found.data.length) yield { ...found, data: found.data.join("\n") };
          found = { id: found.id, event: "message", data: [] };
          continue;
        }
        const colon = line.indexOf(":");
        const name = colon < 0 ? line : line.slice(0, colon);
        const told = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (name === "data") found.data.push(told);
        else if (name === "id" || name === "event") found[name] = told;
      }
    }
  } catch (error) {
    if (error?.name === "AbortError") throw error;
    throw new Lost(String(error?.message ?? error));
  } finally {
    reader.cancel().catch(() => {});
  }
}
