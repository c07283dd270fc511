// What is typed and not sent.  Each tab has its own, written at every key; what a tab left behind goes to the next one that looks for it.
import {kept} from "./dom.js";

const RELEASED_MS = 3000;  // for which a page that was loaded anew waits until the one before has let go of its name

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, "0")).join("");

/** Hold `name` against other tabs, until what this gives is called; null where another tab has it.  A tab that crashes holds nothing. */
export function hold(name, options = {ifAvailable: true}) {
  if (!navigator.locks) return Promise.resolve(() => {});  // there are none at a plain address of another machine
  return new Promise(taken => {
    const whole = lock => (lock ? new Promise(done => taken(done)) : taken(null));
    navigator.locks.request(`edge-llm:${name}`, options, whole).catch(() => taken(null));
  });
}

/** The names that some tab holds; null where this cannot be known. */
export async function held() {
  if (!navigator.locks) return null;
  return new Set((await navigator.locks.query()).held.map(lock => lock.name.replace(/^edge-llm:/, "")));
}

export const drafts = {
  tab: "",

  /** Give this tab the name that it had before a reload; another one where it is a copy of a tab that is there. */
  async begin() {
    const before = kept.read("tab", "sessionStorage");
    if (before && (await hold(`tab:${before}`, {signal: AbortSignal.timeout(RELEASED_MS)}))) this.tab = before;
    else await hold(`tab:${this.tab = newId()}`);
    kept.write("tab", this.tab, "sessionStorage");
  },

  slot(place) { return `${this.tab}:${place}`; },
  read(place) { return textOf(kept.read(`draft:${this.slot(place)}`)).text; },
  write(place, text) { kept.write(`draft:${this.slot(place)}`, text ? JSON.stringify({text, at: Date.now()}) : null); },

  /** Forget what was typed at `place`, unless it is no longer `text`. */
  drop(place, text) { if (this.read(place) === text) this.write(place, ""); },

  /** Take what tabs that are gone have left at these places, where this tab has nothing. */
  async adopt(...places) {
    const names = kept.names("draft:");
    for (const place of places) {
      if (this.read(place)) continue;
      const left = await this.left(place, names.map(name => name.slice("draft:".length)));
      const newest = left.map(slot => [slot, textOf(kept.read(`draft:${slot}`))]).sort(([, a], [, b]) => b.at - a.at)[0];
      if (!newest?.[1].text) continue;
      this.write(place, newest[1].text);
      if (navigator.locks) kept.write(`draft:${newest[0]}`, null);
    }
  },

  /** The slots of `place` among `slots` whose tabs are gone. */
  async left(place, slots) {
    const others = slots.filter(slot => slot.endsWith(`:${place}`) && slot.indexOf(":") === slot.length - place.length - 1 && slot !== this.slot(place));
    if (!others.length) return [];
    const living = await held();
    return others.filter(slot => !living?.has(`tab:${slot.slice(0, slot.indexOf(":"))}`));
  },
};

function textOf(kept) {
  try { return {text: "", at: 0, ...JSON.parse(kept)}; } catch { return {text: "", at: 0}; }
}
