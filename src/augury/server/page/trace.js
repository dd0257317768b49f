// Reading events of a trace, as the server writes them. Pure functions; the words are those of docs/how-it-works.md.

/** What became of each node of a step's tree: "accepted", "cut off" (accepted, but the answer ended before it),
 * "rejected", or "not reached" (the rule did not look at it).
 */
export function verdicts(step) {
  const place = new Map(step.path.map((node, i) => [node, i]));
  const settled = new Set(); // parents one of whose children was accepted already
  return step.parents.map((parent, node) => {
    if (place.has(node)) {
      settled.add(parent);
      return place.get(node) < step.emitted.length ? "accepted" : "cut off";
    }
    return (parent >= 0 && !place.has(parent)) || settled.has(parent) ? "not reached" : "rejected";
  });
}

/** Draft tokens that were accepted and emitted. */
export const accepted = (step) => Math.min(step.path.length, step.emitted.length);

/** For each emitted token the index of its drafter, or -1 when it is the target's own. */
export const sources = (step) => step.emitted.map((_, i) => (i < step.path.length ? step.source[step.path[i]] : -1));

/** Milliseconds of a step. */
export const stepMs = (step) => step.draft_ms + step.verify_ms + step.accept_ms + step.commit_ms + step.rest_ms;

/** What a token spells, for the eye; its number where the trace holds no text. */
export const spelt = (step, id) => (step.texts?.[id] === undefined ? `#${id}` : String(step.texts[id]));

/** The figures of some steps, folded one by one; as RequestRecord has them. */
export class Sums {
  constructor() {
    Object.assign(this, { steps: 0, tokens: 0, drafted: 0, accepted: 0, ms: 0, saved: 0, known: false });
  }

  add(step) {
    this.steps += 1;
    this.tokens += step.emitted.length;
    this.drafted += step.tokens.length;
    this.accepted += accepted(step);
    this.ms += stepMs(step);
    if (step.saved_ms != null) {
      this.saved += step.saved_ms;
      this.known = true;
    }
  }

  /** What is shown of them; null where there is nothing to tell. */
  figures() {
    return {
      tokens: this.tokens,
      steps: this.steps,
      speed: this.ms ? (1e3 * this.tokens) / this.ms : null,
      length: this.steps ? 1 + this.accepted / this.steps : null,
      rate: this.drafted ? this.accepted / this.drafted : null,
      saved: this.known ? this.saved : null,
    };
  }
}

const NAMED = { n: "\n", t: "\t", r: "\r", '"': '"', "\\": "\\" };
const PART = /\\u\{([0-9A-F]+)\}|\\(.)|‹((?:[0-9A-F]{2} )*[0-9A-F]{2})›|[^\\‹]+|[\\‹]/gsu;
const ENCODER = new TextEncoder();

/** The bytes behind a token's spelling: controls are escaped in it, and bytes that are no whole character are ‹E4 BB›. */
export function bytesOf(spelling) {
  const parts = [];
  for (const [all, point, named, raw] of spelling.matchAll(PART)) {
    if (raw) parts.push(...raw.split(" ").map((byte) => parseInt(byte, 16)));
    else if (point) {
      const code = parseInt(point, 16);
      parts.push(...ENCODER.encode(code <= 0x10ffff ? String.fromCodePoint(code) : "�"));
    } else parts.push(...ENCODER.encode(named ? (NAMED[named] ?? all) : all));
  }
  return Uint8Array.from(parts);
}

/** An answer as its steps come: each token with its drafter and its text. A character of several tokens belongs to the
 * last of them, the one that made it whole; those before it have no text.
 */
export class Told {
  constructor(begin) {
    this.begin = begin;
    this.steps = [];
    this.pieces = []; // of each step: {id, text, source, own}
    this.starts = []; // of each step: how many tokens stand before it
    this.length = Infinity; // tokens that are part of the answer's text; what a stop cut off stands behind them
    this.used = new Set(); // indices of drafters whose guesses are in it
    this.owns = new Set(); // kinds of the target's own tokens in it
    this.sums = new Sums();
    this.text = "";
    this.decoder = new TextDecoder();
  }

  push(step) {
    const from = sources(step);
    const pieces = step.emitted.map((id, i) => {
      const known = step.texts?.[id] !== undefined;
      const text = known ? this.decoder.decode(bytesOf(spelt(step, id)), { stream: true }) : ` #${id}`;
      this.text += text;
      return { id, text, source: from[i], own: i < step.path.length ? null : step.own };
    });
    for (const source of from) this.used.add(source);
    if (step.own) this.owns.add(step.own);
    this.starts.push(this.sums.tokens);
    this.steps.push(step);
    this.pieces.push(pieces);
    this.sums.add(step);
  }

  /** The answer has ended, with this text: what is not in it is the end itself, or what a stop cut off. */
  settle(content) {
    const skipped = this.text.startsWith(" ") && !content.startsWith(" ") ? 1 : 0;
    if (!this.text.startsWith(content, skipped)) return;
    let [at, tokens] = [0, 0];
    for (const piece of this.pieces.flat()) {
      if (at >= content.length + skipped && piece.text !== "") break;
      at += piece.text.length;
      tokens += 1;
    }
    this.length = tokens;
  }
}

/** Tokens of one step by itself; parts of characters that began before it, or end behind it, stay as they are spelt. */
export function alone(step) {
  const from = sources(step);
  const decoder = new TextDecoder();
  return step.emitted.map((id, i) => {
    const spelling = step.texts?.[id] === undefined ? ` #${id}` : spelt(step, id);
    const text = decoder.decode(bytesOf(spelling), { stream: i + 1 < step.emitted.length });
    return { id, text: text.includes("\uFFFD") ? spelling : text, source: from[i], own: i < step.path.length ? null : step.own };
  });
}

/** A spelling with ends of lines as a sign. */
export const signed = (spelling) => spelling.replace(/\\(.)/g, (all, named) => (named === "n" ? "↵" : all));

/** What some tokens of a step spell together. */
export function together(step, ids) {
  const parts = ids.map((id) => spelt(step, id));
  if (!parts.some((part) => part.includes("‹"))) return signed(parts.join(""));
  const bytes = parts.flatMap((part) => [...bytesOf(part)]);
  return new TextDecoder().decode(Uint8Array.from(bytes)).replace(/\uFFFD+/g, "‹…›").replaceAll("\n", "↵");
}

/** Chains of guesses that a miss threw away, in the order they were looked at: their nodes, each chain along first
 * children, and ``at``: the place in ``emitted`` of the token that stands there instead.
 */
export function thrown(step) {
  const first = new Map();
  step.parents.forEach((parent, node) => first.has(parent) || first.set(parent, node));
  const chains = [];
  verdicts(step).forEach((fate, node) => {
    if (fate !== "rejected") return;
    const nodes = [];
    for (let at = node; at !== undefined; at = first.get(at)) nodes.push(at);
    chains.push({ nodes, at: step.path.indexOf(step.parents[node]) + 1 });
  });
  return chains;
}
