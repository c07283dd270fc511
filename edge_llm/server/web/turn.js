// One message on the page: what was said, thought, attached, went wrong, and what can be done with it.
import {bytes, counted, h, icon, number, tool} from "./dom.js";
import {Markdown} from "./markdown.js";
import {copy} from "./widgets.js";

const ENDS = {
  stopped: "Stopped.", cut: "Cut off: the limit of tokens is reached.", repeated: "Stopped: it repeated itself.",
  broken: "Broke off: the page was closed while it was written.",
};
const LONG = 2000;  // characters of a question that is shown in part
const seconds = ms => ms < 950 ? `${Math.round(ms)} ms` : ms < 90000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60000)} min`;

export class Turn {
  #drawn = 0;  // when the answer was drawn last
  #cost = 0;  // and how long that took
  #timer = null;
  #whole = null;  // the text that is drawn and cannot change by itself

  /** `acts` has what the buttons do: edit, save, again, goOn, remove, step, shorten, copyAs. */
  constructor(message, acts) {
    Object.assign(this, {message, acts});
    this.body = h("div", {class: "body"});
    this.status = h("div", {class: "status"});
    this.foot = h("div", {class: "foot"});
    this.element = h("article", {class: message.role, tabindex: "-1", "data-id": message.id, "aria-label": message.role === "user" ? "You" : "Answer"});
    if (message.role === "assistant") this.#prepareAnswer();
    this.element.append(this.body, this.status, this.foot);
  }

  #prepareAnswer() {
    this.name = h("div", {class: "name"});
    this.thought = h("div", {class: "thought-text"});
    this.summary = h("span");
    this.fold = h("details", {class: "thought", hidden: true}, h("summary", {}, icon("chevron"), this.summary), this.thought);
    this.fold.querySelector("summary").addEventListener("click", () => { this.touched = true; });
    this.markdown = new Markdown(this.body);
    this.element.append(this.name, this.fold);
  }

  get busy() { return this.message.state === "waiting" || this.message.state === "writing"; }

  /** Show the message as it is now; `siblings` are its versions.  A piece of an answer is drawn soon, not at once. */
  update(message, siblings, drawn = () => {}) {
    Object.assign(this, {message, siblings});
    const wait = this.busy ? Math.max(33, 4 * this.#cost) - (performance.now() - this.#drawn) : 0;
    if (wait <= 0) this.#draw();
    else this.#timer ??= setTimeout(() => { this.#draw(); drawn(); }, wait);
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const began = performance.now();
    if (this.message.role === "user") this.#drawQuestion();
    else this.#drawAnswer();
    this.#drawFoot();
    this.#drawn = performance.now();
    this.#cost = this.#drawn - began;
  }

  #drawQuestion() {
    const {content, files} = this.message;
    if (this.editor || this.#whole === content) return;
    this.#whole = content;
    const chips = (files ?? []).map(({name, text}) => h("details", {class: "file"}, h("summary", {}, icon("file"), h("span", {text: name}), h("small", {text: bytes(text.length)})), h("pre", {tabindex: "0", text})));
    this.body.replaceChildren(...(chips.length ? [h("div", {class: "chips"}, chips)] : []), ...(content ? [words(content)] : []));
  }

  #drawAnswer() {
    const {message} = this;
    this.name.textContent = message.model ?? "";
    this.element.classList.toggle("busy", this.busy);
    this.element.setAttribute("aria-busy", String(this.busy));
    this.#drawThought();
    if (!this.editor && this.#whole !== message.content) {
      this.markdown.update(message.content, !this.busy);
      this.#whole = this.busy ? null : message.content;
    }
    this.status.replaceChildren(...this.#statusParts().filter(Boolean));
  }

  #drawThought() {
    const {thought, thoughtMs, content} = this.message, thinking = this.busy && !content;
    this.fold.hidden = !thought;
    if (!thought) return;
    const shown = this.thought.firstChild;
    if (shown && thought.startsWith(shown.data)) shown.appendData(thought.slice(shown.data.length));
    else this.thought.textContent = thought;
    this.summary.textContent = thinking ? (thoughtMs < 950 ? "Thinking" : `Thinking for ${seconds(thoughtMs)}`) : `Thought for ${thoughtMs < 950 ? "a moment" : seconds(thoughtMs)}`;
    this.fold.classList.toggle("thinking", thinking);
    if (!this.touched) this.fold.open = thinking;
    if (thinking) this.thought.scrollTop = this.thought.scrollHeight;
  }

  #statusParts() {
    const {state, error, $progress: progress, $note: note} = this.message;
    if (state === "waiting") return [this.#reading(progress, note)];
    if (state === "failed") return [this.#problem(error)];
    return ENDS[state] ? [h("p", {class: "note", text: ENDS[state]})] : [];
  }

  #reading(progress, note) {
    const done = progress?.total ? Math.min(1, progress.processed / progress.total) : null;
    const text = note ?? (done === null ? "Reading" : `Reading ${number(progress.processed)} of ${number(progress.total)} tokens`);
    const since = this.message.$since ? Date.now() - this.message.$since : 0;
    const bar = h("div", {class: done === null ? "progress unknown" : "progress", role: "progressbar", "aria-label": "Reading the prompt", "aria-valuenow": done === null ? null : Math.round(done * 100)}, h("i"));
    if (done !== null) bar.firstChild.style.width = `${done * 100}%`;
    return h("div", {class: "reading"}, bar, h("span", {text: since > 1500 ? `${text} · ${seconds(since)}` : text}));
  }

  #problem(error) {
    const full = error?.code === "context_length_exceeded";
    const text = full ? `The chat no longer fits: ${number(error.prompt ?? 0)} tokens, and the model reads ${number(error.context ?? 0)}.` : error?.text ?? "Something went wrong.";
    const buttons = [
      full && h("button", {type: "button", text: "Leave out the oldest turns", on: {click: () => this.acts.shorten(this.message)}}),
      h("button", {type: "button", on: {click: () => this.acts.again(this.message)}}, icon("retry"), h("span", {text: "Try again"})),
    ];
    return h("div", {class: "problem", role: "alert"}, icon("warn"), h("span", {text}), h("div", {class: "row"}, ...buttons.filter(Boolean)));
  }

  #drawFoot() {
    if (this.busy || this.editor) { this.foot.replaceChildren(); return; }
    const {message, acts} = this, answer = message.role === "assistant", parts = [];
    const state = JSON.stringify([message.state, message.figures, message.content === "", this.siblings.map(one => one.id)]);
    if (state === this.shown) return;
    this.shown = state;
    if (this.siblings.length > 1) parts.push(this.#versions());
    if (message.content) parts.push(tool("copy", "Copy", event => copy(message.content, event.currentTarget)));
    parts.push(tool("edit", answer ? "Edit the answer" : "Edit and ask again", () => acts.edit(message)));
    if (answer) parts.push(tool("retry", "Answer again", () => acts.again(message)));
    if (answer && message.content && message.state !== "done") parts.push(h("button", {type: "button", class: "quiet named", on: {click: () => acts.goOn(message)}}, icon("play"), h("span", {text: "Continue"})));
    parts.push(tool("trash", "Delete from here on", () => acts.remove(message)));
    if (answer && message.figures?.written) parts.push(this.#figures(message.figures));
    this.foot.replaceChildren(...parts);
  }

  #versions() {
    const here = this.siblings.findIndex(one => one.id === this.message.id), count = this.siblings.length;
    const step = (name, label, to) => tool(name, label, () => this.acts.step(this.siblings[to]), {disabled: !this.siblings[to]});
    return h("span", {class: "versions", role: "group", "aria-label": `Version ${here + 1} of ${count}`},
      step("left", "Earlier version", here - 1), h("span", {text: `${here + 1}/${count}`}), step("right", "Later version", here + 1));
  }

  #figures({written, speed, prompt, cached, first, drafted, accepted}) {
    const all = [
      counted(written, "token"), speed > 0 && `${speed >= 100 ? Math.round(speed) : speed.toFixed(1)} per second`, first > 0 && `first after ${seconds(first)}`,
      `prompt ${number(prompt ?? 0)}${cached ? `, ${number(cached)} cached` : ""}`, drafted > 0 && `${Math.round((100 * accepted) / drafted)} % of ${drafted} guesses right`,
    ].filter(Boolean);
    return h("span", {class: "figures", title: all.join(" · "), text: all.slice(0, 2).join(" · ")});
  }

  /** Puts a box for another text in the place of this one; `draft` is what was typed before. */
  edit(draft, {changed, done, left}) {
    const answer = this.message.role === "assistant";
    const field = h("textarea", {"aria-label": answer ? "Edit the answer" : "Edit your message", value: draft || this.message.content, on: {input: () => { grow(field); changed(field.value); }}});
    const end = act => { this.editor = this.shown = this.#whole = null; this.body.replaceChildren(); if (answer) this.markdown = new Markdown(this.body); this.#draw(); act(field.value); };
    field.addEventListener("keydown", event => {
      if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); end(left); }
      if (event.key === "Enter" && !event.isComposing && (answer ? event.ctrlKey || event.metaKey : !event.shiftKey)) { event.preventDefault(); end(done); }
    });
    this.editor = h("div", {class: "editor"}, field, h("div", {class: "row"},
      h("button", {type: "button", class: "primary", text: answer ? "Save" : "Send", on: {click: () => end(done)}}),
      h("button", {type: "button", text: "Cancel", on: {click: () => end(left)}})));
    this.body.replaceChildren(this.editor);
    this.foot.replaceChildren();
    grow(field);
    field.focus();
  }
}

/** A question; of a long one the beginning, until all of it is asked for. */
function words(text) {
  const box = h("div", {class: "words", text});
  if (text.length < LONG && text.split("\n").length < LONG / 50) return box;
  const more = h("button", {type: "button", class: "quiet named", text: "Show all of it", "aria-expanded": "false", on: {click: () => {
    const whole = box.classList.toggle("whole");
    more.textContent = whole ? "Show less" : "Show all of it";
    more.setAttribute("aria-expanded", String(whole));
  }}});
  box.classList.add("long");
  return h("div", {}, box, more);
}

/** Makes a box as high as its text, up to what its style allows. */
export function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
