// The chat that is open: its messages on the page, and all that can be done with them.
import {announce, at, h} from "./dom.js";
import {contextOf, factsOf} from "./models.js";
import {drafts, held, newId} from "./drafts.js";
import {halves} from "./store.js";
import {below, leafOf, pathTo, siblings, treeOf} from "./tree.js";
import {Turn} from "./turn.js";
import {toast} from "./widgets.js";

const STARTERS = ["Explain how a hash table works", "Write a Python function that finds duplicates", "Give me three ideas for a short story"];
const CHARACTERS = 4;  // of a token, where nothing better is known
const ANSWER_MS = 1500;  // for which another tab is given time to say that it writes, where the browser does not know
const AT_ONCE = 40;  // messages that are drawn before the page is shown; older ones come while it is used
const NEAR = 60;  // pixels from the end at which the page follows what comes

const freshChat = () => ({id: newId(), title: "", named: false, created: Date.now(), updated: Date.now(), head: null, model: null, system: "", sampling: {}, thinking: "", start: null, $new: true});
const freshMessage = (chat, parent, role, more) => ({id: newId(), chat: chat.id, parent, role, content: "", files: [], created: Date.now(), state: role === "user" ? "done" : "waiting", error: null, ...more});

const isUnderWay = message => message?.state === "waiting" || message?.state === "writing";

export class Conversation {
  chat = freshChat();
  messages = [];
  follows = true;
  #turns = new Map();
  #tree = treeOf([]);
  #added = 0;  // how often messages of this page's own came to be
  #openings = 0;
  #from = 0;  // of the path: what is before this is not drawn yet
  #begins = false;  // a question is on its way into the store

  /** `told`: listed(), opened(), busy(), typedInto(text), deleted(). */
  constructor(store, answers, models, told) {
    Object.assign(this, {store, answers, models, told});
    at("log").addEventListener("scroll", () => { this.follows = this.#distance < NEAR; at("jump").hidden = this.follows; }, {passive: true});
    at("jump").addEventListener("click", () => { this.follows = true; this.#toEnd(); at("text").focus(); });
    new ResizeObserver(() => { if (this.follows) this.#toEnd(); }).observe(at("log"));
  }

  get #distance() { return at("log").scrollHeight - at("log").scrollTop - at("log").clientHeight; }
  get path() { return pathTo(this.#tree, this.chat.head); }
  get busy() { return this.#begins || Boolean(this.answers.of(this.chat.id)) || this.#isWrittenElsewhere; }
  get #isWrittenElsewhere() { return isUnderWay(this.path.at(-1)); }
  get place() { return this.chat.$new ? "new" : this.chat.id; }

  // ---- opening

  /** Open the chat `id`; where there is none, an empty one. */
  async open(id) {
    const opening = ++this.#openings, chat = id ? await this.store.chat(id) : null;
    if (opening !== this.#openings) return;
    this.chat = this.answers.of(id)?.chat ?? chat ?? freshChat();
    this.messages = [];
    this.#turns.clear();
    at("turns").replaceChildren();
    if (chat) await this.#read();
    await drafts.adopt(this.place, ...this.path.map(message => `edit:${message.id}`));
    if (opening !== this.#openings) return;
    this.follows = true;
    const {path} = this, edited = path.filter(message => drafts.read(`edit:${message.id}`));
    this.#from = Math.max(0, Math.min(path.length - AT_ONCE, ...edited.map(message => path.indexOf(message))));
    this.draw();
    this.#toEnd();
    for (const message of edited) this.#edit(message);
    this.told.opened();
    this.#drawOlder(opening);
  }

  /** Read all messages; the one that is written here is known better than the store does, and what came meanwhile is read again. */
  async #read() {
    const {id} = this.chat;
    let found, before;
    do {
      before = this.#added;
      found = await this.store.messages(id);
      if (this.chat.id !== id) return;
    } while (this.#added !== before);
    const own = this.answers.of(id)?.message;
    this.messages = found.map(message => (message.id === own?.id ? own : message));
    this.#tree = treeOf(this.messages);
    for (const message of this.messages) if (isUnderWay(message) && message !== own) this.#checkWriter(message).catch(error => console.error(error));
  }

  /** Another tab may be writing it; when none does, whoever did has gone. */
  async #checkWriter(message) {
    const names = await held();
    if (names ? names.has(`writes:${message.id}`) : await this.#isClaimed(message)) return;
    const stored = await this.store.message(message.id);
    if (this.answers.writes(message.id) || !isUnderWay(stored)) return;
    halves.restore(message);
    message.state = "broken";
    await this.store.renew(message);
    this.draw();
    this.told.busy();
  }

  /** Whether another tab says that it writes the message. */
  #isClaimed(message) {
    return new Promise(resolve => {
      const heard = event => { if (event.message === message.id) resolve(true); };
      this.store.addEventListener("mine", heard);
      setTimeout(() => { this.store.removeEventListener("mine", heard); resolve(false); }, ANSWER_MS);
      this.store.tell("whose", {message: message.id});
    });
  }

  /** Another tab has changed this chat. */
  async reread() {
    if (this.chat.$new) return;
    const stored = await this.store.chat(this.chat.id), grew = this.messages.length;
    if (!stored) { this.told.deleted(); return; }
    const {head} = this.chat;
    Object.assign(this.chat, stored, {head});
    await this.#read();
    const last = this.#tree.byId.get(head);
    if (this.messages.length > grew && last) this.chat.head = leafOf(this.#tree, last)?.id ?? head;  // what was said there goes on here
    this.draw();
    this.told.busy();
  }

  stop() {
    if (this.answers.of(this.chat.id)) this.answers.stop(this.chat.id);
    else this.store.tell("stop", {chat: this.chat.id});
  }

  // ---- drawing

  #drawOlder(opening) {
    setTimeout(() => {
      if (opening !== this.#openings || !this.#from) return;
      this.#from = Math.max(0, this.#from - AT_ONCE / 2);
      this.draw();
      this.#drawOlder(opening);
    }, 50);
  }

  draw() {
    this.#tree = treeOf(this.messages);
    const whole = this.path;
    this.#from = Math.max(0, Math.min(this.#from, whole.length - AT_ONCE));
    const path = whole.slice(this.#from), shown = new Set(path.map(message => message.id));
    for (const [id, turn] of this.#turns) if (!shown.has(id)) { turn.element.remove(); this.#turns.delete(id); }
    at("turns").querySelectorAll(".welcome, .cut").forEach(element => element.remove());
    path.forEach((message, index) => {
      const turn = this.#turnOf(message);
      if (at("turns").children[index] !== turn.element) at("turns").insertBefore(turn.element, at("turns").children[index] ?? null);
      turn.update(message, siblings(this.#tree, message), () => this.#drawn());
    });
    const start = this.chat.start && this.#turns.get(this.chat.start);
    if (start && whole[0].id !== this.chat.start) start.element.before(h("p", {class: "cut", role: "separator", text: "What is above is no longer sent to the model"}));
    if (!path.length) at("turns").append(this.#welcome());
    this.#drawn();
  }

  /** A piece has come. */
  grew(message) {
    const turn = this.#turns.get(message.id);
    if (!turn) return;
    turn.update(message, siblings(this.#tree, message), () => this.#drawn());
    this.#drawn();
  }

  #turnOf(message) {
    if (!this.#turns.has(message.id)) this.#turns.set(message.id, new Turn(message, this.#acts));
    return this.#turns.get(message.id);
  }

  #drawn() {
    if (this.follows) this.#toEnd();
    at("jump").hidden = this.follows;
  }

  #toEnd() { at("log").scrollTop = at("log").scrollHeight; }

  #welcome() {
    const model = this.models.of(this.chat);
    return h("div", {class: "welcome"}, h("span", {class: "mark", "aria-hidden": "true"}, h("i"), h("i"), h("i")),
      h("h2", {text: "What is on your mind?"}), model && h("p", {text: [model.id, ...factsOf(model)].join(" · ")}), h("p", {class: "faint", text: "Runs on your own machine. Chats stay in this browser."}),
      h("div", {class: "starters"}, STARTERS.map(text => h("button", {type: "button", text, on: {click: () => this.told.typedInto(text)}}))));
  }

  // ---- the context

  /** {used, more, whole} in tokens: the last answer's own count, and an estimate of what came or is typed since. */
  context(typed) {
    const path = this.path, counted = path.findLastIndex(message => message.figures?.prompt), last = path[counted];
    const used = last ? last.figures.prompt + (last.figures.written ?? 0) : 0;
    const length = message => message.content.length + (message.files ?? []).reduce((sum, file) => sum + file.text.length, 0);
    const known = path.slice(0, counted + 1).reduce((sum, message) => sum + length(message), 0);
    const each = used > 200 ? known / used : CHARACTERS;
    const later = path.slice(counted + 1).reduce((sum, message) => sum + length(message), 0);
    return {used, more: Math.ceil((later + typed) / Math.max(1, each)), whole: contextOf(this.models.of(this.chat))};
  }

  // ---- acts

  /** Keep the question, then have it answered; raises where it cannot be kept. */
  async send(text, files) {
    const {chat} = this, question = freshMessage(chat, this.path.at(-1)?.id ?? null, "user", {content: text, files});
    if (!chat.named && !chat.title) chat.title = titleOf(text || files[0].name);
    await this.#answerTo(question);
  }

  async #answerTo(question) {
    const answer = freshMessage(this.chat, question.id, "assistant", {created: question.created + 1});
    await this.#begin([question, answer]);
  }

  /** Keep new messages, of which the last is an answer that is to be written. */
  async #begin(messages) {
    this.#begins = true;
    try { await this.#beginNow(messages); } finally { this.#begins = false; }
  }

  async #beginNow(messages) {
    const {chat} = this, before = {...chat}, release = await this.answers.claim(messages.at(-1).id);
    if (!release) { toast("Another tab is writing this answer"); return; }
    Object.assign(chat, {head: messages.at(-1).id, updated: Date.now()});
    try { await this.store.save(chat, ...messages); } catch (error) { Object.assign(chat, before); release(); throw error; }
    this.#add(messages);
    const path = this.path;
    this.follows = true;
    const written = this.answers.start(chat, path, release);
    this.draw();
    this.told.listed();
    this.told.busy();
    announce("Sent");
    written.catch(error => console.error(error));
  }

  #add(messages) {
    delete this.chat.$new;
    this.#added += 1;
    this.messages = [...this.messages.filter(old => !messages.some(message => message.id === old.id)), ...messages];
    this.#tree = treeOf(this.messages);
  }

  async #show(head) {
    this.chat.head = head;
    this.draw();
    if (!this.chat.$new) await this.store.save(this.chat);
  }

  #acts = {
    edit: message => this.#edit(message), again: message => this.again(message), goOn: message => this.#goOn(message), remove: message => this.#remove(message),
    step: message => { this.#show(leafOf(this.#tree, message).id).then(() => this.#turns.get(message.id)?.element.focus()); }, shorten: message => this.#shorten(message),
  };

  #waits() {
    if (this.busy) toast("Still answering. Esc stops it");
    return this.busy;
  }

  /** Another answer beside `message`; in its place where there is nothing in it yet. */
  async again(message) {
    if (this.#waits()) return;
    if (message.content || message.thought) {
      await this.#begin([freshMessage(this.chat, message.parent, "assistant")]);
    } else {
      delete message.figures;
      await this.#begin([message]);
    }
  }

  async #goOn(message) {
    if (this.#waits()) return;
    this.chat.head = message.id;
    await this.#begin([message]);
  }

  #edit(message) {
    const place = `edit:${message.id}`, turn = this.#turns.get(message.id);
    if (!turn || turn.editor) return;
    turn.edit(drafts.read(place), {
      changed: text => drafts.write(place, text),
      left: text => { drafts.drop(place, text); turn.element.focus(); },
      done: async text => {
        if (!text.trim() && !message.files?.length) { drafts.drop(place, text); return; }
        if (message.role === "user" && this.#waits()) { this.#edit(message); return; }
        await this.#replace(message, text.trim());
        drafts.drop(place, text);
        at("text").focus();
      },
    });
  }

  async #replace(message, text) {
    if (message.role === "user") {
      const first = message.parent === null && !this.chat.named;
      if (first) this.chat.title = titleOf(text || message.files[0].name);
      await this.#answerTo(freshMessage(this.chat, message.parent, "user", {content: text, files: message.files}));
      return;
    }
    const edited = freshMessage(this.chat, message.parent, "assistant", {content: text, thought: message.thought, thoughtMs: message.thoughtMs, model: message.model, state: "done"});
    await this.store.save(null, edited);
    this.#add([edited]);
    await this.#show(edited.id);
  }

  async #remove(message) {
    const doomed = below(this.#tree, message), {chat} = this, {head} = chat;
    if (doomed.some(one => this.answers.writes(one.id))) await this.answers.finish(chat.id);
    const others = siblings(this.#tree, message).filter(one => one !== message);
    this.messages = this.messages.filter(one => !doomed.includes(one));
    this.#tree = treeOf(this.messages);
    await this.store.remove(chat.id, doomed, false);
    const shown = this.#show(others.length ? leafOf(this.#tree, others.at(-1)).id : message.parent);
    if (this.path.length) this.walk(-1);
    else at("text").focus();
    await shown;
    toast(doomed.length > 1 ? `${doomed.length} messages deleted` : "Message deleted", {label: "Undo", on: async () => {
      await this.store.save(null, ...doomed);
      if (this.chat !== chat) return;
      this.#add(doomed);
      await this.#show(head);
    }});
  }

  /** Leave out the oldest turns, until what is left takes about half of the context, and ask again. */
  async #shorten(message) {
    const path = this.path.slice(0, -1), {prompt, context} = message.error;
    const from = Math.max(0, path.findIndex(one => one.id === this.chat.start));
    const length = one => one.content.length + (one.files ?? []).reduce((sum, file) => sum + file.text.length, 0);
    const whole = path.slice(from).reduce((sum, one) => sum + length(one), 0), goal = (whole * context * 0.55) / prompt;
    let left = whole, start = from;
    while (left > goal && start < path.length) left -= length(path[start++]);
    while (start < path.length && path[start].role !== "user") start += 1;
    if (start >= path.length) start = path.findLastIndex(one => one.role === "user");
    if (start <= from) { toast("This one message alone is too long for the model"); return; }
    this.chat.start = path[start].id;
    await this.again(message);
  }

  editLast() {
    const last = this.path.findLast(message => message.role === "user");
    if (last && !this.busy) this.#edit(last);
  }

  /** Moves the focus from message to message. */
  walk(step) {
    const all = [...at("turns").querySelectorAll("article")], here = all.indexOf(document.activeElement?.closest("article"));
    const next = here < 0 ? (step < 0 ? all.length - 1 : -1) : here + step;
    if (next >= all.length) at("text").focus();
    else all[Math.max(0, next)]?.focus();
  }
}

function titleOf(text) {
  const line = [...text.trim().split("\n", 1)[0].trim()];
  return line.length > 70 ? `${line.slice(0, 68).join("").replace(/\s+\S*$/, "")}…` : line.join("");
}
