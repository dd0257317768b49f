// The steps of one traced request, of which only those that are seen are in the document.

import { Brought } from "./answer.js";
import { json } from "./net.js";
import { accepted, alone, stepMs, thrown, together } from "./trace.js";
import { classes, html, useLayoutEffect, useRef, useState } from "./ui.js";
import { decimal, t, whole } from "./words.js";

const PAGE = 200; // steps that are fetched together
const KEPT = 40; // pages that are kept
const ROW = 34; // pixels of a row
const SPARE = 8; // rows drawn above and below what is seen
const COLUMNS = ["step", "emitted", "kept", "ms", "saved"];
const TALLEST = 8e6; // pixels of the list; browsers go astray beyond some tens of millions

/** Steps of one traced request, fetched as they are looked at, the latest looks kept. */
export class Steps {
  constructor(id, changed) {
    Object.assign(this, { id, begin: null, end: null, count: 0, pages: new Map(), changed });
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
    const coming = this.read(number * PAGE).then((page) => {
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

  /** A page of steps from one on; of those that are not in it the trace holds no more. */
  async read(from) {
    const [steps, until] = [[], from + PAGE];
    let [at, of] = [from, until];
    while (at < Math.min(until, of)) { // an answer ends early where its steps are big
      const got = await json(`/trace/requests/${this.id}?from=${at}&to=${until}`);
      for (const step of got.steps) steps[step.n - from] = step;
      this.begin = got.begin ?? this.begin;
      this.end = got.end ?? this.end;
      this.count = Math.max(this.count, got.of);
      [at, of] = [got.to, got.of];
    }
    steps.length = Math.max(at - from, 0);
    return { from, steps };
  }

  /** Ask for the last page again: there may be more. */
  grow() {
    const last = Math.floor(Math.max(this.count - 1, 0) / PAGE);
    return this.fetch(last).then(() => this.fetch(Math.floor(this.count / PAGE)));
  }
}

/** Rows of steps. As many are in the document as are seen, and some more; a very long list is scrolled on a scale. */
export function Rows({ steps, count, n, onOpen }) {
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
  for (let row = first; row < last; row += 1) {
    const top = row * ROW - above + view.top;
    rows.push(html`<${Row} key=${row} row=${row} step=${steps.peek(row)} top=${top} active=${row === at} open=${row === n} />`);
  }
  const jump = (event) => {
    event.preventDefault();
    const to = Math.min(Number(event.target.elements.step.value), count) - 1;
    if (to < 0) return;
    move(to);
    onOpen(to);
  };
  const click = (event) => {
    const row = event.target.closest("[data-row]")?.dataset.row;
    if (row === undefined || getSelection()?.toString()) return; // who marks text to copy it opens nothing
    setAt(Number(row));
    onOpen(Number(row));
  };
  return html`<form class="goto" onSubmit=${jump}>
      <h2>${t("column.steps")} <small>${whole(count)}</small></h2>
      <label>${t("request.goto")} <input name="step" type="number" min="1" max=${count} /></label></form>
    <div class="steps" role="grid" tabindex="0" aria-label=${t("column.steps")} aria-rowcount=${count + 1} ref=${box}
      aria-activedescendant=${at >= first && at < last ? `step-${at}` : undefined} onKeyDown=${key} onClick=${click}>
      <div class="row title" role="row" aria-rowindex="1">
        ${COLUMNS.map((name) => html`<span key=${name} role="columnheader">${t(`row.${name}`)}</span>`)}</div>
      <div class="all" style=${{ height: `${tall}px` }} role="rowgroup">${rows}</div>
    </div>`;
}

function Row({ row, step, top, active, open }) {
  const place = { transform: `translateY(${top}px)` };
  const common = { role: "row", id: `step-${row}`, "data-row": row, "aria-rowindex": row + 2, "aria-selected": open ? "true" : "false" };
  if (step === undefined) {
    return html`<div class=${classes("row", active && "active")} style=${place} ...${common}>
      <span role="gridcell">${whole(row + 1)}</span><span role="gridcell" class="dim">…</span></div>`;
  }
  const gone = thrown(step);
  return html`<div class=${classes("row", active && "active", open && "open")} style=${place} ...${common}>
    <span role="gridcell">${whole(row + 1)}</span>
    <span role="gridcell" class="tokens"><${Brought} pieces=${alone(step)} spelt=${(text) => text.replaceAll("\n", "↵")} />
      ${gone.length ? html`<span class="tok gone">${together(step, gone[0].nodes.map((node) => step.tokens[node]))}</span>` : null}</span>
    <span role="gridcell">${step.tokens.length ? `${accepted(step)}/${step.tokens.length}` : "–"}</span>
    <span role="gridcell">${decimal(stepMs(step), 1)}</span>
    <span role="gridcell" class=${step.saved_ms < 0 ? "bad" : ""}>${step.saved_ms == null ? "–" : decimal(step.saved_ms, 1)}</span>
  </div>`;
}
