// The box for the next message: what is typed and attached stays until it is sent, through reloads and crashes.
import {at, bytes, dress, h, icon, short, tool} from "./dom.js";
import {drafts} from "./drafts.js";
import {grow} from "./turn.js";
import {toast} from "./widgets.js";

const MOST_BYTES = 1 << 20;
const MOST_FILES = 20;
export const TOUCH = matchMedia("(hover: none) and (pointer: coarse)");  // there Enter breaks the line: it has no Shift at hand

export class Composer {
  #place = null;  // none until a chat is open
  #files = [];
  queued = false;  // it is sent when the answer under way has ended

  /** `acts`: send(text, files), stop(), editLast(), busy(). */
  constructor(store, acts) {
    Object.assign(this, {store, acts});
    dress(at("attach"), "clip", "Attach text files");
    dress(at("halt"), "stop", "Stop (Esc)");
    at("halt").addEventListener("click", () => { acts.stop(); at("text").focus(); });
    at("text").enterKeyHint = TOUCH.matches ? "enter" : "send";
    at("text").addEventListener("input", () => this.#typed());
    at("text").addEventListener("keydown", event => this.#key(event));
    at("composer").addEventListener("submit", event => {
      event.preventDefault();
      if (event.submitter && acts.busy() && !this.#ready) acts.stop();
      else this.submit();
    });
    at("attach").addEventListener("click", () => at("picked").click());
    at("picked").addEventListener("change", () => { this.attach([...at("picked").files]); at("picked").value = ""; });
    at("text").addEventListener("paste", event => { if (event.clipboardData.files.length) { event.preventDefault(); this.attach([...event.clipboardData.files]); } });
    const main = document.querySelector("main");
    main.addEventListener("dragover", event => { event.preventDefault(); main.classList.add("drop"); });
    main.addEventListener("dragleave", () => main.classList.remove("drop"));
    main.addEventListener("drop", event => { event.preventDefault(); main.classList.remove("drop"); this.attach([...event.dataTransfer.files]); });
  }

  get #ready() { return Boolean(at("text").value.trim() || this.#files.length); }
  get size() { return at("text").value.length + this.#files.reduce((sum, file) => sum + file.text.length, 0); }

  /** Show what was typed for the chat `place`. */
  async open(place) {
    const early = this.#place === null ? at("text").value : "", draft = drafts.read(place);
    this.#place = place;
    this.queued = false;
    at("text").value = draft && early && draft !== early ? `${draft}\n\n${early}` : draft || early;
    if (early) this.#keep();
    this.#files = [];
    this.draw();
    const files = await this.store.files(place);
    if (this.#place !== place || !files.length) return;
    this.#files = [...files, ...this.#files];
    this.draw();
  }

  /** What is in the box now belongs to the chat `place`. */
  move(place) {
    if (place === this.#place) return;
    const before = this.#place;
    this.#place = place;
    const typed = at("text").value, there = drafts.read(place);
    if (typed) {
      if (there && there !== typed) at("text").value = `${there}\n\n${typed}`;
      this.#keep();
      drafts.drop(before, typed);
    }
    if (this.#files.length) Promise.all([this.store.keepFiles(place, this.#files), this.store.keepFiles(before, [])]).catch(() => {});
  }

  /** Write `text` in front of what is there: it could not be sent. */
  put(text) {
    at("text").value = [text, at("text").value].filter(Boolean).join("\n\n");
    this.#typed();
    at("text").focus();
  }

  async submit() {
    if (!this.#ready || this.#place === null) return;
    if (this.acts.busy()) {
      this.queued = true;
      this.draw();
      return;
    }
    const text = at("text").value.trim(), files = this.#files, typed = at("text").value, place = this.#place;
    this.queued = false;
    this.#files = [];
    at("text").value = "";
    this.draw();
    try {
      await this.acts.send(text, files);
    } catch (error) {
      this.#files = files;
      this.put(typed);
      toast(`This could not be kept, so it was not sent: ${error.message}`);
      return;
    }
    drafts.drop(place, typed);
    this.store.keepFiles(place, []).catch(() => {});
  }

  async attach(files) {
    const place = this.#place;
    for (const file of files) {
      try {
        const read = await readText(file, this.#files.length);
        if (this.#place === place) this.#files.push(read);
        else await this.store.keepFiles(place, [...(await this.store.files(place)), read]);  // another chat was opened meanwhile
      } catch (error) { toast(error.message); }
    }
    if (this.#place !== place) return;
    this.store.keepFiles(this.#place, this.#files).catch(() => toast("There is no room in this browser to keep the file over a reload"));
    this.draw();
    at("text").focus();
  }

  draw() {
    const busy = this.acts.busy(), stop = busy && !this.#ready;
    dress(at("send"), stop ? "stop" : "send", stop ? "Stop (Esc)" : busy ? "Send when the answer has ended" : "Send");
    at("send").classList.toggle("stop", stop);
    at("send").disabled = !busy && !this.#ready;
    at("halt").hidden = !busy || stop;
    this.#showQueue(busy);
    at("files").hidden = !this.#files.length;
    at("files").replaceChildren(...this.#files.map((file, index) => h("span", {class: "chip"}, icon("file"), h("span", {text: file.name}), h("small", {text: bytes(file.text.length)}),
      tool("close", `Take ${file.name} away`, () => { this.#files = this.#files.filter((_, other) => other !== index); this.store.keepFiles(this.#place, this.#files); this.draw(); at("text").focus(); }))));
    grow(at("text"));
  }

  #showQueue(busy) {
    this.queued &&= busy && this.#ready;
    if (at("queued").hidden === !this.queued) return;
    at("queued").hidden = !this.queued;
    at("queued").replaceChildren(h("span", {text: "Is sent when the answer has ended."}), h("button", {type: "button", text: "Not yet", on: {click: () => { this.queued = false; this.draw(); at("text").focus(); }}}));
  }

  #typed() {
    this.#keep();
    this.queued = false;
    this.draw();
    this.acts.typed();
  }

  #keep() { if (this.#place !== null) drafts.write(this.#place, at("text").value); }

  #key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !TOUCH.matches) { event.preventDefault(); this.submit(); }
    if (event.key === "ArrowUp" && !at("text").value && !event.altKey) { event.preventDefault(); this.acts.editLast(); }
  }
}

async function readText(file, count) {
  if (count >= MOST_FILES) throw new Error(`At most ${MOST_FILES} files go with a message`);
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; at most ${bytes(MOST_BYTES)} are read`);
  let text;
  try {
    const data = new Uint8Array(await file.arrayBuffer()), mark = (data[0] << 8) | data[1];
    text = new TextDecoder({0xfffe: "utf-16le", 0xfeff: "utf-16be"}[mark] ?? "utf-8", {fatal: true}).decode(data);
  } catch { text = "\0"; }
  if (text.includes("\0")) throw new Error(`${file.name} is no text; this model reads text only`);
  return {name: file.name, text};
}

/** How full the model's context is: `used` tokens of `whole`, and `more` by what is typed, an estimate. */
export function showMeter(used, more, whole) {
  const box = at("meter");
  box.hidden = !whole;
  if (!whole) return;
  const part = tokens => Math.min(100, (100 * tokens) / whole), all = part(used + more);
  const words = `${short(used)}${more ? ` + ~${short(more)}` : ""} / ${short(whole)}`;
  box.className = `meter ${all >= 95 ? "full" : all >= 80 ? "near" : ""}`;
  const bar = h("span", {class: "gauge"}, h("i", {class: "more"}), h("i"));
  bar.firstChild.style.width = `${all}%`;
  bar.lastChild.style.width = `${part(used)}%`;
  box.replaceChildren(bar, h("span", {text: words}));
  box.title = `${used} tokens of the model's context of ${whole} are used${more ? `; what is typed adds about ${more}` : ""}`;
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `Context: ${Math.round(all)} percent used`);
}
