// The list of chats: by day, found by what was said in them, renamed, exported and deleted.
import {at, cover, dress, h, tool} from "./dom.js";
import {openMenu} from "./widgets.js";

const DAY = 86400000;

export class Sidebar {
  #words = new Map();  // id of a chat -> all that was said in it, in lower case; read for the first search

  /** `acts`: open, rename, exportChat, remove, importFile. */
  constructor(store, answers, acts) {
    Object.assign(this, {store, answers, acts, chats: []});
    at("search").addEventListener("input", () => this.#find());
    at("search").addEventListener("keydown", event => {
      if (event.key === "Escape" && at("search").value) { event.stopPropagation(); at("search").value = ""; this.#find(); }
      if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); at("chats").querySelector(".open")?.focus(); }
    });
    at("chats").addEventListener("keydown", event => this.#walk(event));
  }

  /** Read the list again; `here` is the chat that is open. */
  async refresh(here) {
    this.here = here;
    this.chats = (await this.store.chats()).sort((a, b) => b.updated - a.updated);
    this.#words.clear();
    if (at("search").value) await this.#find();
    else this.#draw(this.chats.map(chat => ({chat})));
  }

  mark(here) {
    this.here = here;
    for (const row of at("chats").querySelectorAll(".row")) this.#mark(row);
  }

  #mark(row) {
    const open = row.querySelector(".open");
    if (row.dataset.id === this.here) open.setAttribute("aria-current", "page");
    else open.removeAttribute("aria-current");
    row.classList.toggle("busy", Boolean(this.answers.of(row.dataset.id)));
  }

  async #find() {
    const sought = at("search").value, words = sought.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { this.#draw(this.chats.map(chat => ({chat}))); return; }
    if (!this.#words.size) {
      for (const {chat, content} of await this.store.messages()) this.#words.set(chat, `${this.#words.get(chat) ?? ""}\n${content}`);
    }
    if (at("search").value !== sought) return;
    this.#draw(this.chats.map(chat => this.#match(chat, words)).filter(Boolean), true);
  }

  /** The entry of `chat` if each of `words` is in it; a text that has them side by side is shown first. */
  #match(chat, words) {
    const said = (this.#words.get(chat.id) ?? "").toLowerCase(), title = chat.title.toLowerCase();
    if (!words.every(word => said.includes(word) || title.includes(word))) return null;
    const place = [words.join(" "), ...words].map(word => said.indexOf(word)).find(found => found >= 0);
    return {chat, snippet: place === undefined ? null : this.#around(chat.id, place)};
  }

  #around(chat, place) {
    const text = this.#words.get(chat), from = Math.max(0, place - 18);
    return `${from ? "…" : ""}${text.slice(from, place + 60).replace(/\s+/g, " ").trim()}`;
  }

  #draw(found, flat = false) {
    const today = new Date().setHours(0, 0, 0, 0), groups = new Map();
    for (const entry of found) {
      const {updated} = entry.chat;
      const name = flat ? `${found.length} found` : updated >= today ? "Today" : updated >= today - DAY ? "Yesterday" : updated >= today - 7 * DAY ? "Last week" : "Earlier";
      groups.set(name, [...(groups.get(name) ?? []), entry]);
    }
    const focused = document.activeElement?.closest("#chats .row"), place = [...at("chats").querySelectorAll(".row")].indexOf(focused);
    at("chats").replaceChildren(...[...groups].map(([name, entries]) => h("section", {"aria-label": name}, h("h2", {text: name}), h("ul", {}, entries.map(entry => this.#row(entry))))));
    if (!found.length) at("chats").append(h("p", {class: "empty", text: flat ? "Nothing found." : "Your chats will be listed here. They stay in this browser."}));
    const links = [...at("chats").querySelectorAll(".open")], same = focused && at("chats").querySelector(`[data-id="${focused.dataset.id}"] .open`);
    if (focused) (same ?? links[Math.min(place, links.length - 1)] ?? at("search")).focus();
  }

  #row({chat, snippet}) {
    const title = chat.title || "New chat";
    const open = h("a", {class: "open", href: `#${chat.id}`, title, on: {dblclick: () => this.acts.rename(chat)}}, h("span", {text: title}), snippet && h("small", {text: snippet}));
    const more = tool("more", `More for ${title}`, () => openMenu(more, [
      {label: "Rename", icon: "edit", on: () => this.acts.rename(chat)},
      {label: "Export as Markdown", icon: "download", on: () => this.acts.exportChat(chat, "md")},
      {label: "Export as JSON", icon: "download", on: () => this.acts.exportChat(chat, "json")},
      null, {label: "Delete", icon: "trash", danger: true, on: () => this.acts.remove(chat)},
    ], `Chat ${title}`), {"aria-haspopup": "menu"});
    const row = h("li", {class: "row", "data-id": chat.id}, open, more);
    this.#mark(row);
    return row;
  }

  #walk(event) {
    const links = [...at("chats").querySelectorAll(".open")], here = links.indexOf(document.activeElement);
    if (here < 0 || !["ArrowDown", "ArrowUp", "F2", "Delete"].includes(event.key)) return;
    event.preventDefault();
    const chat = this.chats.find(one => one.id === links[here].closest(".row").dataset.id);
    if (event.key === "F2") this.acts.rename(chat);
    else if (event.key === "Delete") this.acts.remove(chat);
    else if (event.key === "ArrowUp" && here === 0) at("search").focus();
    else links[Math.min(links.length - 1, here + (event.key === "ArrowDown" ? 1 : -1))].focus();
  }
}

/** The column's own buttons, and how it opens on a narrow screen. */
export function openSide(on) {
  document.body.classList.toggle("with-side", on);
  document.body.classList.toggle("without-side", !on);
  at("side-open").setAttribute("aria-expanded", String(on));
  cover();
}

export function dressSide() {
  dress(at("side-open"), "menu", "Show or hide the chats (Ctrl+B)");
  dress(at("side-close"), "close", "Hide the chats");
  dress(at("new"), "plus", "New chat (Ctrl+Shift+O)", "New chat");
}
