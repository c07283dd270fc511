// Chats in this browser alone: IndexedDB, or memory where it is closed; other tabs hear of what changes.
//
// A chat: {id, title, named, created, updated, head, model, system, sampling, thinking, start}; `head` is the last message shown.
// A message: {id, chat, parent, role, content, thought, thoughtMs, files, created, state, error, model, figures}; messages are a tree.
// state of an answer: waiting, writing, done, stopped, cut, repeated, failed, broken.
import {kept} from "./dom.js";
import {drafts} from "./drafts.js";

const STORES = ["chats", "messages", "files"];

const settled = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

class Shelf {  // IndexedDB
  static async open() {
    const request = indexedDB.open("edge-llm", 1);
    request.onupgradeneeded = () => {
      for (const name of STORES) request.result.createObjectStore(name, {keyPath: "id"});
      request.transaction.objectStore("messages").createIndex("chat", "chat");
    };
    const shelf = new Shelf();
    shelf.database = await settled(request);
    return shelf;
  }
  #on(name, mode = "readonly") { return this.database.transaction(name, mode).objectStore(name); }
  get(name, id) { return settled(this.#on(name).get(id)); }
  all(name) { return settled(this.#on(name).getAll()); }
  keys(name) { return settled(this.#on(name).getAllKeys()); }
  of(chat) { return settled(this.#on("messages").index("chat").getAll(chat)); }
  change(puts, deletes) {
    const work = this.database.transaction(STORES, "readwrite");
    for (const [name, value] of puts) work.objectStore(name).put(value);
    for (const [name, id] of deletes) work.objectStore(name).delete(id);
    return ended(work);
  }
  renew(message) {
    const work = this.database.transaction("messages", "readwrite"), messages = work.objectStore("messages"), request = messages.getKey(message.id);
    request.onsuccess = () => { try { if (request.result !== undefined) messages.put(message); } catch { work.abort(); } };
    return ended(work);
  }
}

const ended = work => new Promise((resolve, reject) => { work.oncomplete = resolve; work.onabort = work.onerror = () => reject(work.error ?? new Error("the browser did not keep it")); });

class Memory {
  maps = Object.fromEntries(STORES.map(name => [name, new Map()]));
  async get(name, id) { return this.maps[name].get(id); }
  async all(name) { return structuredClone([...this.maps[name].values()]); }
  async keys(name) { return [...this.maps[name].keys()]; }
  async of(chat) { return (await this.all("messages")).filter(message => message.chat === chat); }
  async change(puts, deletes) {
    for (const [name, value] of puts) this.maps[name].set(value.id, structuredClone(value));
    for (const [name, id] of deletes) this.maps[name].delete(id);
  }
  async renew(message) { if (this.maps.messages.has(message.id)) this.maps.messages.set(message.id, structuredClone(message)); }
}

export class Store extends EventTarget {
  #shelf;
  #radio = "BroadcastChannel" in window ? new BroadcastChannel("edge-llm") : null;

  static async open() {
    const store = new Store();
    try { store.#shelf = await Shelf.open(); } catch { store.#shelf = new Memory(); }
    store.lasting = store.#shelf instanceof Shelf;
    if (store.#radio) store.#radio.onmessage = event => store.dispatchEvent(Object.assign(new Event(event.data.kind), event.data));
    return store;
  }

  chats() { return this.#shelf.all("chats"); }
  chat(id) { return this.#shelf.get("chats", id); }
  message(id) { return this.#shelf.get("messages", id); }
  messages(chat) { return chat === undefined ? this.#shelf.all("messages") : this.#shelf.of(chat); }
  tell(kind, more) { this.#radio?.postMessage({kind, ...more}); }

  async save(chat, ...messages) {
    await this.#shelf.change([...(chat ? [["chats", plain(chat)]] : []), ...messages.map(message => ["messages", plain(message)])], []);
    this.tell("changed", {chat: chat?.id ?? messages[0].chat});
  }

  /** Keep chats with all their messages, or nothing of them. */
  async add(chats, messages) {
    await this.#shelf.change([...chats.map(chat => ["chats", plain(chat)]), ...messages.map(message => ["messages", plain(message)])], []);
    for (const {id} of chats) this.tell("changed", {chat: id});
  }

  /** Keep what has become of `message`, unless it was deleted meanwhile. */
  async renew(message) {
    await this.#shelf.renew(plain(message));
    this.tell("changed", {chat: message.chat});
  }

  async remove(chat, messages, whole) {
    await this.#shelf.change([], [...(whole ? [["chats", chat]] : []), ...messages.map(message => ["messages", message.id])]);
    this.tell("changed", {chat});
  }

  /** What was attached at `place` and not sent, by this tab or by one that is gone. */
  async files(place) {
    const own = await this.#shelf.get("files", drafts.slot(place));
    if (own) return own.files;
    const left = await drafts.left(place, await this.#shelf.keys("files")), found = left.length ? await this.#shelf.get("files", left[0]) : null;
    if (!found) return [];
    await this.#shelf.change([["files", {...found, id: drafts.slot(place)}]], [["files", left[0]]]);
    return found.files;
  }

  keepFiles(place, files) {
    const id = drafts.slot(place);
    return this.#shelf.change(files.length ? [["files", {id, files}]] : [], files.length ? [] : [["files", id]]);
  }
}

const plain = value => Object.fromEntries(Object.entries(value).filter(([name]) => !name.startsWith("$")));  // $: of this page's life only

/** Answers under way when the page goes: what it tells the database then may come too late. */
export const halves = {
  keep({id, content, thought}) { kept.write(`half:${id}`, JSON.stringify({content, thought})); },
  drop(id) { kept.write(`half:${id}`, null); },
  restore(message) {
    const half = JSON.parse(kept.read(`half:${message.id}`) ?? "null");
    if (half && half.content.length >= message.content.length) Object.assign(message, half);
    this.drop(message.id);
  },
};
