// What was traced: a list of requests, and one of them with its steps.

import { look } from "./answer.js";
import { Downloads } from "./downloads.js";
import { Inspector } from "./inspector.js";
import { link, suspect, unlock } from "./link.js";
import { Refusal, ask, events, json } from "./net.js";
import { Rows, Steps } from "./steps.js";
import { classes, html, store, useEffect, useRef, useState, useStore, useTurns } from "./ui.js";
import { decimal, percent, t, whole } from "./words.js";

const LISTED = 200;
const COLUMNS = ["id", "label", "began", "tokens", "steps", "length", "accepted", "speed", "saved", "finish"];
const TEXTS = ["label", "finish"]; // columns of words
const FOLLOW_MS = 400;

/** Until the server is asked again that has not looked at all of its trace yet. */
export const BEHIND_MS = 1000;

/** The list, and what is open of it; kept while other views are looked at. */
const traced = store({ requests: [], error: null });

/** Look at the list; gives when to look again (see turns). */
async function list() {
  try {
    const { requests, behind } = await json(`/trace/requests?limit=${LISTED}`);
    traced.set({ requests, error: null });
    return behind ? BEHIND_MS : undefined;
  } catch (error) {
    if (error instanceof Refusal) traced.set({ requests: [], error });
    return later(error);
  }
}

/** When to ask again what was not answered; never what was refused for good. */
export const later = (error) => (error instanceof Refusal && error.status < 500 ? undefined : BEHIND_MS);

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
          for await (const { id, event, data } of events(response)) {
            if (event === "header" && JSON.parse(data).unix !== link.value.header?.unix) suspect();
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
  useLive(era, useTurns(list, [era]));
  return html`<div class="main wide">
    <div class="head"><h1>${t("view.requests")}</h1><${Downloads} /></div>
    <p class="dim">${t("trace.of", { model: header.model, source: header.source })} ${header.text ? "" : t("trace.noText")}</p>
    ${error && html`<p class="bad">${error.message}</p>`}
    ${requests.length === 0 && !error ? html`<p class="lead">${t("trace.empty")}</p>` : html`
    <div class="scroll" tabindex="0" role="region" aria-label=${t("view.requests")}><table class="list">
      <thead><tr>${COLUMNS.map((name) => html`<th key=${name} scope="col" class=${TEXTS.includes(name) ? "text" : ""}>${t(`column.${name}`)}</th>`)}</tr></thead>
      <tbody>${requests.map((one) => html`<tr key=${one.id}>
        <th scope="row"><a href=${`#/requests/${one.id}`}>${one.id}</a></th>
        <td class="text">${named(one.label)} <span class="dim">${one.rule === "coupled" ? "" : String(one.rule)}</span></td>
        <td>${clock(header, one.at)}</td><td>${whole(one.tokens)}</td><td>${whole(one.steps)}</td>
        <td>${one.acceptance_length == null ? "–" : decimal(one.acceptance_length, 2)}</td>
        <td>${one.drafted ? percent(one.accepted / one.drafted, 1) : "–"}</td>
        <td>${one.tokens_per_second == null ? "–" : decimal(one.tokens_per_second, 1)}</td>
        <td>${one.saved_ms == null ? "–" : t("ms", { n: decimal(one.saved_ms, 0) })}</td>
        <td class="text">${one.finish
          ? html`<span class=${one.error ? "bad" : ""} title=${one.error ?? ""}>${t(`finish.${one.finish}`)}</span>`
          : html`<span class="live">${t("finish.runs")}</span>`}</td>
      </tr>`)}</tbody></table></div>`}
    ${requests.length === LISTED && html`<p class="dim">${t("trace.latest", { n: LISTED })}</p>`}
  </div>`;
}

/** The label of a run, in the reader's words where there are some. */
export const named = (label) => (label === "plain" || label === "drafted" ? t(`race.${label}`) : String(label));

const clock = (header, at) => new Date(header.unix * 1e3 + at).toLocaleTimeString(document.documentElement.lang);

/** One request. The address says which step is open, so that a link leads to it. */
function One({ id, n, era }) {
  const [, turn] = useState(0);
  const held = useRef();
  const [fault, setFault] = useState(null);
  held.current ??= new Steps(id, () => turn((v) => v + 1));
  const steps = held.current;
  const { header } = useStore(link);
  const { requests } = useStore(traced);
  useLive(era, useTurns(async () => {
    const wait = await list();
    try {
      if (!steps.pages.size) await steps.get(n ?? 0);
      else if (!steps.end) await steps.grow();
      setFault(null);
      return wait;
    } catch (error) {
      setFault(error.message);
      return later(error);
    }
  }, []));
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
    ${n !== null && count > 0 && html`<aside class="side" aria-label=${t("inspector.title")}>
      <${Inspector} walk=${{ of: steps, begin, count, get: (at) => steps.get(at) }} n=${n} onMove=${go} onClose=${close} /></aside>`}
  </div>`;
}

function About({ begin, told, end, header }) {
  const law = Object.entries(begin.sampling ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
  return html`<dl class="facts across">
    <div><dt>${t("column.began")}</dt><dd>${clock(header, begin.at)}</dd></div>
    <div><dt>${t("request.prompted")}</dt><dd>${t("request.tokens", {
      n: whole(begin.prompt_tokens), cached: whole(begin.cached_tokens ?? 0), ms: decimal(begin.prefill_ms ?? 0, 1),
    })}</dd></div>
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

