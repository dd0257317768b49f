// What was traced: requests, and the steps of one, of which only those that are seen are in the document.

import { look, shown } from "./answer.js";
import { Inspector } from "./inspector.js";
import { link, unlock } from "./link.js";
import { Refusal, ask, events, json } from "./net.js";
import { accepted, alone, stepMs, thrown, together } from "./trace.js";
import { classes, html, save, store, useEffect, useLayoutEffect, useRef, useState, useStore } from "./ui.js";
import { decimal, percent, t, whole } from "./words.js";

const PAGE = 200; // steps that are fetched together
const KEPT = 40; // pages that are kept
const ROW = 34; // pixels of a row
const SPARE = 8; // rows drawn above and below what is seen
const TALLEST = 8e6; // pixels of the list; browsers go astray beyond some tens of millions
const LISTED = 200;
const FOLLOW_MS = 400;

/** Steps of one traced request, fetched as they are looked at, the latest looks kept. */
export class Steps {
  constructor(id, changed) {
    Object.assign(this, { id, begin: null, end: null, count: 0, first: 0, pages: new Map(), changed });
  }

  /** A step if it is there, else a promise of it; null of one that the trace does not hold any more. */
  get(n) {
    const page = this.pages.get(Math.floor(n / PAGE));
    if (page?.steps && n - page.from < page.steps.length) return page.steps[n - page.from] ?? null;
    return this.fetch(Math.floor(n / PAGE)).then((got) => got.steps[n - got.from] ?? null);
  }

  /** A step if it is there; asks for it if not. */
  peek(n) {
    const number = Math.floor(n / PAGE);
    const page = this.pages.get(number);
    if (page?.steps && n - page.from < page.steps.length) return page.steps[n - page.from];
    if (!page) this.fetch(number).catch(() => {});
    return undefined;
  }

  async fetch(number) {
    const known = this.pages.get(number);
    if (known?.coming) return known.coming;
    const coming = json(`/trace/requests/${this.id}?from=${number * PAGE}&to=${(number + 1) * PAGE}`).then((got) => {
      const steps = [];
      for (const step of got.steps) steps[step.n - number * PAGE] = step;
      if (steps.length < PAGE && (number + 1) * PAGE <= got.of) steps.length = PAGE; // of these the trace holds no more
      this.begin = got.begin ?? this.begin;
      this.end = got.end ?? this.end;
      this.count = Math.max(this.count, got.of);
      const page = { from: number * PAGE, steps };
      this.pages.delete(number);
      this.pages.set(number, page);
      for (const old of [...this.pages.keys()].slice(0, Math.max(0, this.pages.size - KEPT))) this.pages.delete(old);
      this.changed();
      return page;
    });
    this.pages.set(number, { ...known, from: number * PAGE, coming });
    coming.catch(() => this.pages.get(number)?.coming === coming && this.pages.delete(number));
    return coming;
  }

  /** Ask for the last page again: there may be more. */
  grow() {
    const last = Math.floor(Math.max(this.count - 1, 0) / PAGE);
    return this.fetch(last).then(() => this.fetch(Math.floor(this.count / PAGE)));
  }
}

/** The list, and what is open of it; kept while other views are looked at. */
const traced = store({ requests: [], error: null });

async function list() {
  try {
    traced.set({ requests: (await json(`/trace/requests?limit=${LISTED}`)).requests, error: null });
  } catch (error) {
    if (error instanceof Refusal) traced.set({ requests: [], error });
  }
}

/** Follow the trace live while the view is there, and look again when something has come. */
function useLive(era, changed) {
  useEffect(() => {
    const control = new AbortController();
    let [after, timer] = [link.value.header?.last ?? 0, null];
    const look = () => (timer ??= setTimeout(() => { timer = null; changed(); }, FOLLOW_MS));
    (async () => {
      while (!control.signal.aborted) {
        try {
          const response = await ask(`/trace/live?after=${after}`, { signal: control.signal });
          if (response.status === 204) return; // nothing more will come
          for await (const { id, event } of events(response)) {
            if (id) after = Number(id);
            if (event === "message" || event === "lost") look();
          }
        } catch (error) {
          if (control.signal.aborted || (error instanceof Refusal && error.status < 500)) return;
        }
        await new Promise((done) => setTimeout(done, 1500));
      }
    })();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [era]);
}

export function Requests({ id, n }) {
  const { era, header, barred, phase } = useStore(link);
  if (barred) return html`<div class="main"><h1>${t("view.requests")}</h1><${Barred} barred=${barred} /></div>`;
  if (!header) return html`<div class="main"><h1>${t("view.requests")}</h1><p class="dim">${t(`link.${phase}`)}</p></div>`;
  return id === null ? html`<${List} era=${era} />` : html`<${One} key=${`${era}-${id}`} id=${id} n=${n} era=${era} />`;
}

/** Why there is no trace to see, and where a key would help a field for it. */
export function Barred({ barred }) {
  const [key, setKey] = useState("");
  return html`<div class="note"><p>${t("trace.barred")}</p><p class="dim">${barred.message}</p>
    ${(barred.status === 401 || barred.status === 403) && html`<form class="key" onSubmit=${(event) => { event.preventDefault(); unlock("trace", key); }}>
      <label class="field"><span>${t("trace.key")}</span><input type="password" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
      <button class="main-button" type="submit" disabled=${!key}>${t("key.use")}</button></form>`}</div>`;
}

function List({ era }) {
  const { requests, error } = useStore(traced);
  const { header } = useStore(link);
  useEffect(() => { list(); }, [era]);
  useLive(era, list);
  return html`<div class="main wide">
    <div class="head"><h1>${t("view.requests")}</h1><${Downloads} /></div>
    <p class="dim">${t("trace.of", { model: header.model, source: header.source })} ${header.text ? "" : t("trace.noText")}</p>
    ${error && html`<p class="bad">${error.message}</p>`}
    ${requests.length === 0 && !error ? html`<p class="lead">${t("trace.empty")}</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label=${t("view.requests")}><table class="list">
      <thead><tr>${["id", "label", "began", "tokens", "steps", "length", "accepted", "speed", "saved", "finish"].map((name) => html`<th key=${name} scope="col" class=${name === "label" || name === "finish" ? "text" : ""}>${t(`column.${name}`)}</th>`)}</tr></thead>
      <tbody>${requests.map((one) => html`<tr key=${one.id}>
        <th scope="row"><a href=${`#/requests/${one.id}`}>${one.id}</a></th>
        <td class="text">${named(one.label)} <span class="dim">${one.rule === "coupled" ? "" : String(one.rule)}</span></td>
        <td>${clock(header, one.at)}</td><td>${whole(one.tokens)}</td><td>${whole(one.steps)}</td>
        <td>${one.acceptance_length == null ? "–" : decimal(one.acceptance_length, 2)}</td>
        <td>${one.drafted ? percent(one.accepted / one.drafted, 1) : "–"}</td>
        <td>${one.tokens_per_second == null ? "–" : decimal(one.tokens_per_second, 1)}</td>
        <td>${one.saved_ms == null ? "–" : t("ms", { n: decimal(one.saved_ms, 0) })}</td>
        <td class="text">${one.finish ? html`<span class=${one.error ? "bad" : ""} title=${one.error ?? ""}>${t(`finish.${one.finish}`)}</span>` : html`<span class="live">${t("finish.runs")}</span>`}</td>
      </tr>`)}</tbody></table></div>`}
    ${requests.length === LISTED && html`<p class="dim">${t("trace.latest", { n: LISTED })}</p>`}
  </div>`;
}

/** The label of a run, in the reader's words where there are some. */
const named = (label) => (label === "plain" || label === "drafted" ? t(`race.${label}`) : String(label));

const clock = (header, at) => new Date(header.unix * 1e3 + at).toLocaleTimeString(document.documentElement.lang);

/** Taking the trace elsewhere. */
function Downloads({ id }) {
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

/** One request. The address says which step is open, so that a link leads to it. */
function One({ id, n, era }) {
  const [, turn] = useState(0);
  const held = useRef();
  const [fault, setFault] = useState(null);
  held.current ??= new Steps(id, () => turn((v) => v + 1));
  const steps = held.current;
  const { header } = useStore(link);
  const { requests } = useStore(traced);
  useEffect(() => {
    list();
    steps.fetch(Math.floor((n ?? 0) / PAGE)).catch((error) => setFault(error.message));
  }, []);
  const grow = () => (list(), steps.end ? undefined : steps.grow().catch(() => {}));
  useLive(era, grow);
  const told = requests.find((one) => one.id === id);
  const go = (to) => location.replace(`#/requests/${id}${to === null ? "" : `/${to + 1}`}`);
  const { begin, count } = steps;
  const close = () => {
    go(null);
    document.querySelector(".steps")?.focus();
  };
  return html`<div class=${classes("columns", n !== null && "opened")}>
    <div class="main">
      <nav class="back"><a href="#/requests">← ${t("view.requests")}</a></nav>
      <div class="head"><h1>${t("request.title", { id })} ${told?.label && html`<small>${named(told.label)}</small>`}</h1><${Downloads} id=${id} /></div>
      ${fault && html`<p class="bad" role="alert">${fault}</p>`}
      ${begin && html`<${About} begin=${begin} told=${told} end=${steps.end} header=${header} />`}
      ${begin?.prompt_text !== undefined && html`<details class="prompt"><summary>${t("request.prompt")}</summary><pre>${String(begin.prompt_text)}</pre></details>`}
      ${count > 0 && html`<${Rows} steps=${steps} count=${count} n=${n} onOpen=${go} />`}
    </div>
    ${n !== null && count > 0 && html`<aside class="side" aria-label=${t("inspector.title")}><${Inspector} walk=${{ of: steps, begin, count, get: (at) => steps.get(at) }} n=${n} onMove=${go} onClose=${close} /></aside>`}
  </div>`;
}

function About({ begin, told, end, header }) {
  const law = Object.entries(begin.sampling ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
  return html`<dl class="facts across">
    <div><dt>${t("column.began")}</dt><dd>${clock(header, begin.at)}</dd></div>
    <div><dt>${t("request.prompted")}</dt><dd>${t("request.tokens", { n: whole(begin.prompt_tokens), cached: whole(begin.cached_tokens ?? 0), ms: decimal(begin.prefill_ms ?? 0, 1) })}</dd></div>
    <div><dt>${t("settings.drafters")}</dt><dd>${(begin.drafters ?? []).map((name, i) => html`<span key=${i} class="tok ${look(i)}">${name}</span> `)}</dd></div>
    <div><dt>${t("settings.rule")}</dt><dd>${t(`rule.${begin.rule}`)}</dd></div>
    <div><dt>${t("request.law")}</dt><dd>${law}</dd></div>
    ${told && html`<div><dt>${t("column.tokens")}</dt><dd>${whole(told.tokens)}</dd></div>
    <div><dt>${t("column.length")}</dt><dd>${told.acceptance_length == null ? "–" : decimal(told.acceptance_length, 2)}</dd></div>
    <div><dt>${t("column.speed")}</dt><dd>${told.tokens_per_second == null ? "–" : decimal(told.tokens_per_second, 1)}</dd></div>
    <div><dt>${t("column.saved")}</dt><dd>${told.saved_ms == null ? "–" : t("ms", { n: decimal(told.saved_ms, 0) })}</dd></div>`}
    <div><dt>${t("column.finish")}</dt><dd>${end ? t(`finish.${end.finish}`) : t("finish.runs")} ${end?.error && html`<span class="bad">${String(end.error)}</span>`}</dd></div>
  </dl>`;
}

/** Rows of steps. As many are in the document as are seen, and some more; a very long list is scrolled on a scale. */
function Rows({ steps, count, n, onOpen }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, height: 600 });
  const [at, setAt] = useState(n ?? 0);
  const tall = Math.min(count * ROW, TALLEST);
  const scale = count * ROW > TALLEST ? (count * ROW - view.height) / (tall - view.height) : 1;
  const above = view.top * scale; // pixels of rows above what is seen
  const first = Math.max(Math.floor(above / ROW) - SPARE, 0);
  const last = Math.min(Math.ceil((above + view.height) / ROW) + SPARE, count);
  useLayoutEffect(() => {
    const element = box.current;
    const look = () => setView({ top: element.scrollTop, height: element.clientHeight });
    look();
    const watch = new ResizeObserver(look);
    watch.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  const show = (row) => {
    const element = box.current;
    const [top, bottom] = [row * ROW, (row + 1) * ROW];
    const seen = element.scrollTop * scale;
    if (top < seen + ROW) element.scrollTop = Math.max(top - ROW, 0) / scale;
    else if (bottom > seen + element.clientHeight - ROW) element.scrollTop = (bottom + ROW - element.clientHeight) / scale;
  };
  useLayoutEffect(() => {
    if (n === null) return;
    setAt(n);
    show(n);
  }, [n]);
  const move = (to) => {
    const row = Math.max(0, Math.min(to, count - 1));
    setAt(row);
    show(row);
    if (n !== null) onOpen(row);
  };
  const screen = Math.max(Math.floor(view.height / ROW) - 1, 1);
  const key = (event) => {
    const keys = {
      ArrowDown: () => move(at + 1), ArrowUp: () => move(at - 1), PageDown: () => move(at + screen), PageUp: () => move(at - screen),
      Home: () => move(0), End: () => move(count - 1), Enter: () => onOpen(at), " ": () => onOpen(at),
    };
    if (!keys[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  };
  const rows = [];
  for (let row = first; row < last; row += 1) rows.push(html`<${Row} key=${row} row=${row} step=${steps.peek(row)} top=${row * ROW - above + view.top} active=${row === at} open=${row === n} />`);
  return html`<form class="goto" onSubmit=${(event) => { event.preventDefault(); const to = Number(event.target.elements.step.value) - 1; if (to >= 0) { move(to); onOpen(Math.min(to, count - 1)); } }}>
      <h2>${t("column.steps")} <small>${whole(count)}</small></h2>
      <label>${t("request.goto")} <input name="step" type="number" min="1" max=${count} /></label></form>
    <div class="steps" role="grid" tabindex="0" aria-label=${t("column.steps")} aria-rowcount=${count + 1} aria-activedescendant=${at >= first && at < last ? `step-${at}` : undefined} ref=${box} onKeyDown=${key}
      onClick=${(event) => { const row = event.target.closest("[data-row]"); if (row && !getSelection()?.toString()) { setAt(Number(row.dataset.row)); onOpen(Number(row.dataset.row)); } }}>
      <div class="row title" role="row" aria-rowindex="1">${["step", "emitted", "kept", "ms", "saved"].map((name) => html`<span key=${name} role="columnheader">${t(`row.${name}`)}</span>`)}</div>
      <div class="all" style=${{ height: `${tall}px` }} role="rowgroup">${rows}</div>
    </div>`;
}

function Row({ row, step, top, active, open }) {
  const place = { transform: `translateY(${top}px)` };
  const common = { role: "row", id: `step-${row}`, "data-row": row, "aria-rowindex": row + 2, "aria-selected": open ? "true" : "false" };
  if (step === undefined) return html`<div class=${classes("row", active && "active")} style=${place} ...${common}><span role="gridcell">${whole(row + 1)}</span><span role="gridcell" class="dim">…</span></div>`;
  const gone = thrown(step);
  return html`<div class=${classes("row", active && "active", open && "open")} style=${place} ...${common}>
    <span role="gridcell">${whole(row + 1)}</span>
    <span role="gridcell" class="tokens">${alone(step).map((piece, i) => html`<span key=${i} class=${classes("tok", piece.text === "" && "part", piece.source >= 0 ? look(piece.source) : `own ${piece.own ?? ""}`)}>${shown({ ...piece, text: piece.text.replaceAll("\n", "↵") })}</span>`)}
      ${gone.length ? html`<span class="tok gone">${together(step, gone[0].nodes.map((node) => step.tokens[node]))}</span>` : null}</span>
    <span role="gridcell">${step.tokens.length ? `${accepted(step)}/${step.tokens.length}` : "–"}</span>
    <span role="gridcell">${decimal(stepMs(step), 1)}</span>
    <span role="gridcell" class=${step.saved_ms < 0 ? "bad" : ""}>${step.saved_ms == null ? "–" : decimal(step.saved_ms, 1)}</span>
  </div>`;
}
