// Look inside: what the server does now, each second, from its own figures.
import {call, json} from "./api.js";
import {h, number, s} from "./dom.js";
import {stateOf} from "./models.js";
import {head} from "./settings.js";

const SAMPLES = 60;
const CELLS = 32;

/** The exposition's samples by name, those of several labels added up; buckets by their bound. */
export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^edge_llm_(\w+?)(?:\{(.*)\})? ([-+\d.eE]+)$/.exec(line);
    if (!match || match[1].endsWith("_bucket")) continue;
    found[match[1]] = (found[match[1]] ?? 0) + Number(match[3]);
  }
  return found;
}

const CARDS = {
  speed: ["Speed", "tokens per second", "All answers of the server together"],
  lanes: ["Lanes", "", "Answers that are written side by side"],
  pages: ["Pages", "", "Memory for what the model has read and written"],
  first: ["First token", "", "From a question to the first token, mean of the last ones"],
  cache: ["Prompt cache", "", "Part of the prompts that was there already"],
  guesses: ["Guesses", "", "Tokens guessed ahead that were right"],
  experts: ["Experts", "", "Of a mixture larger than memory: experts that were there when they were needed"],
};

export class Inside {
  #timer = null;
  #series = Object.fromEntries(Object.keys(CARDS).map(name => [name, []]));
  #last = null;
  #cards = {};
  #slots = null;

  /** `model()` is the one that the chat talks to. */
  constructor(model) { this.model = model; }

  /** The panel's parts; it looks until `close`. */
  show(close) {
    const cards = Object.entries(CARDS).map(([name, [title, , help]]) => this.#card(name, title, help));
    this.#box = h("div", {class: "cards"}, cards.slice(0, -1));
    this.#note = h("p", {class: "faint", role: "status"});
    clearInterval(this.#timer);
    this.#timer = setInterval(() => { if (!document.hidden) this.#look(); }, 1000);
    this.#look();
    return [head("Look inside", close), h("div", {class: "panel-body"}, this.#box, this.#note)];
  }
  #note = null;
  /** The cards; that of experts, the last one, only where a model has them on flash. */
  #box = null;

  close() {
    clearInterval(this.#timer);
    this.#timer = this.#last = null;
  }

  #card(name, title, help) {
    const value = h("b", {text: "–"}), unit = h("small"), chart = h("div", {class: "chart"});
    const section = h("section", {class: "card", title: help, "aria-label": title}, h("h3", {text: title}), h("p", {}, value, " ", unit), chart);
    this.#cards[name] = {value, unit, chart, section};
    return section;
  }

  async #look() {
    try { await this.#count(); } catch { /* not there while a model loads */ }
    try {
      this.#take(readMetrics(await (await call("metrics")).text()), performance.now() / 1000);
      this.#note.textContent = "";
    } catch (error) {
      this.#note.textContent = error.message;
    }
  }

  /** How many lanes there are; asked of a model that is loaded alone, for asking loads it. */
  async #count() {
    const model = this.model();
    if (!model || stateOf(model) !== "loaded" || this.#counted === model.id) return;
    this.#slots = (await json(`props?model=${encodeURIComponent(model.id)}`)).total_slots ?? 0;
    this.#counted = model.id;
  }
  #counted = null;

  #take(now, time) {
    const before = this.#last?.now ?? now, passed = time - (this.#last?.time ?? time - 1);
    const grown = name => Math.max(0, (now[name] ?? 0) - (before[name] ?? 0));
    this.#last = {now, time};
    const speed = grown("tokens_predicted_total") / passed;
    this.#put("speed", speed, speed >= 100 ? number(Math.round(speed)) : speed.toFixed(1), CARDS.speed[1]);
    const running = now.requests_processing ?? 0, waiting = now.requests_deferred ?? 0;
    this.#put("lanes", running, String(running), `${this.#slots ? `of ${this.#slots}` : "busy"}${waiting ? `, ${waiting} waiting` : ""}`);
    this.#cells(running);
    const all = now.kv_pages ?? 0, used = all - (now.kv_pages_free ?? all);
    this.#put("pages", all ? used / all : 0, number(used), all ? `of ${number(all)} in use, ${number(now.prefix_pages ?? 0)} kept for prefixes` : "the model keeps none", 1);
    const count = grown("time_to_first_token_seconds_count");
    const mean = (sum, of) => (of ? sum / of : 0), last = this.#series.first.at(-1);
    const first = count ? grown("time_to_first_token_seconds_sum") / count : last || mean(now.time_to_first_token_seconds_sum, now.time_to_first_token_seconds_count);
    this.#put("first", first, first ? (first < 1 ? String(Math.round(first * 1000)) : first.toFixed(1)) : "–", first ? (first < 1 ? "ms" : "s") : "no answer yet");
    this.#share("cache", now.cached_prompt_tokens_total, now.prompt_tokens_total, "prompt tokens");
    this.#share("guesses", now.accepted_tokens_total, now.drafted_tokens_total, "guesses");
    this.#experts(now);
  }

  /** Where experts come from flash: how many were in memory, how many the layer before had named, and what a token read. */
  #experts({expert_used: used, expert_read: read, expert_needed: needed, expert_recalled: recalled, expert_read_bytes: bytes, expert_tokens: tokens}) {
    if (used === undefined) return this.#cards.experts.section.remove();
    if (!this.#cards.experts.section.isConnected) this.#box.append(this.#cards.experts.section);
    const hits = used ? 1 - read / used : 0, said = [];
    if (needed) said.push(`${Math.round((100 * recalled) / needed)} % guessed`);
    if (tokens) said.push(`${bytesOf(bytes / tokens)} a token from flash`);
    this.#put("experts", hits, used ? `${Math.round(100 * hits)} %` : "–", used ? `in memory, ${said.join(", ")}` : "none used yet", 1);
  }

  #share(name, part = 0, all = 0, what) {
    this.#put(name, all ? part / all : 0, all ? `${Math.round((100 * part) / all)} %` : "–", all ? `of ${number(all)} ${what}` : `no ${what} yet`, 1);
  }

  #put(name, value, text, unit, most = null) {
    const series = this.#series[name], card = this.#cards[name];
    series.push(value);
    if (series.length > SAMPLES) series.shift();
    card.value.textContent = text;
    card.unit.textContent = unit;
    if (name !== "lanes") card.chart.replaceChildren(chart(series, most, `${CARDS[name][0]}: ${text} ${unit}`));
  }

  #cells(running) {
    const count = Math.min(CELLS, Math.max(this.#slots ?? 0, running, 1));
    const busy = Math.ceil((running * count) / Math.max(this.#slots ?? 0, running, 1));
    this.#cards.lanes.chart.replaceChildren(h("div", {class: "cells", "aria-hidden": "true"}, Array.from({length: count}, (_, index) => h("i", {class: index < busy ? "on" : null}))));
  }
}

function bytesOf(count) {
  return count < 2 ** 20 ? `${number(Math.round(count / 2 ** 10))} KiB` : `${number(Math.round(count / 2 ** 20))} MiB`;
}

function chart(series, most, label) {
  const top = most ?? Math.max(...series, 1e-9), width = 120, height = 36;
  const points = series.map((value, index) => `${(width - (series.length - 1 - index) * (width / (SAMPLES - 1))).toFixed(1)},${(height - 2 - (value / top) * (height - 6)).toFixed(1)}`);
  const first = points[0].split(",")[0];
  return s("svg", {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label},
    s("polygon", {points: `${first},${height} ${points.join(" ")} ${width},${height}`}), s("polyline", {points: points.join(" ")}));
}
