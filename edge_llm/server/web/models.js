// The models that the server has, which of them is loaded, and how each samples.
import {Problem, call, json} from "./api.js";
import {bytes, dress, h, icon, kept, number} from "./dom.js";
import {openMenu} from "./widgets.js";

export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
export const THINKING = [["", "As the model does"], ["none", "Off"], ["low", "A little"], ["medium", "More"], ["high", "Much"]];
const WORDS = {loaded: "Loaded", loading: "Loading", unloaded: "Loads with the first question", sleeping: "Loads with the first question", downloading: "Downloading", failed: "Cannot be loaded"};

export class Models extends EventTarget {
  list = [];
  #asking = null;

  /** Ask the server for its list; raises `Problem`. */
  refresh() {
    this.#asking ??= json("v1/models").then(found => {
      this.list = found.data;
      this.dispatchEvent(new Event("change"));
    }).finally(() => { this.#asking = null; });
    return this.#asking;
  }

  get whole() { return this.list.length > 0; }
  get loading() { return this.list.some(model => stateOf(model) === "loading"); }

  /** The model that `chat` talks to, as far as is known now. */
  of(chat) {
    const named = name => this.list.find(model => model.id === name);
    const first = state => this.list.find(model => state(stateOf(model)));
    return named(chat?.model) ?? named(kept.read("model")) ?? first(state => state === "loaded") ?? first(state => state !== "failed") ?? this.list[0];
  }

  /** The same, of the moment when it is asked, loaded if it can be asked to be, so that it is known how it samples; `told` hears how far that is. */
  async chosen(chat, signal, told) {
    const asked = this.of(chat)?.id, found = () => this.list.find(model => model.id === asked) ?? this.of(chat);
    if (this.list.length !== 1 || !this.of(chat).sampling) await this.refresh();  // of several, one may have been unloaded
    if (!this.whole) throw new Problem("The server has no model. `edge-llm import` brings one.");
    const model = found(), state = stateOf(model);
    if (["unloaded", "sleeping"].includes(state) || (state === "loading" && this.list.length > 1)) await this.#load(found, signal, told);
    return found();
  }

  async #load(found, signal, told) {
    const look = async () => { await this.refresh().catch(() => {}); told(partOf(found())); };
    const timer = setInterval(look, 1000);
    told(0);
    try {
      await call("models/load", {body: {model: found().id}, signal});
    } catch (problem) {
      if (problem.status !== 404 && problem.status !== 405) throw problem;  // a server that loads with the question alone
    } finally {
      clearInterval(timer);
    }
    await this.refresh();
  }

  /** What a request for `chat` says of sampling: as people like it, where that is not what clients get; then what was set. */
  sampling(model, chat) {
    const {people = {}, clients = {}} = model.sampling ?? {}, found = {}, own = chat.sampling ?? {};
    for (const [name, value] of Object.entries(people)) if (JSON.stringify(value) !== JSON.stringify(clients[name])) found[name] = value;
    Object.assign(found, own);
    if (own.temperature === 0) delete found.dry_multiplier;  // greedy is the model's own words
    if (chat.thinking) found.reasoning_effort = chat.thinking;
    return found;
  }
}

export const stateOf = model => (typeof model.status === "string" ? model.status : model.status?.value) ?? "loaded";
/** How far the loading of `model` is, from 0 to 1. */
export const partOf = ({status: {progress} = {}}) => progress?.fraction ?? (progress?.total ? progress.done / progress.total : 0);
export const contextOf = model => model?.max_model_len ?? model?.meta?.n_ctx ?? null;

/** "2.3 M parameters", "8.3 bits per weight", "1,024 tokens of context", as far as they are known. */
export function factsOf(model) {
  const {n_params: count, bits_per_weight: bits, size = model?.status?.memory_bytes} = model?.meta ?? {}, context = contextOf(model);
  return [
    count && `${count >= 1e9 ? `${(count / 1e9).toFixed(1)} B` : `${Math.max(1, Math.round(count / 1e6))} M`} parameters`,
    size && `${bytes(size)}${bits ? ` at ${bits.toFixed(1)} bits` : ""}`, context && `${number(context)} tokens of context`,
  ].filter(Boolean);
}

const dot = model => h("i", {class: `dot ${stateOf(model)}`, "aria-hidden": "true"});

/** Shows the model of `chat` on the button in the header. */
export function showModel(button, models, chat) {
  const model = models.of(chat);
  if (!model) { dress(button, "chevron", "No model yet", "No model yet"); return; }
  const part = stateOf(model) === "loading" && partOf(model);
  const state = WORDS[stateOf(model)] ?? stateOf(model);
  button.replaceChildren(dot(model), h("span", {text: model.id}), ...(part ? [h("small", {text: `${Math.round(part * 100)} %`})] : []), icon("chevron"));
  button.setAttribute("aria-label", `Model: ${model.id}. ${state}`);
  button.title = `${model.id}: ${state}`;
}

/** The menu of models; `choose(id)` is called for the one that is chosen.  News that come late are shown in it. */
export async function openModels(button, models, chat, choose) {
  const news = models.refresh().catch(() => {});
  await Promise.race(models.whole ? [news, new Promise(resolve => setTimeout(resolve, 300))] : [news]);
  const box = openMenu(button, itemsOf(models, chat, choose), "Models"), shown = JSON.stringify(models.list);
  await news;
  if (box.isConnected && JSON.stringify(models.list) !== shown) openMenu(button, itemsOf(models, chat, choose), "Models", box.place);
}

function itemsOf(models, chat, choose) {
  const here = models.of(chat);
  const items = models.list.map(model => ({
    label: model.id, detail: [WORDS[stateOf(model)] ?? stateOf(model), ...factsOf(model)].join(" · "), checked: model === here, state: dot(model),
    disabled: stateOf(model) === "failed", on: () => choose(model.id),
  }));
  if (!items.length) items.push({label: "No models", detail: "The server does not answer, or has none", disabled: true, on: () => {}});
  return items;
}
