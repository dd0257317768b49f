// Why each guess was kept or not, with the numbers: the acceptance rule of a step spelled out.

import { spelt, verdicts } from "./trace.js";
import { visible } from "./tree.js";
import { t } from "./words.js";

const quoted = (spelling) => `“${visible(spelling)}”`;

/** What is said of each node, in the order the rule looks at them: [{node, fate, said}], the target's own token last. */
export function reasons(step, begin) {
  const rule = greedy(begin) ? "coupled" : begin.rule;
  const fate = verdicts(step);
  const said = (one, node) => (one === "not reached" ? unreached(step, node, fate) : judged(step, node, one, rule, begin));
  const told = fate.map((one, node) => ({ node, fate: one, said: said(one, node) }));
  const own = ownToken(step, rule, fate);
  return own ? [...told, own] : told;
}

function unreached(step, node, fate) {
  const parent = step.parents[node];
  if (parent >= 0 && fate[parent] !== "accepted" && fate[parent] !== "cut off") {
    return t("law.behind", { parent: quoted(spelt(step, step.tokens[parent])) });
  }
  return t("law.settled");
}

function judged(step, node, fate, rule, begin) {
  const guess = quoted(spelt(step, step.tokens[node]));
  const verdict = t(fate === "cut off" ? "law.cut" : `fate.${fate}`);
  if (rule === "rejection") return `${ratio(step, node, guess)} ${verdict}.`;
  if (rule === "block") return `${blocked(step, node, guess)} ${verdict}.`;
  const target = quoted(spelt(step, after(step, step.parents[node])));
  const p = step.p?.[node];
  const same = fate === "rejected" ? "differs" : "same";
  if (greedy(begin) || p == null) return t(`law.${greedy(begin) ? "greedy" : "coupled"}.${same}`, { target, guess, verdict });
  return t(`law.coupled.${same}.p`, { target, guess, verdict, p: share(p) });
}

/** The target's own token behind a node on the path: the path's next one, or at its end the own token. */
function after(step, node) {
  const next = step.path[node === -1 ? 0 : step.path.indexOf(node) + 1];
  return next === undefined ? step.next : step.tokens[next];
}

/** Whether the likeliest token was taken everywhere: then each rule keeps a guess that is this very token, and no other. */
export const greedy = (begin) => (begin?.sampling?.temperature ?? 0) === 0;

/** Recursive rejection of one child: the guess against what its earlier siblings left of p. */
function ratio(step, node, guess) {
  const elder = step.parents.flatMap((parent, other) => (parent === step.parents[node] && other < node ? [other] : []));
  const [p, q, coin] = [step.p?.[node], step.q?.[node], step.coins?.[node]];
  const fell = coin == null ? "" : ` ${t("law.coin", { coin: share(coin) })}`;
  if (p == null) return `${t("law.noP", { guess })}${fell}`;
  // What a guess that copies left of p is known from p alone; what a sampled one left needs its whole law.
  if (elder.some((one) => step.q?.[one] != null || step.p[one] == null)) return `${t("law.residual", { guess })}${fell}`;
  const gone = elder.reduce((sum, one) => sum + step.p[one], 0);
  const left = gone ? p / Math.max(1 - gone, 1e-12) : p;
  const behind = gone ? `${t("law.left", { p: share(p), gone: share(gone), left: share(left) })} ` : "";
  if (q == null) return `${behind}${t("law.copied", { guess, left: share(left) })}${fell}`;
  const bar = Math.min(1, left / q);
  return `${behind}${t("law.ratio", { guess, p: share(left), q: share(q), bar: share(bar) })}${fell}`;
}

/** A chain judged as a whole: the joint ratio up to a node. */
function blocked(step, node, guess) {
  const coin = step.coins?.[node];
  const fell = coin == null ? "" : ` ${t("law.coin", { coin: share(coin) })}`;
  let kept = 1;
  for (let i = 0; i <= node; i += 1) {
    if (step.p?.[i] == null) return `${t("law.noP", { guess })}${fell}`;
    kept = Math.min(1, (kept * step.p[i]) / (step.q?.[i] ?? 1));
  }
  return `${t("law.block", { guess, p: share(step.p[node]), q: share(step.q?.[node] ?? 1), kept: share(kept) })}${fell}`;
}

function ownToken(step, rule, fate) {
  if (!step.own) return null;
  const token = quoted(spelt(step, step.next));
  const sampled = fate.some((one, node) => one === "rejected" && step.q?.[node] != null);
  let said;
  if (step.own === "plain") said = t("law.plain", { token });
  else if (step.own === "bonus") said = t("law.bonus", { token });
  else if (rule === "coupled") said = t("law.correction", { token });
  else said = t(sampled ? "law.drawnResidual" : "law.drawnRest", { token });
  return { node: step.tokens.length, fate: "target", said };
}

/** A probability for the eye: three decimals, and more where these would say 0 or 1 of what is neither. */
export function share(value) {
  const said = +value.toFixed(3);
  return String((said === 0 || said === 1) && value !== said ? +value.toPrecision(2) === 1 ? +value.toFixed(6) : +value.toPrecision(2) : said);
}
