// What every part of the page is made with: elements, hooks, and values that several parts watch.

import { Component, html, render, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";

export { html, render, useEffect, useLayoutEffect, useRef, useState };

/** A value that parts of the page watch. */
export function store(value) {
  const readers = new Set();
  return {
    get value() {
      return value;
    },
    set(next) {
      value = next;
      for (const reader of [...readers]) reader();
    },
    watch(reader) {
      readers.add(reader);
      return () => readers.delete(reader);
    },
  };
}

/** The value of a store; the component is drawn again when it changes. */
export function useStore(watched) {
  const [, turn] = useState(0);
  useLayoutEffect(() => watched.watch(() => turn((n) => n + 1)), [watched]);
  return watched.value;
}

/** What does something, never twice at once: who asks meanwhile has it done once more.
 *
 * work gives the milliseconds until it is to be done again unasked, or nothing.
 */
export function turns(work) {
  let timer;
  let [running, wanted] = [false, false];
  return async function turn() {
    clearTimeout(timer);
    wanted = true;
    if (running) return;
    running = true;
    let wait;
    try {
      while (wanted) {
        wanted = false;
        wait = await work();
      }
    } finally {
      running = false;
    }
    if (wait) timer = setTimeout(turn, wait);
  };
}

/** Do something at once, whenever the page is seen again, and when its time has come (see turns), while the component
 * is there and the page is seen. Gives what does it now.
 */
export function useTurns(work, inputs) {
  const now = useRef();
  useEffect(() => {
    let gone = false;
    const turn = turns(async () => (gone || document.hidden ? undefined : work(() => gone)));
    now.current = turn;
    turn();
    document.addEventListener("visibilitychange", turn);
    return () => {
      gone = true;
      document.removeEventListener("visibilitychange", turn);
    };
  }, inputs);
  return () => now.current();
}

/** Call back once before the next picture, however often it is asked; soon even where no pictures are made. */
export function soon(work) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    const go = () => {
      waits = false;
      work();
    };
    if (document.hidden) setTimeout(go, 100);
    else requestAnimationFrame(go);
  };
}

/** What a screen reader is told, politely, when it has said what it is saying. */
export const said = store("");

/** A component that is drawn again only when one of its properties is another. It has no state. */
export const steady = (draw) =>
  class extends Component {
    shouldComponentUpdate(next) {
      return Object.keys({ ...this.props, ...next }).some((name) => next[name] !== this.props[name]);
    }

    render(props) {
      return draw(props);
    }
  };

/** Class names that hold. */
export const classes = (...names) => names.filter(Boolean).join(" ");

/** A few words as the name of a class. */
export const dashed = (words) => words.replaceAll(" ", "-");

/** Whether the reader asked for less motion. */
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Save bytes under a name. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
