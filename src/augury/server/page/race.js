// The same prompt plainly and drafted: run one after the other, then replayed side by side as fast as they were.

import { Answer } from "./answer.js";
import { Inspector } from "./inspector.js";
import { link } from "./link.js";
import { json } from "./net.js";
import { Folded } from "./playground.js";
import { start } from "./run.js";
import { Settings, chosen, conversation, settled } from "./settings.js";
import { stepMs } from "./trace.js";
import { classes, html, said, still, store, useEffect, useStore } from "./ui.js";
import { decimal, t } from "./words.js";

const LANES = ["plain", "drafted"];

/** stage: "idle", "plain", "drafted", "replay", "done"; at: milliseconds of the replay. */
const race = store({ draft: "", stage: "idle", lanes: null, settings: null, busy: false, at: 0, active: null, open: null, speed: 1 });

const change = (part) => race.set({ ...race.value, ...part });

const runs = () => LANES.includes(race.value.stage);

/** When each step of a run was over, in milliseconds after its first one began. */
function clock(run) {
  const { steps } = run.told;
  const zero = steps[0]?.at ?? 0;
  return steps.map((step) => step.at - zero + stepMs(step));
}

async function go() {
  const { draft } = race.value;
  if (!draft.trim() || runs()) return;
  const settings = settled();
  const chat = chosen.value.mode === "chat";
  const asked = chat ? { chat: conversation([{ role: "user", content: draft }]), settings } : { chat: null, prompt: draft, settings };
  const lanes = {};
  change({ stage: "plain", lanes, settings, busy: false, at: 0, active: null, open: null });
  change({ busy: await crowded() });
  for (const lane of LANES) {
    change({ stage: lane });
    said.set(t(`race.runs.${lane}`));
    // Steps without the target's p of every guess: what is only wanted for the eye must not slow one side.
    lanes[lane] = start(asked, { model: link.value.model, plain: lane === "plain", whole: false }, () => change({}));
    await lanes[lane].over;
    if (lanes[lane].phase !== "done") return change({ stage: "idle" });
  }
  const { ratio, same } = outcome(lanes, settings);
  said.set(t("race.said", { ratio: decimal(ratio, 2), same: t(`race.same.${same}`) }));
  if (still()) change({ stage: "done" });
  else replay();
}

/** Whether others are being answered, who would slow both sides. */
async function crowded() {
  try {
    const load = await json("/trace/load");
    return load.running + load.waiting > 0;
  } catch {
    return false;
  }
}

/** What came of it. Under the rejection rules with a temperature the text keeps its law only. */
function outcome({ plain, drafted }, settings) {
  const ratio = drafted.timings.predicted_per_second / plain.timings.predicted_per_second;
  const promised = settings.rule === "coupled" || settings.temperature === 0;
  const same = plain.content === drafted.content ? "yes" : promised ? "no" : "unpromised";
  return { ratio, same };
}

let playing = 0;

function replay() {
  const turn = (playing += 1);
  const clocks = LANES.map((lane) => clock(race.value.lanes[lane]).at(-1) ?? 0);
  const whole = Math.max(...clocks);
  let [last, at] = [performance.now(), 0];
  change({ stage: "replay", at: 0, active: null });
  const tick = (now) => {
    if (turn !== playing || race.value.stage !== "replay") return;
    at += Math.max(now - last, 0) * race.value.speed;
    last = now;
    change(at >= whole ? { at: whole, stage: "done" } : { at });
    if (at < whole) requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

export function Race() {
  const { draft, stage, lanes, settings, busy, at, active, open } = useStore(race);
  const { phase, steps } = useStore(link);
  const running = runs();
  useEffect(() => () => { playing += 1; if (race.value.stage === "replay") change({ stage: "done" }); }, []);
  const whole = stage === "replay" || stage === "done";
  const result = whole && outcome(lanes, settings);
  const shown = open && lanes?.[open.lane];
  const walk = shown && { of: shown.told, begin: shown.told.begin, count: shown.told.steps.length, get: (n) => shown.told.steps[n] };
  const close = () => {
    change({ open: null });
    document.querySelector(`.lane.${open.lane} .answer`)?.focus();
  };
  return html`<div class=${classes("columns", open && "opened")}>
    <div class="main">
      <h1 class="sr">${t("view.race")}</h1>
      <form class="composer still" onSubmit=${(event) => { event.preventDefault(); go(); }}>
        <label for="race-prompt">${t("race.prompt")}</label>
        <textarea id="race-prompt" rows="2" value=${draft} placeholder=${t("example.planets")} onInput=${(event) => change({ draft: event.target.value })}
          onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); go(); } }}></textarea>
        <div class="bar">
          ${!draft && html`<button type="button" class="soft" onClick=${() => change({ draft: t("example.planets") })}>${t("race.example")}</button>`}
          <span class="gap"></span>
          ${whole && html`<button type="button" class="soft" onClick=${replay}>${t("race.again")}</button>`}
          ${running ? html`<button type="button" key="stop" class="main-button stop" onClick=${(event) => event.detail > 1 || lanes[stage]?.stop()}>${t("stop")}</button>`
            : html`<button type="submit" key="go" class="main-button" disabled=${!draft.trim() || phase !== "here" || !steps}>${t("race.go")}</button>`}
        </div>
      </form>
      ${!lanes && html`<p class="lead">${t("race.lead")}</p>`}
      ${phase === "here" && !steps && html`<p class="note">${t("play.blind")}</p>`}
      ${busy && html`<p class="note">${t("race.busy")}</p>`}
      ${lanes && html`<p class="stage dim" aria-hidden="true">${t(running ? `race.runs.${stage}` : stage === "replay" ? "race.replays" : "race.over")}</p>`}
      ${result && html`<dl class="result">
        <div><dt>${t("race.ratio")}</dt><dd data-figure="ratio">${decimal(result.ratio, 2)} ×</dd></div>
        <div><dt>${t("race.same")}</dt><dd data-figure="same" class=${result.same === "yes" ? "good" : result.same === "no" ? "bad" : ""}>${t(`race.same.${result.same}`)}</dd></div>
      </dl>`}
      ${lanes && html`<div class="lanes">${LANES.map((lane) => html`<${Lane} key=${lane} lane=${lane} run=${lanes[lane]} until=${stage === "replay" ? at : null}
        whole=${whole ? Math.max(...LANES.map((one) => clock(lanes[one]).at(-1) ?? 0)) : null} active=${active?.lane === lane ? active : null} opened=${open?.lane === lane} />`)}</div>`}
    </div>
    <aside class="side" aria-label=${open ? t("inspector.title") : t("settings.title")}>
      ${walk ? html`<${Inspector} walk=${walk} n=${open.n} onClose=${close} onMove=${(n) => change({ open: { ...open, n }, active: { lane: open.lane, n, i: 0 } })} />`
        : html`<${Folded} title=${t("settings.title")}><${Settings} /></${Folded}>`}
    </aside>
  </div>`;
}

function Lane({ lane, run, until, whole, active, opened }) {
  if (!run) return html`<section class="lane ${lane}" aria-label=${t(`race.${lane}`)}><h2>${t(`race.${lane}`)}</h2><p class="dim">${t("race.waits")}</p></section>`;
  const ends = clock(run);
  const shown = until === null ? ends.length : ends.filter((end) => end <= until).length;
  const total = ends.at(-1) ?? 0;
  const now = until === null ? total : Math.min(until, total);
  const tokens = shown ? run.told.starts[shown - 1] + run.told.pieces[shown - 1].length : 0;
  const name = `race-${lane}`;
  return html`<section class="lane ${lane}" aria-label=${t(`race.${lane}`)}>
    <h2>${t(`race.${lane}`)} <small data-figure="clock">${t("seconds", { n: decimal(now / 1e3, 2) })}</small></h2>
    <svg class="progress" viewBox="0 0 100 2" preserveAspectRatio="none" aria-hidden="true">
      <rect class="rail" width="100" height="2" /><rect class="run" width=${whole ? (100 * now) / whole : 0} height="2" /></svg>
    <p class="dim small">${t("race.figures", { tokens, steps: shown, speed: now ? decimal((1e3 * tokens) / now, 1) : "–" })}</p>
    ${run.phase === "failed" && html`<p class="bad" role="alert">${run.fault}</p>`}
    <${Answer} told=${run.told} gone=${false} until=${shown} active=${active} name=${name} label=${t(`race.${lane}`)}
      onActive=${(at) => change({ active: { lane, ...at }, ...(opened ? { open: { lane, n: at.n } } : {}) })} onOpen=${(n) => change({ open: { lane, n } })} />
  </section>`;
}
