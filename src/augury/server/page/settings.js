// How answers are drawn and drafted: the fields beside the playground and the race.

import { look } from "./answer.js";
import { link } from "./link.js";
import { html, store, useStore } from "./ui.js";
import { t } from "./words.js";

/** What is chosen; off: drafters that are not to be asked, so that a new server's are. */
export const chosen = store({ mode: "chat", system: "", off: [], rule: null, temperature: 0, topP: 1, seed: "", tokens: 256, length: "" });

const change = (part) => chosen.set({ ...chosen.value, ...part });

/** The settings as a request has them; a seed is drawn where none is given, so that a run can be repeated. */
export function settled() {
  const own = chosen.value;
  const { drafters, rule } = link.value;
  const drawn = own.temperature > 0 ? crypto.getRandomValues(new Uint32Array(1))[0] >>> 1 : null;
  return {
    drafters: drafters.filter((name) => !own.off.includes(name)),
    rule: own.rule ?? rule,
    temperature: own.temperature,
    topP: own.topP,
    tokens: own.tokens,
    seed: own.seed === "" ? drawn : Number(own.seed),
    length: own.length === "" ? null : Number(own.length),
  };
}

/** A conversation's messages, the system's before them where there is one. */
export function conversation(messages) {
  const { system } = chosen.value;
  return system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}

/** A number that may be left empty where ``none`` says what that means. */
function Number_({ name, value, min, max, step = 1, none, onValue }) {
  const input = (event) => {
    const text = event.target.value;
    if (text === "" && none !== undefined) onValue("");
    else if (event.target.validity.valid && text !== "") onValue(none === undefined ? Number(text) : text);
  };
  return html`<label class="field"><span>${t(`settings.${name}`)}</span>
    <input type="number" name=${name} value=${value} min=${min} max=${max} step=${step} placeholder=${none ?? ""} onInput=${input} /></label>`;
}

/** The fields. mode: whether chat or a raw prompt can be chosen. */
export function Settings({ mode = true }) {
  const own = useStore(chosen);
  const { drafters, rule } = useStore(link);
  const toggle = (name) => change({ off: own.off.includes(name) ? own.off.filter((one) => one !== name) : [...own.off, name] });
  return html`<div class="settings">
    ${mode && html`<div class="switch" role="radiogroup" aria-label=${t("settings.mode")}>
      ${["chat", "raw"].map((one) => html`<label key=${one} class=${own.mode === one ? "on" : ""}>
        <input type="radio" name="mode" value=${one} checked=${own.mode === one} onChange=${() => change({ mode: one })} />${t(`settings.${one}`)}</label>`)}
    </div>`}
    ${mode && own.mode === "chat" && html`<label class="field tall"><span>${t("settings.system")}</span>
      <textarea name="system" rows="2" value=${own.system} placeholder=${t("settings.none")} onInput=${(event) => change({ system: event.target.value })}></textarea></label>`}
    <fieldset><legend>${t("settings.drafters")}</legend>
      ${drafters.map((name, i) => html`<label class="check" key=${name}>
        <input type="checkbox" name="drafter" value=${name} checked=${!own.off.includes(name)} onChange=${() => toggle(name)} />
        <span class="tok ${look(i)}">${name}</span></label>`)}
      ${drafters.every((name) => own.off.includes(name)) && html`<p class="hint">${t("settings.plain")}</p>`}
    </fieldset>
    <label class="field"><span>${t("settings.rule")}</span>
      <select name="rule" value=${own.rule ?? rule} onChange=${(event) => change({ rule: event.target.value })}>
        ${["coupled", "rejection", "block"].map((one) => html`<option key=${one} value=${one}>${t(`rule.${one}`)}</option>`)}
      </select></label>
    <div class="pair">
      <${Number_} name="temperature" value=${own.temperature} min="0" max="2" step="0.1" onValue=${(temperature) => change({ temperature })} />
      <${Number_} name="topP" value=${own.topP} min="0.05" max="1" step="0.05" onValue=${(topP) => change({ topP })} />
      <${Number_} name="tokens" value=${own.tokens} min="1" max="100000" onValue=${(tokens) => change({ tokens })} />
      <${Number_} name="length" value=${own.length} min="0" max="64" none=${t("settings.free")} onValue=${(length) => change({ length })} />
      <${Number_} name="seed" value=${own.seed} min="0" max="2147483647" none=${t("settings.drawn")} onValue=${(seed) => change({ seed })} />
    </div>
  </div>`;
}
