// What holds for one chat: its system prompt, how its answers are sampled, how hard the model thinks.
import {at, cover, h, tool} from "./dom.js";
import {SAMPLING, THINKING, factsOf} from "./models.js";

const FIELDS = {
  temperature: ["Temperature", 0, 2, 0.05, "0 always takes the likeliest word; higher is more varied."],
  top_p: ["Top p", 0, 1, 0.01, "Only the likeliest words that together have this probability."],
  top_k: ["Top k", 0, null, 1, "Only so many of the likeliest words; 0 is all."],
  min_p: ["Min p", 0, 1, 0.01, "No word less likely than this part of the likeliest one."],
  repetition_penalty: ["Repetition penalty", 0.01, null, 0.01, "Above 1, what was said is less likely to come again."],
  max_tokens: ["Longest answer", 1, null, 1, "In tokens; empty is as long as fits."],
  seed: ["Seed", 0, null, 1, "The same seed and question give the same answer."],
};

/** Fills the panel for `chat`; `changed()` is called for every change of it. */
export function settingsPanel(chat, models, {changed, close}) {
  const model = models.of(chat), people = model?.sampling?.people ?? {};
  const set = (name, value) => { chat[name] = value; changed(); };
  const system = h("textarea", {id: "system", rows: "5", value: chat.system ?? "", placeholder: "How the model is to answer in this chat", on: {input: () => set("system", system.value)}});
  const thinking = h("select", {id: "thinking", on: {change: () => set("thinking", thinking.value)}}, THINKING.map(([value, label]) => h("option", {value, text: label, selected: value === (chat.thinking ?? "")})));
  const fields = [...SAMPLING, "max_tokens", "seed"].map(name => field(name, chat, people, changed));
  const reset = h("button", {type: "button", text: "Back to the model's own", on: {click: () => { chat.sampling = {}; chat.thinking = ""; changed(); for (const input of panel.querySelectorAll("[data-sampling]")) input.value = ""; thinking.value = ""; }}});
  const panel = h("div", {class: "panel-body"}, h("label", {for: "system", text: "System prompt"}), system,
    h("h3", {text: "Sampling"}), h("div", {class: "fields"}, fields), h("label", {for: "thinking", text: "Thinking"}), thinking,
    h("p", {class: "faint", text: "An empty field has the model's own value. All of this holds for this chat alone, from the next answer on."}), reset,
    model && h("div", {class: "facts"}, h("h3", {text: model.id}), factsOf(model).map(fact => h("span", {text: fact}))));
  return [head("This chat", close), panel];
}

function field(name, chat, people, changed) {
  const [label, min, max, step, help] = FIELDS[name];
  const input = h("input", {
    id: `set-${name}`, type: "number", inputmode: "decimal", min, max, step: "any", "data-step": step, "data-sampling": name, value: chat.sampling?.[name] ?? "", placeholder: people[name] ?? (name === "max_tokens" ? "all" : "any"),
    "aria-describedby": `help-${name}`, on: {input: () => {
      const own = {...chat.sampling};
      delete own[name];
      if (input.value !== "" && input.validity.valid) own[name] = Number(input.value);
      chat.sampling = own;
      changed();
    }},
  });
  return h("div", {class: "field", title: help}, h("label", {for: input.id, text: label}), input, h("span", {class: "away", id: `help-${name}`, text: help}));
}

export const head = (title, close) => h("div", {class: "panel-head"}, h("h2", {text: title}), tool("close", "Close", close));

/** Opens the panel with `parts`, or closes it. */
export function showPanel(name, parts) {
  const panel = at("panel");
  panel.hidden = !name;
  panel.dataset.name = name ?? "";
  panel.setAttribute("aria-label", name ?? "");
  panel.replaceChildren(...(parts ?? []));
  document.body.classList.toggle("with-panel", Boolean(name));
  cover();
  for (const [id, its] of [["settings-open", "settings"], ["inside-open", "inside"]]) at(id).setAttribute("aria-expanded", String(its === name));
}
