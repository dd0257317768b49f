// Plots as SVG: lines and bars, in the palette and the manner of augury.picture, with words in the reader's language.

import { html } from "./ui.js";

const WIDTH = 560;
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 14, 16, 44];
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "12 4"]; // one less than colours: no two of thirty lines are alike

/** Round values from at or below low to at or above high: steps of 1, 2 or 5 times a power of ten. */
export function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / 4));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => span / size <= 6);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

export const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return String(+value.toPrecision(6));
};

/** Lines at the ticks of an upright axis, and their values. */
const Upright = ({ at, up, form }) => at.map((y) => html`<g key=${y}>
  <path class="grid" d=${`M${LEFT} ${up(y)}H${WIDTH - RIGHT}`} /><text x=${LEFT - 8} y=${up(y) + 4} class="end">${form(y)}</text></g>`);

/** Whether a point is joined to the one before it. */
const joined = (points, i, gap) => i > 0 && i < points.length && points[i][0] - points[i - 1][0] <= gap;

function Marker({ number, x, y }) {
  if (number % 3 === 0) return html`<circle cx=${x} cy=${y} r="3" />`;
  if (number % 3 === 1) return html`<rect x=${x - 3} y=${y - 3} width="6" height="6" />`;
  return html`<path d=${`M${x} ${y - 4}l4 7h-8z`} />`;
}

/** Lines over two axes.
 *
 * series: [{name, points: [[x, y]], look: a number, kind: "c", or "d" of drafters}]; told: what a screen reader says;
 * diagonal: a dashed line from corner to corner; xs, ys: the axes' ticks where they are given; least: what the upright axis reaches at least; form: how a value
 * is written; gap: the distance along x beyond which points are not joined.
 */
export function Lines({
  title, xLabel, yLabel, series, told, xs, ys, diagonal, least = 0, gap = Infinity, marks = true, height = 240, form = short, formX = short,
}) {
  const all = series.flatMap((one) => one.points);
  const atX = xs ?? ticks(Math.min(...all.map(([x]) => x)), Math.max(...all.map(([x]) => x)));
  const atY = ys ?? ticks(Math.min(0, ...all.map(([, y]) => y)), Math.max(least, ...all.map(([, y]) => y)));
  const round = (value) => Math.round(value * 10) / 10;
  const along = (x) => round(LEFT + ((x - atX[0]) / (atX.at(-1) - atX[0])) * (WIDTH - LEFT - RIGHT));
  const up = (y) => round(height - BOTTOM - ((y - atY[0]) / (atY.at(-1) - atY[0])) * (height - TOP - BOTTOM));
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${told ? `${title}. ${told}` : title}>
      <${Upright} at=${atY} up=${up} form=${form} />
      ${atX.map((x) => html`<g key=${`x${x}`}><path class="grid" d=${`M${along(x)} ${height - BOTTOM}v5`} />
        <text x=${along(x)} y=${height - BOTTOM + 19} class="middle">${formX(x)}</text></g>`)}
      ${diagonal && html`<path class="mark" d=${`M${along(atX[0])} ${up(atY[0])}L${along(atX.at(-1))} ${up(atY.at(-1))}`} />`}
      ${series.map(({ name, points, look, kind = "c" }) => html`<g class=${`${kind}${look % 6}`} key=${name}>
        <path class="line" stroke-dasharray=${DASHES[look % DASHES.length]}
          d=${points.map(([x, y], i) => `${joined(points, i, gap) ? "L" : "M"}${along(x)} ${up(y)}`).join("")} />
        ${points.filter((_, i) => marks || !(joined(points, i, gap) || joined(points, i + 1, gap))).map(([x, y, more]) => html`<g class="point">
          <title>${name}: ${formX(x)}, ${form(y)}${more ? ` (${more})` : ""}</title><${Marker} number=${look} x=${along(x)} y=${up(y)} /></g>`)}
      </g>`)}
      <text x=${(LEFT + WIDTH - RIGHT) / 2} y=${height - 4} class="middle dim">${xLabel}</text>
      <text x=${WIDTH - RIGHT} y="9" class="end dim">${yLabel}</text>
    </svg>
    ${series.length > 1 && html`<${Names} series=${series} />`}
  </figure>`;
}

/** The names of lines, with their looks. */
export function Names({ series }) {
  return html`<ul class="names">${series.map(({ name, look, kind = "c" }) => html`<li key=${name}>
    <svg class=${`${kind}${look % 6}`} viewBox="0 0 28 12" aria-hidden="true">
      <path class="line" stroke-dasharray=${DASHES[look % DASHES.length]} d="M0 6H28" /><${Marker} number=${look} x=${14} y=${6} />
    </svg>${name}</li>`)}</ul>`;
}

/** Upright bars, as of a histogram: bars is [{name, value}]. */
export function Columns({ title, xLabel, bars, look, kind = "c", height = 200, told, form = short }) {
  const at = ticks(0, Math.max(1e-9, ...bars.map((bar) => bar.value)));
  const wide = (WIDTH - LEFT - RIGHT) / Math.max(bars.length, 1);
  const up = (y) => height - BOTTOM - (y / at.at(-1)) * (height - TOP - BOTTOM);
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${told ? `${title}. ${told}` : title}>
      <${Upright} at=${at} up=${up} form=${form} />
      <g class=${`${kind}${look % 6}`}>${bars.map(({ name, value }, i) => html`<g key=${name}><title>${name}: ${form(value)}</title>
        <rect class="bar" x=${LEFT + wide * i + wide * 0.14} width=${wide * 0.72} y=${up(value)} height=${height - BOTTOM - up(value)} rx="2" /></g>`)}</g>
      ${bars.map(({ name }, i) => html`<text key=${name} x=${LEFT + wide * (i + 0.5)} y=${height - BOTTOM + 17} class="middle">${name}</text>`)}
      <text x=${(LEFT + WIDTH - RIGHT) / 2} y=${height - 4} class="middle dim">${xLabel}</text>
    </svg>
  </figure>`;
}

/** One bar in parts: parts is [{name, value, said, look}], along a scale that ends at whole. */
export function Parts({ parts, whole, told }) {
  const sum = parts.reduce((total, part) => total + part.value, 0);
  const scale = 1000 / (Math.max(whole ?? 0, sum) || 1);
  let at = 0;
  return html`<svg class="parts" viewBox="0 0 1000 22" preserveAspectRatio="none" role="img" aria-label=${told}>
    ${parts.map(({ name, value, said, look }) => {
      const x = at;
      at += value * scale;
      return html`<g class=${look} key=${name}><title>${said}</title>
        <rect class="bar" x=${x} y="0" width=${Math.max(value * scale - 1.5, 0)} height="22" /></g>`;
    })}
  </svg>`;
}
