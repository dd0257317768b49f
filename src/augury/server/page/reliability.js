// How far each drafter is to be relied on: the fold of all that was traced.

import { look } from "./answer.js";
import { Columns, Lines, Parts } from "./charts.js";
import { link } from "./link.js";
import { Refusal, json } from "./net.js";
import { BEHIND_MS, Barred, later, named } from "./requests.js";
import { html, useState, useStore, useTurns } from "./ui.js";
import { decimal, percent, t, whole } from "./words.js";

const LOOK_MS = 3000;
const TENTHS = [0, 0.2, 0.4, 0.6, 0.8, 1];
const COLUMNS = ["drafter", "asked", "offered", "drafted", "accepted", "hit", "rate", "error", "share", "saved", "faults"];
const PHASES = ["draft", "verify", "accept", "commit", "rest"];

export function Reliability() {
  const { era, header, barred, phase } = useStore(link);
  const [found, setFound] = useState(null);
  const [fault, setFault] = useState(null);
  useTurns(async (gone) => {
    if (barred || !header) return undefined;
    try {
      const got = await json("/trace/reliability");
      if (!gone()) setFound(got);
      setFault(null);
      return got.behind ? BEHIND_MS : header.live === false ? undefined : LOOK_MS;
    } catch (error) {
      if (error instanceof Refusal) setFault(error.message);
      return later(error);
    }
  }, [era, Boolean(header)]);
  const title = html`<h1>${t("view.reliability")}</h1>`;
  if (barred) return html`<div class="main">${title}<${Barred} barred=${barred} /></div>`;
  if (fault) return html`<div class="main">${title}<p class="bad">${fault}</p></div>`;
  if (!found) return html`<div class="main">${title}<p class="dim">${t(header ? "reads" : `link.${phase}`)}</p></div>`;
  if (!found.steps) return html`<div class="main">${title}<p class="lead">${t("trace.empty")}</p></div>`;
  return html`<div class="main wide">${title}<p class="lead">${t("reliability.lead")}</p><${All} found=${found} /></div>`;
}

function All({ found }) {
  // In the engine's order, so that a drafter has the colour it has elsewhere.
  const order = link.value.header?.drafters ?? [];
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  const drafters = Object.entries(found.drafters).sort(([a], [b]) => place(a) - place(b)).map(([name, of]) => ({ name, look: place(name), ...of }));
  const spent = PHASES.reduce((sum, phase) => sum + (found.ms[phase] ?? 0), 0);
  const phases = PHASES.map((name, i) => {
    const value = found.ms[name] ?? 0;
    return { name, value, look: `phase${i}`, said: `${t(`phase.${name}`)} ${percent(value / (spent || 1), 1)}` };
  });
  const binned = (bin) => [bin.stated, bin.accepted, t("plot.nodes", { n: bin.nodes })];
  const dash = (value, said) => (value == null ? "–" : said(value));
  return html`
    <dl class="tiles">
      <${Tile} name="requests" said=${whole(found.requests)} />
      <${Tile} name="steps" said=${whole(found.steps)} />
      <${Tile} name="length" said=${dash(found.mean_acceptance_length, (v) => decimal(v, 2))} />
      <${Tile} name="accepted" said=${dash(found.draft_acceptance_rate, (v) => percent(v, 1))} />
      <${Tile} name="saved" said=${dash(found.saved_ms, (v) => t("seconds", { n: decimal(v / 1e3, 2) }))} />
    </dl>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("reliability.table")}><table class="list">
      <thead><tr>${COLUMNS.map((name) => html`<th key=${name} scope="col">${t(`by.${name}`)}</th>`)}</tr></thead>
      <tbody>${drafters.map((of) => html`<tr key=${of.name}><th scope="row"><span class="tok ${look(of.look)}">${of.name}</span></th>
        <td>${whole(of.asked)}</td><td>${whole(of.offered)}</td><td>${whole(of.drafted)}</td><td>${whole(of.accepted)}</td>
        <td>${dash(of.hit_rate, (v) => percent(v, 1))}</td><td>${dash(of.acceptance_rate, (v) => percent(v, 1))}</td>
        <td>${dash(of.calibration_error, (v) => decimal(v, 3))}</td><td>${spent ? percent(of.ms / spent, 1) : "–"}</td>
        <td class=${of.saved_ms < 0 ? "bad" : ""}>${dash(of.saved_ms, (v) => t("ms", { n: decimal(v, 0) }))}</td><td>${whole(of.faults)}</td></tr>`)}</tbody></table></div>
    <p class="dim small">${t("reliability.how")}</p>
    <div class="charts">
      <${Lines} title=${t("plot.calibration")} xLabel=${t("plot.stated")} yLabel=${t("plot.came")} xs=${TENTHS} ys=${TENTHS} diagonal height=${300}
        form=${(v) => percent(v, 0)} formX=${(v) => percent(v, 0)} told=${t("plot.calibration.told")}
        series=${drafters.filter((of) => of.calibration.length).map((of) => ({ name: of.name, look: of.look, kind: "d", points: of.calibration.map(binned) }))} />
      ${drafters.filter((of) => of.runs.length).map((of) => html`<${Columns} key=${of.name} title=${t("plot.runs", { name: of.name })}
        xLabel=${t("plot.accepted")} look=${of.look} kind="d" height=${220} bars=${gathered(of.runs)} told=${gathered(of.runs).map((bar) => `${bar.name}: ${bar.value}`).join(", ")} />`)}
      ${found.over_time.length > 1 && html`<${Over} found=${found} />`}
    </div>
    <h2>${t("reliability.time")}</h2>
    <${Parts} parts=${phases} told=${`${t("reliability.time")}: ${phases.map((one) => one.said).join(", ")}`} />
    <ul class="names">${phases.map((one) => html`<li key=${one.name}><span class="swatch ${one.look}"></span>${one.said}</li>`)}</ul>
    <${Undrafted} reasons=${found.undrafted} of=${found.steps} />`;
}

/** Runs so long that few are: together at the end. */
function gathered(runs) {
  const most = 12;
  const bars = runs.slice(0, most).map((value, i) => ({ name: String(i), value }));
  const rest = runs.slice(most).reduce((sum, value) => sum + value, 0);
  return rest ? [...bars, { name: `${most}+`, value: rest }] : bars;
}

function Over({ found }) {
  const zero = found.over_time[0].at;
  const x = (span) => (span.at - zero) / 1e3;
  const speeds = (label) =>
    found.over_time.filter((span) => label in span.tokens_per_second).map((span) => [x(span), span.tokens_per_second[label]]);
  const labels = [...new Set(found.over_time.flatMap((span) => Object.keys(span.tokens_per_second)))].sort();
  const common = { xLabel: t("plot.seconds"), marks: false, gap: (1.5 * found.span_ms) / 1e3 };
  return html`
    <${Lines} title=${t("plot.lengths")} yLabel="" ...${common}
      series=${[{ name: t("column.length"), look: 0, points: found.over_time.map((span) => [x(span), span.acceptance_length]) }]} />
    <${Lines} title=${t("plot.speeds")} yLabel=${t("plot.speed")} ...${common}
      series=${labels.map((label, i) => ({ name: named(label), look: i, points: speeds(label) }))} />`;
}

export const Tile = ({ name, said, more }) => html`<div><dt>${t(`tile.${name}`)}</dt>
  <dd data-figure=${name}>${said}${more && html` <small>${more}</small>`}</dd></div>`;

/** Why steps had no draft. */
export function Undrafted({ reasons, of }) {
  const rows = Object.entries(reasons ?? {}).sort(([, a], [, b]) => b - a);
  if (!rows.length) return null;
  return html`<h2>${t("undrafted")}</h2><ul class="reasons-list">${rows.map(([why, steps]) => html`<li key=${why}>
    <span>${why}</span> <strong>${whole(steps)}</strong> <span class="dim">${percent(steps / of, 1)}</span></li>`)}</ul>`;
}
