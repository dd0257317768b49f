// Taking a trace elsewhere: into a file, or to Perfetto's page.

import { ask } from "./net.js";
import { html, save, useState } from "./ui.js";
import { t } from "./words.js";

/** Taking the trace elsewhere. */
export function Downloads({ id }) {
  const [busy, setBusy] = useState("");
  const [sure, setSure] = useState(false);
  const path = `/trace/timeline.json${id === undefined ? "" : `?id=${id}`}`;
  const get = async (from, use) => {
    setBusy("…");
    try {
      await use(await (await ask(from)).blob());
      setBusy("");
    } catch (error) {
      setBusy(error.message);
    }
  };
  const away = () => {
    setSure(false);
    // The window is opened in the click itself, or browsers take it for a nuisance.
    const window_ = open(PERFETTO);
    if (window_) get(path, async (blob) => perfetto(window_, await blob.arrayBuffer(), id));
  };
  return html`<div class="downloads">
    <button class="soft" onClick=${() => get(path, (blob) => save(blob, `augury-timeline${id === undefined ? "" : `-${id}`}.json`))}>timeline.json</button>
    ${id === undefined && html`<button class="soft" onClick=${() => get("/trace/trace.jsonl", (blob) => save(blob, "augury-trace.jsonl"))}>trace.jsonl</button>`}
    <button class="soft" aria-expanded=${sure} onClick=${() => setSure(!sure)}>${t("perfetto.open")}</button>
    ${busy && html`<span class="dim" role="status">${busy}</span>`}
    ${sure && html`<div class="note"><p>${t("perfetto.note")}</p><button class="main-button" onClick=${away}>${t("perfetto.go")}</button></div>`}
  </div>`;
}

const PERFETTO = "https://ui.perfetto.dev";

/** Hand a timeline to Perfetto's page: it answers PING when it is ready, and takes a buffer. */
async function perfetto(target, buffer, id) {
  await new Promise((done) => {
    const ping = setInterval(() => (target.closed ? stop() : target.postMessage("PING", PERFETTO)), 100);
    const stop = () => {
      clearInterval(ping);
      removeEventListener("message", heard);
      done();
    };
    const heard = (event) => event.origin === PERFETTO && event.data === "PONG" && stop();
    addEventListener("message", heard);
  });
  if (!target.closed) target.postMessage({ perfetto: { buffer, title: `augury${id === undefined ? "" : ` ${id}`}` } }, PERFETTO);
}

