// Chats in this browser alone: IndexedDB, or memory where it is closed; other tabs hear of what changes.
//
// A chat: {id, title, named, created, updated, head, model, system, sampling, thinking, start}; `head` is the last message shown.
// A message: {id, chat, parent, role, content, thought, thoughtMs, files, created, state, error, model, figures}; messages are a tree.
// state of an answer: waiting, writing, done, stopped, cut, repeated, failed, broken.
import {kept} from "./dom.js";

const STORES = ["chats", "messages", "files"];

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, "0")).join("");

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
  of(chat) { return settled(this.#on("messages").index("chat").getAll(chat)); }
  change(puts, deletes) {
    const work = this.database.transaction(STORES, "readwrite");
    for (const [name, value] of puts) work.objectStore(name).put(value);
    for (const [name, id] of deletes) work.objectStore(name).delete(id);
    return new Promise((resolve, reject) => { work.oncomplete = resolve; work.onabort = work.onerror = () => reject(work.error); });
  }
}

class Memory {
  maps = Object.fromEntries(STORES.map(name => [name, new Map()]));
  async get(name, id) { return this.maps[name].get(id); }
  async all(name) { return structuredClone([...this.maps[name].values()]); }
  async of(chat) { return (await this.all("messages")).filter(message => message.chat === chat); }
  async change(puts, deletes) {
    for (const [name, value] of puts) this.maps[name].set(value.id, structuredClone(value));
    for (const [name, id] of deletes) this.maps[name].delete(id);
  }
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

  async remove(chat, messages, whole) {
    await this.#shelf.change([], [...(whole ? [["chats", chat]] : []), ...messages.map(message => ["messages", message.id])]);
    this.tell("changed", {chat});
  }

  async files(slot) { return (await this.#shelf.get("files", slot))?.files ?? []; }
  keepFiles(slot, files) { return this.#shelf.change(files.length ? [["files", {id: slot, files}]] : [], files.length ? [] : [["files", slot]]); }
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

/** What is typed and not sent, by place: it is written at every key, and read first from this tab's own. */
export const drafts = {
  read: place => kept.read(`draft:${place}`, "sessionStorage") ?? kept.read(`draft:${place}`) ?? "",
  write(place, text) { for (const area of ["sessionStorage", "localStorage"]) kept.write(`draft:${place}`, text || null, area); },
  drop(place, text) {
    kept.write(`draft:${place}`, null, "sessionStorage");
    if ((kept.read(`draft:${place}`) ?? text) === text) kept.write(`draft:${place}`, null);  // else another tab has its own by now
  },
};
