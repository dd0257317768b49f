// How busy the server is, now and in the last minutes.

import { Lines, short } from "./charts.js";
import { link } from "./link.js";
import { Refusal, json } from "./net.js";
import { Tile, Undrafted } from "./reliability.js";
import { Barred } from "./requests.js";
import { html, store, useState, useStore, useTurns } from "./ui.js";
import { decimal, percent, t, whole } from "./words.js";

const LOOK_MS = 1000;
const KEPT = 180; // looks
const TOTALS = ["generation_tokens", "prompt_tokens", "cached_tokens", "steps", "drafted", "accepted"];
const SPANS = [30, 60, 120, 180, 360]; // seconds that the plots may show

/** What was seen, the latest last; of one server. */
const seen = store([]);
let era = 0;

export function Load() {
  const { era: now, header, barred, phase, file } = useStore(link);
  const looks = useStore(seen);
  const [fault, setFault] = useState(null);
  useTurns(async () => {
    if (barred || !header) return undefined;
    if (era !== now) seen.set([]);
    era = now;
    try {
      const load = await json("/trace/load");
      seen.set([...seen.value, { ...load, seen: performance.now() }].slice(-KEPT));
      setFault(null);
    } catch (error) {
      if (error instanceof Refusal) setFault(error.message);
    }
    return LOOK_MS;
  }, [now, Boolean(header)]);
  const title = html`<h1>${t("view.load")}</h1>`;
  if (barred) return html`<div class="main">${title}<${Barred} barred=${barred} /></div>`;
  if (fault) return html`<div class="main">${title}<p class="bad">${fault}</p></div>`;
  const last = looks.at(-1);
  if (!last) return html`<div class="main">${title}<p class="dim">${t(header ? "reads" : `link.${phase}`)}</p></div>`;
  const x = (one) => (one.seen - last.seen) / 1e3;
  const line = (name, look, of) => ({ name: t(`tile.${name}`), look, points: looks.filter((one) => of(one) != null).map((one) => [x(one), of(one)]) });
  const fact = (said, n) => html`<div key=${said}><dt>${said}</dt><dd>${whole(n)}</dd></div>`;
  const { recent, totals } = last;
  const span = SPANS.find((one) => -x(looks[0]) <= one) ?? SPANS.at(-1);
  const common = {
    xLabel: t("plot.ago"), yLabel: "", marks: false, height: 200, formX: (v) => short(Math.abs(v)),
    xs: [-1, -2 / 3, -1 / 3, 0].map((part) => Math.round(part * span)),
  };
  return html`<div class="main wide">${title}
    <dl class="tiles">
      <${Tile} name="running" said=${whole(last.running)} more=${last.slots ? t("load.of", { n: last.slots }) : ""} />
      <${Tile} name="waiting" said=${whole(last.waiting)} />
      <${Tile} name="kv" said=${percent(last.kv_used, 0)} />
      <${Tile} name="speed" said=${decimal(recent.tokens_per_second, 1)} />
      <${Tile} name="length" said=${recent.acceptance_length == null ? "–" : decimal(recent.acceptance_length, 2)} />
      <${Tile} name="accepted" said=${recent.draft_acceptance_rate == null ? "–" : percent(recent.draft_acceptance_rate, 1)} />
      <${Tile} name="rows" said=${recent.rows == null ? "–" : decimal(recent.rows, 1)} />
    </dl>
    <p class="dim small">${t("load.how", { n: recent.window_s })}</p>
    <div class="charts">
      <${Lines} title=${t("load.requests")} ...${common} form=${short} least=${4} series=${[line("running", 0, (one) => one.running), line("waiting", 1, (one) => one.waiting)]} />
      <${Lines} title=${t("tile.speed")} ...${common} least=${50} series=${[line("speed", 2, (one) => one.recent.tokens_per_second)]} />
      <${Lines} title=${t("tile.length")} ...${common} least=${4} series=${[line("length", 3, (one) => one.recent.acceptance_length)]} />
      <${Lines} title=${t("tile.kv")} ...${common} ys=${[0, 0.25, 0.5, 0.75, 1]} form=${(v) => percent(v, 0)} series=${[line("kv", 4, (one) => one.kv_used)]} />
    </div>
    <${Undrafted} reasons=${recent.undrafted} of=${recent.steps} />
    ${totals && html`<h2>${t("load.totals")}</h2><dl class="facts across">
      ${TOTALS.map((name) => fact(t(`total.${name}`), totals[name]))}
      ${Object.entries(totals.requests).flatMap(([why, n]) => (n ? [fact(t("total.finished", { why: t(`finish.${why}`) }), n)] : []))}
      ${Object.entries(totals.refused).flatMap(([why, n]) => (n ? [fact(t("total.refused", { why }), n)] : []))}
    </dl>`}
  </div>`;
}
