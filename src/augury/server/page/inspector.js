// One step, taken apart: its tree, why each guess was kept or not, where the time went.

import { Parts } from "./charts.js";
import { Brought, look } from "./answer.js";
import { greedy, reasons } from "./laws.js";
import { Tree, visible } from "./tree.js";
import { accepted, alone, spelt, stepMs } from "./trace.js";
import { classes, dashed, html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";
import { decimal, t, whole } from "./words.js";

const PHASES = ["draft", "verify", "accept", "commit", "rest"];

/** The panel.
 *
 * walk: {of, begin, count, get(n) -> step or a promise of it}, the same ``of`` as long as it is the same request; n: of the
 * step; onMove(n); onClose().
 */
export function Inspector({ walk, n, onMove, onClose }) {
  const [found, setFound] = useState({});
  const [choice, setChoice] = useState(null); // {n, node}: of a step, and of none other
  const chosen = choice?.n === n ? choice.node : null;
  const box = useRef();
  const { of } = walk;
  useLayoutEffect(() => {
    let gone = false;
    const got = walk.get(n);
    if (typeof got?.then !== "function") setFound({ of, n, step: got });
    else {
      got.then(
        (step) => gone || setFound({ of, n, step }),
        (error) => gone || setFound({ of, n, error: error.message }),
      );
    }
    return () => (gone = true);
  }, [of, n]);
  useEffect(() => box.current?.focus({ preventScroll: true }), []);

  const choose = (node) => setChoice({ n, node });
  const move = (to) => to >= 0 && to < walk.count && onMove(to);
  const key = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
    const nodes = found.step ? found.step.tokens.length + (found.step.own ? 1 : 0) : 0;
    const keys = {
      ArrowRight: () => move(n + 1), ArrowLeft: () => move(n - 1), Escape: onClose, Home: () => move(0), End: () => move(walk.count - 1),
      ArrowDown: () => choose(Math.min((chosen ?? -1) + 1, nodes - 1)),
      ArrowUp: () => choose(Math.max((chosen ?? nodes) - 1, 0)),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  };
  const button = (sign, said, work, off = false) =>
    html`<button class="icon" aria-label=${said} title=${said} disabled=${off} onClick=${work}>${sign}</button>`;
  const fresh = found.n === n && found.of === of;
  return html`<section class="inspector" aria-label=${t("inspector.title")} tabindex="-1" ref=${box} onKeyDown=${key}>
    <header>
      <h2 aria-live="polite">${t("inspector.step", { n: whole(n + 1), of: whole(walk.count) })}</h2>
      <div class="buttons">
        ${button("←", t("inspector.before"), () => move(n - 1), n <= 0)}
        ${button("→", t("inspector.after"), () => move(n + 1), n + 1 >= walk.count)}
        ${button("✕", t("close"), onClose)}
      </div>
    </header>
    <div class=${classes("inside", !fresh && "stale")} aria-busy=${fresh ? "false" : "true"}>
      ${fresh && found.error ? html`<p class="bad">${found.error}</p>` : null}
      ${found.step && found.of === of ? html`<${Step} step=${found.step} begin=${walk.begin} chosen=${chosen} onChoose=${choose} />` : null}
      ${fresh && !found.step && !found.error ? html`<p class="dim">${t("inspector.gone")}</p>` : null}
    </div>
    <p class="hint">${t("inspector.keys")}</p>
  </section>`;
}

function Step({ step, begin, chosen, onChoose }) {
  const drafters = begin?.drafters ?? [];
  const summary = step.tokens.length
    ? t("inspector.summary", { accepted: accepted(step), drafted: step.tokens.length, emitted: step.emitted.length })
    : t("inspector.none");
  return html`
    <p class="lead" aria-live="polite">${summary}
      ${step.reason && html` <span class="dim">${t("inspector.reason", { reason: step.reason })}</span>`}</p>
    <p class="emitted"><span class="dim">${t("inspector.emits")}</span> <${Brought} pieces=${alone(step)}
      spelt=${(text) => text && visible(text.replaceAll("\n", "↵"))} /></p>
    <${Tree} step=${step} drafters=${drafters} chosen=${chosen} onChoose=${onChoose} told=${`${t("tree.told")} ${summary}`} />
    <h3>${t("inspector.time")} <small>${t("ms", { n: decimal(stepMs(step), 2) })}</small></h3>
    <${Times} step=${step} />
    <h3>${t("inspector.why")} <small>${t(`rule.${begin?.rule ?? "coupled"}`)}</small></h3>
    <p class="dim">${t(`rule.${greedy(begin) ? "coupled" : (begin?.rule ?? "coupled")}.told`)}</p>
    <${Reasons} step=${step} begin=${begin} chosen=${chosen} onChoose=${onChoose} />
    ${step.proposals?.length ? html`<h3>${t("inspector.offers")}</h3><${Offers} step=${step} drafters=${drafters} />` : null}
    <dl class="facts">
      <dt>${t("inspector.position")}</dt><dd>${whole(step.position)}</dd>
      <dt>${t("inspector.rows")}</dt><dd>${t("inspector.shared", { rows: step.rows, requests: step.requests ?? 1 })}</dd>
    </dl>`;
}

function Reasons({ step, begin, chosen, onChoose }) {
  const list = useRef();
  useEffect(() => {
    if (chosen !== null) list.current?.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  return html`<ol class="reasons" ref=${list}>${reasons(step, begin).map(({ node, fate, said }) => html`
    <li key=${node} class=${classes(dashed(fate), chosen === node && "chosen")} onClick=${() => onChoose(node)}
      aria-current=${chosen === node ? "true" : undefined}>
      <span class="label">${fate === "target" ? visible(spelt(step, step.next)) : visible(spelt(step, step.tokens[node]))}</span>
      <span>${said}${fate === "target" ? null : html` <span class="dim">${t("law.by", {
        name: begin?.drafters?.[step.source[node]] ?? step.source[node], survival: decimal(step.survival[node], 2),
      })}</span>`}</span>
    </li>`)}</ol>`;
}

function Times({ step }) {
  const parts = PHASES.map((name, i) => {
    const value = step[`${name}_ms`];
    return { name, value, look: `phase${i}`, said: `${t(`phase.${name}`)} ${t("ms", { n: decimal(value, 2) })}` };
  });
  const plain = step.plain_ms == null ? null : step.plain_ms * step.emitted.length;
  const whole = Math.max(stepMs(step), plain ?? 0);
  const saved = step.saved_ms;
  const plainly = t("inspector.plainly", { n: decimal(plain, 2) });
  return html`<div class="times">
    <${Parts} parts=${parts} whole=${whole} told=${parts.map((part) => part.said).join(", ")} />
    ${plain === null ? null : html`<${Parts} parts=${[{ name: "plain", value: plain, look: "plainly", said: plainly }]} whole=${whole} told=${plainly} />`}
    <ul class="names">${parts.map(({ look: own, said, name }) => html`<li key=${name}><span class="swatch ${own}"></span>${said}</li>`)}</ul>
    ${plain === null ? null : html`<p>
      ${t("inspector.plain", { tokens: step.emitted.length, each: decimal(step.plain_ms, 2), n: decimal(plain, 2) })}${" "}
      <strong>${t(saved < 0 ? "inspector.lost" : "inspector.saved", { n: decimal(Math.abs(saved), 2) })}</strong></p>`}
  </div>`;
}

function Offers({ step, drafters }) {
  return html`<ul class="offers">${step.proposals.map((one, i) => html`<li key=${i}><span class="tok ${look(drafters.indexOf(one.drafter))}">${one.drafter}</span> ${
    one.unasked ? t("offer.unasked", { why: one.unasked }) : t("offer.nodes", { n: one.nodes, ms: decimal(one.ms, 2) })}${
    one.fault ? html` <span class="bad">${t("offer.fault", { why: one.fault })}</span>` : null}</li>`)}</ul>`;
}
