// An answer, token by token: whose guess each was, what the target set itself, what was thrown away.

import { thrown, together } from "./trace.js";
import { classes, html, steady, useLayoutEffect } from "./ui.js";
import { decimal, percent, t } from "./words.js";

const CHUNK = 32; // steps that are drawn together; who is not touched is not drawn again
const SHOWN = 2; // thrown chains of a step that are shown; the inspector shows all

/** Which of the looks a drafter has; there are as many as colours. */
export const look = (source) => (source < 0 ? "own" : `d${source % 6}`);

/** Text of a piece, with the sign of a correction or a bonus token above its first letter. Ends of lines can be seen. */
export function shown({ text, own }) {
  const signed = own === "correction" || own === "bonus";
  const space = signed ? text.match(/^ */)[0] : "";
  const lines = text.slice(space.length).split("\n");
  const rest = lines.flatMap((line, i) => (i ? [html`<span class="turned" aria-hidden="true"></span>`, `\n${line}`] : [line]));
  return signed ? [space, html`<i class="sign" aria-hidden="true"></i>`, ...rest] : rest;
}

/** Whose a token is, in words. */
const whose = ({ text, source, own }, drafters) =>
  `${text}, ${source >= 0 ? t("legend.by", { name: drafters?.[source] ?? source }) : t(`own.${own ?? "plain"}`)}`;

/** One token. */
export function Token({ piece, id, active, beyond, drafters }) {
  const kind = piece.source >= 0 ? look(piece.source) : `own ${piece.own ?? ""}`;
  const looks = classes("tok", kind, piece.text === "" && "part", active && "active", beyond && "beyond");
  return html`<span class=${looks} id=${id} role="option" aria-selected=${active ? "true" : "false"}
    aria-label=${active ? whose(piece, drafters) : undefined}>${shown(piece)}</span>`;
}

/** The tokens that a step brought, one after the other; ``spelt`` makes the text of each. */
export const Brought = ({ pieces, spelt }) =>
  pieces.map((piece, i) => {
    const looks = classes("tok", piece.text === "" && "part", piece.source >= 0 ? look(piece.source) : `own ${piece.own ?? ""}`);
    return html`<span key=${i} class=${looks}>${shown({ ...piece, text: spelt(piece.text) })}</span>`;
  });

/** Guesses of a step that were thrown away where one of its tokens stands. */
export function Thrown({ step, at }) {
  const chains = thrown(step).filter((chain) => chain.at === at);
  const seen = chains.slice(0, SHOWN).map(({ nodes }) => html`<span class="tok gone ${look(step.source[nodes[0]])}" aria-hidden="true">${
    together(step, nodes.map((node) => step.tokens[node]))}</span>`);
  return chains.length > SHOWN ? [...seen, html`<span class="more" aria-hidden="true">+${chains.length - SHOWN}</span>`] : seen;
}

/** Some steps of an answer. */
const Chunk = steady(({ told, from, to, active, gone, name, length }) => {
  const steps = [];
  for (let n = from; n < to; n += 1) {
    const at = active?.n === n ? active.i : -1;
    steps.push(html`<span role="group" key=${n} class=${classes("step", at >= 0 && "active")} data-n=${n}>${told.pieces[n].map(
      (piece, i) => html`${gone && html`<${Thrown} step=${told.steps[n]} at=${i} />`}<${Token} key=${i} piece=${piece} id=${`${name}-${n}-${i}`}
        active=${i === at} beyond=${told.starts[n] + i >= length} drafters=${told.begin?.drafters} />`,
    )}</span>`);
  }
  return steps;
});

/** An answer whose tokens can be walked and opened.
 *
 * told: what came (see trace.js); gone: whether thrown guesses are shown; active: {n, i} or null; until: steps shown at
 * most; onActive({n, i}); onOpen(n); name: of this answer in the document; label: for screen readers.
 */
export function Answer({ told, gone, active, until, onActive, onOpen, name, label }) {
  const count = Math.min(told.steps.length, until ?? Infinity);
  useLayoutEffect(() => {
    if (active) document.getElementById(`${name}-${active.n}-${active.i}`)?.scrollIntoView({ block: "nearest" });
  }, [active?.n, active?.i]);

  const click = (event) => {
    const token = event.target.closest("[role=option]");
    const n = Number(event.target.closest("[data-n]")?.dataset.n);
    if (!Number.isInteger(n)) return;
    if (getSelection()?.toString()) return; // who marks text to copy it opens nothing
    const i = token ? Number(token.id.slice(token.id.lastIndexOf("-") + 1)) : 0;
    onActive({ n, i });
    onOpen(n);
  };
  const key = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !count) return;
    const here = active ?? { n: 0, i: -1 };
    const to = moved(told, count, here, event.key);
    if (to) onActive(to);
    else if ((event.key === "Enter" || event.key === " ") && active) onOpen(active.n);
    else return;
    event.preventDefault();
  };
  if (!count) return null;
  const blocks = [];
  let [from, start, chunks] = [0, 0, []];
  for (let to = 1; to <= count; to += 1) {
    const ends = to === count || (to - start >= CHUNK && told.pieces[to - 1].at(-1)?.text.endsWith("\n"));
    if (!ends && to - from < CHUNK) continue;
    const own = active && active.n >= from && active.n < to ? active : null;
    chunks.push(html`<${Chunk} key=${from} told=${told} from=${from} to=${to} active=${own} gone=${gone} name=${name}
      length=${told.length} />`);
    from = to;
    if (!ends) continue;
    blocks.push(html`<div class="block" role="presentation" key=${start}>${chunks}</div>`);
    [start, chunks] = [to, []];
  }
  return html`<div class="answer" role="listbox" tabindex="0" aria-label=${label} onClick=${click} onKeyDown=${key}
    aria-activedescendant=${active ? `${name}-${active.n}-${active.i}` : undefined}>${blocks}</div>`;
}

/** Where a key leads from a token, or null. */
function moved(told, count, { n, i }, key) {
  const last = (at) => Math.max(told.pieces[at].length - 1, 0);
  switch (key) {
    case "ArrowRight":
      if (i < last(n)) return { n, i: i + 1 };
      return n + 1 < count ? { n: n + 1, i: 0 } : null;
    case "ArrowLeft":
      if (i > 0) return { n, i: i - 1 };
      return n > 0 ? { n: n - 1, i: last(n - 1) } : null;
    case "ArrowDown":
      return n + 1 < count ? { n: n + 1, i: 0 } : null;
    case "ArrowUp":
      return n > 0 ? { n: n - 1, i: 0 } : null;
    case "Home":
      return { n: 0, i: 0 };
    case "End":
      return { n: count - 1, i: last(count - 1) };
    default:
      return null;
  }
}

/** What the signs of an answer mean: of those that are in it. */
export function Legend({ drafters, told }) {
  const { used, owns, sums } = told;
  const own = { correction: "correction", bonus: "bonus", plain: "own" };
  const line = (looks, said, own) => html`<li key=${looks}>
    <span class=${`tok ${looks}`}>${shown({ text: t("legend.token"), own })}</span> ${said}</li>`;
  return html`<ul class="legend" aria-label=${t("legend.title")}>
    ${drafters.flatMap((name, i) => (used.has(i) ? [line(look(i), t("legend.by", { name }))] : []))}
    ${Object.entries(own).flatMap(([kind, word]) => (owns.has(kind) ? [line(`own ${kind}`, t(`legend.${word}`), kind)] : []))}
    ${sums.drafted > sums.accepted ? line("gone", t("legend.gone")) : null}
  </ul>`;
}

/** The figures of an answer in one line. */
export function Figures({ figures: { speed, length, rate, saved } }) {
  const parts = [
    ["speed", speed === null ? null : t("figures.speed", { n: decimal(speed, 1) })],
    ["length", length === null ? null : t("figures.length", { n: decimal(length, 2) })],
    ["rate", rate === null ? t("figures.undrafted") : t("figures.rate", { n: percent(rate, 1) })],
    ["saved", saved === null ? null : t(saved < 0 ? "figures.lost" : "figures.saved", { n: decimal(Math.abs(saved), 0) })],
  ].filter(([, said]) => said);
  return html`<p class="figures">${parts.map(([name, said]) => html`<span data-figure=${name} key=${name}>${said}</span>`)}</p>`;
}
