// The server: whether it is there, what it has, and whether it is still the same one.

import { Lost, Refusal, ask, json, setKey } from "./net.js";
import { store, turns } from "./ui.js";

const CALM_MS = 4000; // between two looks at a server that is there
const KEEN_MS = 800; // at one that is not
const PATIENCE_MS = 5000; // with one that says nothing

/** What is known of the server.
 *
 * phase: "connecting", "here", "lost", "loading" (it is there and not ready), or "key" (it wants one);
 * era: a number that grows when the server is not the one it was;
 * file: whether it shows a file and has no model; created: when its model was; model, drafters, rule, context, length: of the model that is served
 * (length: draft tokens at most, or null); steps: whether an answer may carry its steps;
 * header: of the trace, or null; barred: why there is no trace, {status, message}, or null; told: the server's words.
 */
export const link = store({
  phase: "connecting", era: 0, file: false, model: null, created: 0, drafters: [], rule: "coupled", context: 0, length: null, steps: false,
  header: null, barred: null, told: "",
});

const change = (part) => link.set({ ...link.value, ...part });

/** What a model's card tells. */
function carded({ id, created, max_model_len: context, speculative }) {
  const { drafters, acceptance, draft_tokens: length, trace } = speculative;
  return { model: String(id), created, context, drafters: drafters.map(String), rule: acceptance, length, steps: trace };
}

const soonOver = () => ({ signal: AbortSignal.timeout(PATIENCE_MS) });

/** Look at what the server has. A file has no model; whether it is one, its trace says. */
async function learn() {
  const found = { file: false, model: null, created: 0, drafters: [], header: null, barred: null, told: "" };
  try {
    found.header = await json("/trace/header", soonOver());
    const { model, drafters, live } = found.header;
    Object.assign(found, { model: String(model), drafters: drafters.map(String), file: live === false });
  } catch (error) {
    if (!(error instanceof Refusal) || error.status >= 500) throw error;
    found.barred = { status: error.status, message: error.message };
  }
  try {
    if (!found.file) Object.assign(found, carded((await json("/v1/models", soonOver())).data[0]));
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 401)) throw error;
    return change({ phase: "key", told: error.message });
  }
  const { era, model, header, created, phase } = link.value;
  const same = model === found.model && header?.unix === found.header?.unix && created === found.created && phase !== "key";
  change({ ...found, phase: "here", era: same ? era : era + 1 });
}

let doubted = false;

/** Whether another server took the place of the one that is known, or this one asks for a key by now. */
async function another() {
  const { phase, header, created } = link.value;
  if (phase !== "here") return false;
  try {
    if (header) return (await json("/trace/header", soonOver())).unix !== header.unix;
    return (await json("/v1/models", soonOver())).data[0].created !== created;
  } catch (error) {
    if (error instanceof Refusal) return true;
    throw error;
  }
}

const beat = turns(async () => {
  const { phase } = link.value;
  if (document.hidden && phase !== "connecting") return undefined;
  const anew = doubted || !["here", "key"].includes(phase);
  doubted = false;
  try {
    await (await ask("/health", soonOver())).text();
    if (anew || (await another())) await learn();
  } catch (error) {
    if (error instanceof Refusal && error.status === 503) change({ phase: "loading", told: error.message });
    else change({ phase: "lost", told: error instanceof Lost ? "" : error.message });
  }
  return ["here", "key"].includes(link.value.phase) ? CALM_MS : KEEN_MS;
});

/** Look at once what the server has: it may be another one by now. */
function doubt() {
  doubted = true;
  beat();
}

/** Something did not come through, or is not what it was. */
export function suspect() {
  if (link.value.phase === "here") doubt();
}

/** Use a key, and ask again what the server has. */
export function unlock(kind, key) {
  setKey(kind, key);
  doubt();
}

export function connect() {
  document.addEventListener("visibilitychange", () => document.hidden || doubt());
  beat();
}
