// The server: whether it is there, what it has, and whether it is still the same one.

import { Lost, Refusal, ask, json, setKey } from "./net.js";
import { store } from "./ui.js";

const CALM_MS = 4000; // between two looks at a server that is there
const KEEN_MS = 800; // at one that is not

/** What is known of the server.
 *
 * phase: "connecting", "here", "lost", "loading" (it is there and not ready), or "key" (it wants one);
 * era: a number that grows when the server is not the one it was;
 * file: whether it shows a file and has no model; model, drafters, rule, context, length: of the model that is served
 * (length: draft tokens at most, or null); steps: whether an answer may carry its steps;
 * header: of the trace, or null; barred: why there is no trace, {status, message}, or null; told: the server's words.
 */
export const link = store({
  phase: "connecting", era: 0, file: false, model: null, drafters: [], rule: "coupled", context: 0, length: null, steps: false,
  header: null, barred: null, told: "",
});

const change = (part) => link.set({ ...link.value, ...part });

/** What a model's card tells. */
function carded({ id, max_model_len: context, speculative }) {
  const { drafters, acceptance, draft_tokens: length, trace } = speculative;
  return { model: String(id), context, drafters: drafters.map(String), rule: acceptance, length, steps: trace };
}

/** Look at what the server has. A file has no model; whether it is one, its trace says. */
async function learn() {
  const found = { file: false, model: null, drafters: [], header: null, barred: null, told: "" };
  try {
    found.header = await json("/trace/header");
    const { model, drafters, live } = found.header;
    Object.assign(found, { model: String(model), drafters: drafters.map(String), file: live === false });
  } catch (error) {
    if (!(error instanceof Refusal) || error.status >= 500) throw error;
    found.barred = { status: error.status, message: error.message };
  }
  try {
    if (!found.file) Object.assign(found, carded((await json("/v1/models")).data[0]));
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 401)) throw error;
    return change({ phase: "key", told: error.message });
  }
  const { era, model, header, phase } = link.value;
  const same = model === found.model && header?.unix === found.header?.unix && phase !== "key";
  change({ ...found, phase: "here", era: same ? era : era + 1 });
}

let timer;

async function beat() {
  clearTimeout(timer);
  const { phase } = link.value;
  try {
    await (await ask("/health", { signal: AbortSignal.timeout(5000) })).text();
    if (phase !== "here" && phase !== "key") await learn();
  } catch (error) {
    if (error instanceof Refusal && error.status === 503) change({ phase: "loading", told: error.message });
    else change({ phase: "lost", told: error instanceof Lost ? "" : error.message });
  }
  const calm = link.value.phase === "here" || link.value.phase === "key";
  timer = setTimeout(() => (document.hidden ? undefined : beat()), calm ? CALM_MS : KEEN_MS);
}

/** Look at once: something did not come through. */
export function suspect() {
  if (link.value.phase === "here") beat();
}

/** Use a key, and ask again what the server has. */
export async function unlock(kind, key) {
  setKey(kind, key);
  try {
    await learn();
  } catch {
    beat();
  }
}

export function connect() {
  document.addEventListener("visibilitychange", () => document.hidden || beat());
  beat();
}
