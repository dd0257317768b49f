// The draft tree of a step, drawn from left to right: what was guessed, by whom, what became of it.

import { signed, spelt, verdicts } from "./trace.js";
import { classes, dashed, html } from "./ui.js";
import { decimal, t } from "./words.js";

const [BOX, ROW, GAP, PAD] = [42, 54, 30, 3];
const MOST = 18; // letters of a token that are shown

const wide = (text) => [...text].reduce((sum, c) => sum + (/[ᄀ-ᅟ⺀-꓏가-힣豈-﫿︰-﹏＀-｠￠-￦]/u.test(c) ? 2 : 1), 0);

/** A token's spelling as a box shows it: spaces can be seen, and a long one is cut. */
export function visible(spelling) {
  const letters = [...signed(spelling).replace(/‹[^›]*›| /g, (part) => (part === " " ? "·" : part))];
  return letters.length > MOST ? `${letters.slice(0, MOST - 1).join("")}…` : letters.join("") || "∅";
}

/** Where each box stands. The root is node -1, the target's own token node n; an accepted path goes straight. */
export function layout(step) {
  const count = step.tokens.length;
  const own = step.own ? count : null;
  const kept = new Set(step.path);
  const below = new Map();
  const hang = (parent, node) => below.set(parent, [...(below.get(parent) ?? []), node]);
  step.parents.forEach((parent, node) => hang(parent, node));
  if (own !== null) hang(step.path.at(-1) ?? -1, own);
  // What was kept comes first, so that it is one straight line at the top; the others keep their order.
  for (const children of below.values()) children.sort((a, b) => (b === own || kept.has(b)) - (a === own || kept.has(a)));
  const places = new Map();
  let row = 0;
  const todo = [[-1, 0, true]];
  while (todo.length) {
    const [node, depth, first] = todo.pop();
    if (!first) row += 1;
    places.set(node, { depth, row });
    (below.get(node) ?? []).map((child, i) => [child, depth + 1, i === 0]).reverse().forEach((one) => todo.push(one));
  }
  return { places, rows: row + 1, own, below };
}

/** The texts of a box: the token, and the figures of it. */
function box(step, node, own) {
  if (node === -1) return { text: visible(spelt(step, step.root)), more: t("tree.root") };
  if (node === own) return { text: visible(spelt(step, step.next)), more: t(`own.${step.own}`) };
  const p = step.p?.[node];
  const q = step.q?.[node];
  const more = [`S ${decimal(step.survival[node], 2)}`, p == null ? null : `p ${decimal(p, 2)}`, q == null ? null : `q ${decimal(q, 2)}`];
  return { text: visible(spelt(step, step.tokens[node])), more: more.filter(Boolean).join("  ") };
}

const SIGNS = { accepted: "✓", rejected: "✗", "not reached": "–", "cut off": "✂" };

/** The picture. chosen: a node or null; onChoose(node). */
export function Tree({ step, drafters, chosen, onChoose, told }) {
  const { places, rows, own } = layout(step);
  const fate = verdicts(step);
  const boxes = new Map([...places.keys()].map((node) => [node, box(step, node, own)]));
  const widths = [];
  for (const [node, { depth }] of places) {
    const { text, more } = boxes.get(node);
    const need = Math.max(wide(text) * 7.6 + (node < 0 ? 20 : 38), wide(more) * 6.1 + 22, 52);
    widths[depth] = Math.max(widths[depth] ?? 0, need);
  }
  const lefts = widths.reduce((found, width) => [...found, found.at(-1) + width + GAP], [PAD]);
  const at = (node) => ({ x: lefts[places.get(node).depth], y: PAD + places.get(node).row * ROW, width: widths[places.get(node).depth] });
  const edges = [];
  for (const node of places.keys()) {
    if (node === -1) continue;
    const parent = node === own ? (step.path.at(-1) ?? -1) : step.parents[node];
    const [a, b] = [at(parent), at(node)];
    const [x1, y1, x2, y2] = [a.x + a.width, a.y + BOX / 2, b.x, b.y + BOX / 2];
    const bend = x1 + GAP / 2;
    const line = y1 === y2 ? `M${x1} ${y1}H${x2}` : `M${x1} ${y1}H${bend - 6}Q${bend} ${y1} ${bend} ${y1 + 6}V${y2 - 6}Q${bend} ${y2} ${bend + 6} ${y2}H${x2}`;
    edges.push({ node, line, kind: node === own ? "target" : fate[node] });
  }
  edges.sort((a, b) => (a.kind === "accepted" || a.kind === "target") - (b.kind === "accepted" || b.kind === "target"));
  const [width, height] = [lefts.at(-1) - GAP + PAD, rows * ROW - (ROW - BOX) + 2 * PAD];
  return html`<div class="drawn" tabindex="0" role="group" aria-label=${t("tree.label")}>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${told}>
      ${edges.map(({ node, line, kind }) => html`<path key=${`e${node}`} class=${`edge ${dashed(kind)}`} d=${line} />`)}
      ${[...places.keys()].map((node) => {
        const { x, y, width: w } = at(node);
        const { text, more } = boxes.get(node);
        const kind = node === -1 ? "root" : node === own ? "target" : fate[node];
        const by = node >= 0 && node !== own ? step.source[node] : null;
        return html`<g key=${node} class=${classes("node", dashed(kind), chosen === node && "chosen", by !== null && `d${by % 6}`)} transform=${`translate(${x} ${y})`} onClick=${() => onChoose(node)}>
          <title>${by === null ? more : `${drafters[by] ?? by}: ${t(`fate.${fate[node]}`)}`}</title>
          <rect class="box" width=${w} height=${BOX} rx="6" />
          ${by !== null && html`<path class=${`stripe s${by % 5}`} d=${`M5 7V${BOX - 7}`} />`}
          <text x=${node === -1 ? 10 : 13} y="18" class="token">${text}</text>
          <text x=${node === -1 ? 10 : 13} y="34" class="more">${more}</text>
          ${by !== null && html`<text x=${w - 8} y="18" class="sign">${SIGNS[fate[node]]}</text>`}
          ${node === own && html`<text x=${w - 8} y="18" class="sign">${{ bonus: "+", correction: "▾" }[step.own]}</text>`}
        </g>`;
      })}
    </svg>
  </div>`;
}
