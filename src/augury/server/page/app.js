// The page: which view is shown, and what stands around it.

import { connect, link, unlock } from "./link.js";
import { Load } from "./load.js";
import { Playground } from "./playground.js";
import { Race } from "./race.js";
import { Reliability } from "./reliability.js";
import { Requests } from "./requests.js";
import { html, render, said, store, useEffect, useRef, useState, useStore } from "./ui.js";
import { LANGUAGES, language, setLanguage, t } from "./words.js";

const VIEWS = ["playground", "race", "requests", "reliability", "load"];
const MODEL = ["playground", "race", "load"]; // views that a file has nothing for

/** What the address asks for: #/requests/7/12 is step 12 of request 7. */
function wanted() {
  const [view, id, step] = location.hash.replace(/^#\/?/, "").split("/");
  const number = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);
  const n = number(step);
  return { view: VIEWS.includes(view) ? view : null, id: number(id), n: n ? n - 1 : null };
}

const place = store(wanted());
addEventListener("hashchange", () => place.set(wanted()));

const theme = store(document.documentElement.dataset.theme ?? "auto");

function setTheme(next) {
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("augury.theme", next);
  } catch {
    // It is chosen until the page is left.
  }
  theme.set(next);
}

function App() {
  useStore(language);
  useStore(theme);
  const { view: asked, id, n } = useStore(place);
  const { phase, file, model } = useStore(link);
  const views = VIEWS.filter((one) => !file || !MODEL.includes(one));
  const view = views.includes(asked) ? asked : file ? "requests" : "playground";
  const main = useRef();
  const shown = useRef(null);
  useEffect(() => {
    document.title = `${t(`view.${view}`)} · Augury${model ? ` · ${model}` : ""}`;
    if (shown.current === view) return;
    shown.current = view;
    scrollTo(0, 0);
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>${t("skip")}</a>
    <header class="top">
      <a class="mark" href="#/" aria-label="Augury"><${Mark} /><span>augury</span></a>
      <nav aria-label=${t("nav")}>${views.map((one) => html`
        <a key=${one} href=${`#/${one}`} aria-current=${one === view ? "page" : undefined}>${t(`view.${one}`)}</a>`)}</nav>
      <div class="tools">
        <p class="link ${phase}" role="status"><span class="lamp" aria-hidden="true"></span>
          <span class="model">${phase === "here" ? model : ""}</span> <span class="phase">${t(`link.${file && phase === "here" ? "file" : phase}`)}</span></p>
        <label class="pick"><span class="sr">${t("theme")}</span><select name="theme" value=${theme.value} onChange=${(event) => setTheme(event.target.value)}>
          ${["auto", "light", "dark"].map((one) => html`<option key=${one} value=${one}>${t(`theme.${one}`)}</option>`)}</select></label>
        <label class="pick"><span class="sr">${t("language")}</span><select name="language" value=${language.value} onChange=${(event) => setLanguage(event.target.value)}>
          ${Object.entries(LANGUAGES).map(([code, name]) => html`<option key=${code} value=${code} lang=${code}>${name}</option>`)}</select></label>
      </div>
    </header>
    <main id="main" tabindex="-1" ref=${main}>
      ${phase === "key" && html`<${Key} />`}
      ${phase === "connecting" ? html`<div class="main"><p class="dim">${t("link.connecting")}</p></div>`
        : view === "playground" ? html`<${Playground} />`
        : view === "race" ? html`<${Race} />`
        : view === "requests" ? html`<${Requests} id=${id} n=${n} />`
        : view === "reliability" ? html`<${Reliability} />`
        : html`<${Load} />`}
    </main>
    <${Said} />`;
}

/** What is said to screen readers. */
const Said = () => html`<div class="sr" role="status" id="said">${useStore(said)}</div>`;

/** A draft tree in small. */
const Mark = () => html`<svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
  <path d="M5 16h7M12 16c4 0 3-8 8-8M12 16h8M12 16c4 0 3 8 8 8" class="twig" /><circle cx="6" cy="16" r="4" class="root" />
  <circle cx="24" cy="8" r="3.5" class="leaf" /><circle cx="24" cy="16" r="4" class="kept" /><circle cx="24" cy="24" r="3.5" class="leaf" /></svg>`;

/** A field for the key that the server asks for. */
function Key() {
  const [key, setKey] = useState("");
  const { told } = useStore(link);
  return html`<div class="main"><form class="note key" onSubmit=${(event) => { event.preventDefault(); unlock("api", key.trim()); }}>
    <p>${t("key.asks")}</p><p class="dim">${told}</p>
    <label class="field"><span>${t("key.key")}</span><input type="password" name="key" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    <button class="main-button" type="submit" disabled=${!key.trim()}>${t("key.use")}</button>
    <p class="hint">${t("key.kept")}</p>
  </form></div>`;
}

render(html`<${App} />`, document.getElementById("page"));
connect();
