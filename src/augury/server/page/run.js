// One answer: asked for, streamed, taken apart as it comes.

import { Lost, ask, events } from "./net.js";
import { suspect } from "./link.js";
import { Told } from "./trace.js";
import { soon } from "./ui.js";

/** Ask for an answer.
 *
 * asked: {chat: messages or null, prompt: text or null, settings}; plain: without drafting; whole: with the target's p of
 * every guess, which costs a little time; blind: without its steps, where the server does not tell them. changed() is
 * called, not too often, when there is more to show.
 *
 * The run: {told, content, phase: "running" | "done" | "stopped" | "failed", fault, metrics, timings, stop()}.
 */
export function start(asked, { model, plain = false, whole = true, blind = false }, changed) {
  const control = new AbortController();
  const run = { told: new Told(null), content: "", phase: "running", fault: "", metrics: null, timings: null, end: null, began: performance.now() };
  run.stop = () => control.abort();
  const tell = soon(changed);
  run.over = follow(run, asked, { model, plain, whole, blind, signal: control.signal }, tell).then(
    () => (run.phase = "done"),
    (error) => {
      if (control.signal.aborted) run.phase = "stopped";
      else {
        run.phase = "failed";
        run.fault = error.message;
        if (error instanceof Lost) suspect();
      }
    },
  ).finally(() => {
    if (run.phase === "done") run.told.settle(run.content);
    changed();
  });
  return run;
}

/** What is sent. */
export function body(asked, { model, plain, whole, blind }) {
  const { settings } = asked;
  const drafting = { acceptance: settings.rule };
  if (!blind) Object.assign(drafting, { trace: whole ? true : "steps", figures: "detailed" });
  if (plain || !settings.drafters.length) drafting.enabled = false;
  else {
    drafting.drafters = settings.drafters;
    if (settings.length !== null) drafting.draft_tokens = settings.length;
  }
  const sent = {
    model, stream: true, temperature: settings.temperature, top_p: settings.topP, max_tokens: settings.tokens, speculative: drafting,
  };
  if (settings.seed !== null) sent.seed = settings.seed;
  return asked.chat ? { ...sent, messages: asked.chat } : { ...sent, prompt: asked.prompt };
}

async function follow(run, asked, { signal, ...how }, tell) {
  const path = asked.chat ? "/v1/chat/completions" : "/v1/completions";
  const response = await ask(path, { body: body(asked, how), signal });
  let whole = false;
  for await (const { data } of events(response)) {
    if (data === "[DONE]") {
      whole = true;
      continue;
    }
    const frame = JSON.parse(data);
    if (frame.error) throw new Error(String(frame.error.message));
    const choice = frame.choices?.[0];
    run.content += String(choice?.delta?.content ?? choice?.text ?? "");
    if (frame.begin) run.told.begin = frame.begin;
    for (const step of frame.steps ?? []) run.told.push(step);
    if (frame.end) run.end = frame.end;
    if (choice?.finish_reason) run.finish = choice.finish_reason;
    if (frame.metrics) run.metrics = frame.metrics.speculative_decoding;
    if (frame.timings) run.timings = frame.timings;
    tell();
  }
  if (!whole) throw new Lost("the stream ended before the answer did");
}

/** The figures of a run: of its steps while it runs, and the server's own when it has ended. */
export function figuresOf(run) {
  const own = run.told.sums.figures();
  if (!run.metrics || !run.timings) return own;
  return { ...own, speed: run.timings.predicted_per_second, length: run.metrics.mean_acceptance_length, rate: run.metrics.draft_acceptance_rate };
}
