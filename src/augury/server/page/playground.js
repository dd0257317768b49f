// Ask, and watch the answer come: whose guess each token was.

import { Answer, Figures, Legend } from "./answer.js";
import { Inspector } from "./inspector.js";
import { link } from "./link.js";
import { figuresOf, start } from "./run.js";
import { Settings, chosen, conversation, settled } from "./settings.js";
import { classes, html, said, steady, store, useEffect, useLayoutEffect, useRef, useState, useStore } from "./ui.js";
import { decimal, language, percent, t } from "./words.js";

/** Turns of the conversation: {question, settings, run}; and what of them is looked at. */
const talk = store({ turns: [], draft: "", gone: false, marks: true, active: null, open: null });

const change = (part) => talk.set({ ...talk.value, ...part });

/** Messages so far, and the new one. */
function messages(question) {
  const before = talk.value.turns.filter(({ raw, run }) => !raw && run.content).flatMap(({ question: asked, run }) => [
    { role: "user", content: asked }, { role: "assistant", content: run.content },
  ]);
  return conversation([...before, { role: "user", content: question }]);
}

function send() {
  const question = talk.value.draft;
  if (!question.trim() || busy()) return;
  const raw = chosen.value.mode === "raw";
  const settings = settled();
  const turn = { question, raw, settings };
  const asked = raw ? { chat: null, prompt: question, settings } : { chat: messages(question), prompt: null, settings };
  turn.run = start(asked, { model: link.value.model, blind: !link.value.steps }, () => change({}));
  change({ turns: [...talk.value.turns, turn], draft: "", active: null, open: null });
  said.set(t("said.begins"));
  turn.run.over.then(() => {
    const { phase, fault } = turn.run;
    if (phase === "failed") return said.set(t("said.failed", { why: fault }));
    const f = figuresOf(turn.run);
    said.set(t("said.done", { tokens: f.tokens, speed: decimal(f.speed ?? 0, 1), rate: f.rate === null ? "–" : percent(f.rate, 0) }));
  });
}

const busy = () => talk.value.turns.at(-1)?.run.phase === "running";

export function Playground() {
  const { turns, draft, gone, marks, active, open } = useStore(talk);
  const { mode } = useStore(chosen);
  const { drafters, phase, steps } = useStore(link);
  const follow = useRef(true);
  const running = busy();
  useEffect(() => {
    const watch = () => (follow.current = innerHeight + scrollY > document.documentElement.scrollHeight - 120);
    addEventListener("scroll", watch, { passive: true });
    return () => removeEventListener("scroll", watch);
  }, []);
  const ran = useRef(false);
  useLayoutEffect(() => {
    if ((running || ran.current) && follow.current) scrollTo({ top: document.documentElement.scrollHeight });
    ran.current = running;
  });
  const shown = open && turns[open.turn];
  const close = () => {
    change({ open: null });
    document.querySelector(`#turn-${open.turn} .answer`)?.focus();
  };
  const walk = shown && { of: shown.run.told, begin: shown.run.told.begin, count: shown.run.told.steps.length, get: (n) => shown.run.told.steps[n] };
  return html`<div class=${classes("columns", open && "opened")}>
    <div class="main talk">
      <h1 class="sr">${t("view.playground")}</h1>
      ${phase === "here" && !steps && html`<p class="note">${t("play.blind")}</p>`}
      ${turns.length === 0 && html`<${Welcome} />`}
      ${turns.map((turn, i) => html`<${Turn} key=${i} index=${i} turn=${turn} gone=${gone} marks=${marks}
        version=${`${turn.run.phase} ${turn.run.told.steps.length} ${turn.run.content.length}`} words=${language.value}
        active=${active?.turn === i ? active : null} drafters=${turn.run.told.begin?.drafters ?? drafters} opened=${open?.turn === i} />`)}
      <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
        <label class="sr" for="prompt">${t(mode === "raw" ? "play.prompt" : "play.message")}</label>
        <textarea id="prompt" rows=${Math.min(8, Math.max(2, draft.split("\n").length))} value=${draft} placeholder=${t(mode === "raw" ? "play.prompt" : "play.message")}
          onInput=${(event) => change({ draft: event.target.value })}
          onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); } }}></textarea>
        <div class="bar">
          <label class="check"><input type="checkbox" checked=${marks} onChange=${() => change({ marks: !marks })} />${t("play.marks")}</label>
          <label class="check"><input type="checkbox" checked=${gone} disabled=${!marks} onChange=${() => change({ gone: !gone })} />${t("play.gone")}</label>
          <span class="gap"></span>
          ${turns.length > 0 && !running && html`<button type="button" class="soft" onClick=${() => change({ turns: [], active: null, open: null })}>${t("play.new")}</button>`}
          ${running ? html`<button type="button" key="stop" class="main-button stop" onClick=${(event) => event.detail > 1 || turns.at(-1).run.stop()}>${t("stop")}</button>`
            : html`<button type="submit" key="send" class="main-button" disabled=${!draft.trim() || phase !== "here"}>${t("play.send")}</button>`}
        </div>
      </form>
    </div>
    <aside class="side" aria-label=${open ? t("inspector.title") : t("settings.title")}>
      ${walk ? html`<${Inspector} walk=${walk} n=${open.n} onClose=${close}
          onMove=${(n) => change({ open: { ...open, n }, active: { turn: open.turn, n, i: 0 } })} />`
        : html`<${Folded} title=${t("settings.title")}><${Settings} /></${Folded}>`}
    </aside>
  </div>`;
}

/** Open beside the page, folded where there is no room. */
export function Folded({ title, children }) {
  const [wide] = useState(() => matchMedia("(min-width: 60rem)").matches);
  return html`<details open=${wide} class="folded"><summary>${title}</summary>${children}</details>`;
}

function Welcome() {
  const take = (text) => {
    change({ draft: text });
    document.getElementById("prompt").focus();
  };
  const examples = ["planets", "code", "colours"].map((name) => t(`example.${name}`));
  return html`<div class="welcome">
    <p class="lead">${t("play.welcome")}</p>
    <ul>${examples.map((text) => html`<li key=${text}><button type="button" class="example" onClick=${() => take(text)}>${text}</button></li>`)}</ul>
  </div>`;
}

const Turn = steady(({ turn, index, gone, marks, active, drafters, opened }) => {
  const { run, question, raw, settings } = turn;
  const { told, phase } = run;
  const open = (n) => change({ open: { turn: index, n } });
  const move = (at) => change({ active: { turn: index, ...at }, ...(opened ? { open: { turn: index, n: at.n } } : {}) });
  return html`<article class="turn" id=${`turn-${index}`} aria-label=${t("play.turn", { n: index + 1 })}>
    <div class=${classes("question", raw && "raw")}><span class="sr">${t("play.you")}</span>${question}</div>
    ${marks && told.steps.length
      ? html`<${Answer} told=${told} gone=${gone} active=${active} onActive=${move} onOpen=${open} name=${`t${index}`} label=${t("play.answer", { n: index + 1 })} />`
      : html`<div class="answer plain">${run.content}</div>`}
    ${phase === "running" && html`<p class="wait"><span class="dots" aria-hidden="true"></span>${told.steps.length ? "" : t("play.waits")}</p>`}
    ${phase === "failed" && html`<p class="bad" role="alert">${run.fault}</p>`}
    ${phase === "stopped" && html`<p class="dim">${t("play.stopped")}</p>`}
    ${told.steps.length > 0 && html`<${Figures} figures=${figuresOf(run)} />`}
    ${told.steps.length > 0 && phase !== "running" && html`<div class="under">
      ${marks && html`<${Legend} drafters=${drafters} told=${told} />`}
      <p class="dim small">${t("play.how", { tokens: told.sums.tokens, steps: told.steps.length, rule: t(`rule.${told.begin?.rule ?? settings.rule}`) })}${
        settings.seed !== null ? ` · ${t("play.seed", { n: settings.seed })}` : ""}${
        run.finish === "length" ? ` · ${t("play.length")}` : ""} · <button type="button" class="link" onClick=${() => navigator.clipboard?.writeText(run.content)}>${t("copy")}</button></p>
    </div>`}
  </article>`;
});
