// The page: puts the parts together, and what belongs to all of them: keys, key, theme, a server that is gone.
import {Problem, access, call} from "./api.js";
import {Answers} from "./answers.js";
import {Composer, showMeter} from "./composer.js";
import {Conversation} from "./conversation.js";
import {announce, at, bytes, dress, h, kept, throttled, tool} from "./dom.js";
import {drafts} from "./drafts.js";
import {Inside} from "./inside.js";
import {Models, openModels, showModel, stateOf} from "./models.js";
import {settingsPanel, showPanel} from "./settings.js";
import {Sidebar, dressSide, openSide} from "./sidebar.js";
import {Store} from "./store.js";
import {MOST_BYTES, asJson, asMarkdown, fileName, fromJson} from "./transfer.js";
import {ask, askText, download, openMenu, toast} from "./widgets.js";

const LOOK_MS = 2000;
const THEMES = {auto: "As the system", light: "Light", dark: "Dark"};
const KEYS = [
  ["Enter", "Send"], ["Shift+Enter", "New line"], ["Esc", "Stop the answer, close what is open"], ["↑ in the empty box", "Edit the last message"], ["Ctrl+K", "Search chats"],
  ["Ctrl+Shift+O", "New chat"], ["Ctrl+B", "Show or hide the chats"], ["Ctrl+,", "Settings of this chat"], ["Ctrl+I", "Look inside"], ["Alt+↑, Alt+↓", "From message to message"],
  ["/", "To the message box"], ["F2, Delete on a chat", "Rename it, delete it"], ["Ctrl+Z outside of a text", "Bring back what was deleted"], ["?", "This list"],
];
const narrow = matchMedia("(max-width: 860px)");

await drafts.begin();
const store = await Store.open();
const models = new Models();
const inside = new Inside(() => models.of(talk.chat));
const answers = new Answers(store, models, {
  changed: (chat, message) => { if (chat.id === talk.chat.id) talk.grew(message); },
  ended: (chat, message, kept) => onEnded(chat, message, kept),
});
const talk = new Conversation(store, answers, models, {
  listed: () => onListed(), opened: () => onOpened(), busy: () => { composer.draw(); sidebar.mark(talk.chat.id); meter(); },
  typedInto: text => composer.put(text), deleted: () => { toast("This chat was deleted in another tab"); composer.move("new"); goTo(""); },
});
const composer = new Composer(store, {
  send: (text, files) => talk.send(text, files), stop: () => talk.stop(), busy: () => talk.busy, editLast: () => talk.editLast(), typed: () => meter(),
});
const sidebar = new Sidebar(store, answers, {rename, remove, exportChat});

// ---- chats

function onListed() {
  if (location.hash !== `#${talk.chat.id}`) history.replaceState(null, "", `#${talk.chat.id}`);
  composer.move(talk.chat.id);
  title();
  sidebar.refresh(talk.chat.id);
}

function onOpened() {
  title();
  sidebar.mark(talk.chat.id);
  composer.open(talk.place);
  showModel(at("model"), models, talk.chat);
  if (at("panel").dataset.name === "settings") settings(true);
  meter();
}

function onEnded(chat, message, isKept) {
  sidebar.refresh(talk.chat.id);
  if (!isKept) toast("This browser has no room left to keep the answer. Delete or export chats", null, 10);
  if (message.state === "failed" && message.error.code === "gone") gone();
  if (chat.id !== talk.chat.id) { toast(`“${chat.title}” is answered`, {label: "Open", on: () => { location.hash = chat.id; }}); return; }
  const next = composer.queued && message.state === "done";
  talk.draw();
  composer.draw();
  meter();
  announce(message.state === "failed" ? `Problem: ${message.error.text}` : `Answer: ${message.content.slice(0, 600)}`);
  if (document.hidden) document.title = "✓ edge-llm";
  if (next) composer.submit();
}

/** Another tab has written in the chat that is open here. */
async function onChangedElsewhere() {
  const was = talk.busy, held = () => JSON.stringify([talk.chat.system, talk.chat.sampling, talk.chat.thinking]), before = held();
  await talk.reread();
  if (was && !talk.busy && composer.queued && talk.path.at(-1)?.state === "done") await composer.submit();
  const panel = at("panel");
  if (held() !== before && panel.dataset.name === "settings" && !panel.contains(document.activeElement)) settings(true);
}

function title() {
  at("title").textContent = talk.chat.title || "New chat";
  document.title = talk.chat.title ? `${talk.chat.title} · edge-llm` : "edge-llm";
}

function meter() {
  const {used, more, whole} = talk.context(composer.size);
  showMeter(used, more, whole);
}

const goTo = id => { if (location.hash.slice(1) === id) talk.open(id); else location.hash = id; };

function newChat() {
  if (talk.chat.$new) { at("text").focus(); if (narrow.matches) openSide(false); return; }
  goTo("");
}

async function rename(chat) {
  const name = await askText("Rename chat", {value: chat.title, action: "Rename"});
  if (!name?.trim()) return;
  const own = chat.id === talk.chat.id ? talk.chat : chat;
  Object.assign(own, {title: name.trim().slice(0, 200), named: true});
  await store.save(own);
  title();
  await sidebar.refresh(talk.chat.id);
  at("chats").querySelector(`[data-id="${chat.id}"] .open`)?.focus();
}

async function remove(chat) {
  await answers.finish(chat.id);
  const messages = await store.messages(chat.id);
  await store.remove(chat.id, messages, true);
  if (chat.id === talk.chat.id) goTo("");
  await sidebar.refresh(talk.chat.id);
  toast(`“${chat.title || "New chat"}” is deleted`, {label: "Undo", on: async () => { await store.save(chat, ...messages); await sidebar.refresh(talk.chat.id); goTo(chat.id); }});
}

async function exportChat(chat, kind) {
  const messages = await store.messages(chat.id);
  if (kind === "md") download(fileName(chat.title, "md"), asMarkdown(chat, messages), "text/markdown");
  else download(fileName(chat.title, "json"), asJson([chat], messages), "application/json");
}

async function exportAll() {
  download("edge-llm-chats.json", asJson(await store.chats(), await store.messages()), "application/json");
}

function importFile() {
  const field = h("input", {type: "file", accept: ".json,application/json", on: {change: async () => {
    try {
      const [file] = field.files;
      if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; at most ${bytes(MOST_BYTES)} are read`);
      const {chats, messages} = fromJson(await file.text());
      await store.add(chats, messages);
      await sidebar.refresh(talk.chat.id);
      toast(chats.length === 1 ? "1 chat is imported" : `${chats.length} chats are imported`, chats.length ? {label: "Open", on: () => goTo(chats[0].id)} : null);
    } catch (error) {
      toast(`Nothing is imported: ${error.message}`);
    }
  }}});
  field.click();
}

// ---- the server

let looking = null;

async function look() {
  clearTimeout(looking);
  looking = null;
  try {
    await models.refresh();
    if (!at("banner").hidden) announce("The server is back");
    at("banner").hidden = true;
    if (models.loading) await loadProgress();
    if (models.loading) looking = setTimeout(look, LOOK_MS / 2);
  } catch (error) {
    if (error.status === 401) refused();
    else gone(error);
  }
}

async function loadProgress() {
  try { await call("health"); } catch (error) {
    const model = models.list.find(one => stateOf(one) === "loading");
    if (error.progress && model && typeof model.status === "object") model.status.progress ??= error.progress;
    models.dispatchEvent(new Event("change"));
  }
}

function gone(error) {
  banner(error instanceof Problem && error.code !== "gone" ? error.message : "The server does not answer. This page goes on as soon as it is back; nothing is lost.");
  looking ??= setTimeout(look, LOOK_MS);
}

function banner(text, button = null) {
  at("banner").hidden = false;
  if (at("banner").textContent !== text) at("banner").replaceChildren(h("span", {text}), ...(button ? [button] : []));
}

function refused() {
  banner("This server asks for an API key.", h("button", {type: "button", text: "Enter the key", on: {click: askKey}}));
}

async function askKey() {
  if (document.querySelector("dialog[open]")) return;
  const key = await askText("API key", {value: access.key, kind: "password", hint: "It is kept in this browser, and sent to this server alone. An empty one is forgotten."});
  if (key === null) { if (!models.whole) refused(); return; }
  access.key = key.trim();
  await look();
}
access.onRefused = () => askKey();

models.addEventListener("change", () => {
  showModel(at("model"), models, talk.chat);
  if (!talk.path.length) talk.draw();
  meter();
});

function chooseModel(id) {
  talk.chat.model = id;
  kept.write("model", id);
  if (!talk.chat.$new) store.save(talk.chat);
  models.dispatchEvent(new Event("change"));
  at("text").focus();
}

// ---- panels, theme, keys

function settings(again = false) {
  if (at("panel").dataset.name === "settings" && !again) { closePanel(); return; }
  inside.close();
  const {chat} = talk;
  showPanel("settings", settingsPanel(chat, models, {close: closePanel, changed: async () => {
    const first = chat.$new;
    delete chat.$new;
    try { await store.save(chat); } catch (error) { toast(`This holds until the page is closed, for it could not be kept: ${error.message}`); }
    if (first && chat.id === talk.chat.id) onListed();
  }}));
  if (!again) at("system").focus();
}

function lookInside() {
  if (at("panel").dataset.name === "inside") { closePanel(); return; }
  showPanel("inside", inside.show(closePanel));
  at("panel").querySelector("button").focus();
}

function closePanel() {
  const from = at("panel").dataset.name;
  inside.close();
  showPanel(null);
  at(from === "inside" ? "inside-open" : "settings-open").focus();
}

function theme() {
  const now = kept.read("theme") ?? "auto";
  openMenu(document.activeElement, Object.entries(THEMES).map(([value, label]) => ({label, checked: value === now, on: () => {
    kept.write("theme", value);
    document.documentElement.dataset.theme = value;
  }})), "Colours");
}

function showKeys() {
  const mac = navigator.platform.startsWith("Mac");
  const rows = KEYS.flatMap(([keys, what]) => [h("dt", {}, h("kbd", {text: mac ? keys.replaceAll("Ctrl", "⌘") : keys})), h("dd", {text: what})]);
  ask("Keys", [h("dl", {class: "keys"}, rows)], [{value: "", label: "Close", kind: "primary"}]);
}

function escape() {
  if (document.body.classList.contains("with-side") && narrow.matches) { openSide(false); at("side-open").focus(); }
  else if (at("panel").contains(document.activeElement)) closePanel();
  else if (talk.busy) talk.stop();
  else if (!at("panel").hidden) closePanel();
  else at("text").focus();
}

const SHORTCUTS = {
  "ctrl+k": () => { openSide(true); at("search").focus(); at("search").select(); }, "ctrl+shift+o": newChat, "ctrl+b": () => openSide(sideHidden()), "ctrl+,": () => settings(), "ctrl+i": lookInside,
  "alt+arrowup": () => talk.walk(-1), "alt+arrowdown": () => talk.walk(1), "ctrl+/": showKeys,
};
const sideHidden = () => !document.body.classList.contains("with-side");

addEventListener("keydown", event => {
  if (document.querySelector("dialog[open], .menu")) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  const name = `${event.ctrlKey || event.metaKey ? "ctrl+" : ""}${event.altKey ? "alt+" : ""}${event.shiftKey && event.key.length > 0 && (event.ctrlKey || event.metaKey) ? "shift+" : ""}${event.key.toLowerCase()}`;
  if (name === "ctrl+z" && !typing) { at("toasts").lastElementChild?.querySelector("button")?.click(); return; }
  const act = event.key === "Escape" ? escape : SHORTCUTS[name] ?? (typing ? null : {"/": () => at("text").focus(), "?": showKeys}[event.key]);
  if (!act || event.isComposing) return;
  event.preventDefault();
  act();
});

// ---- the beginning

function dressAll() {
  dressSide();
  dress(at("settings-open"), "sliders", "Settings of this chat (Ctrl+,)");
  dress(at("inside-open"), "pulse", "Look inside (Ctrl+I)");
  dress(at("jump"), "down", "To the newest message");
  at("tools").append(tool("upload", "Import chats", importFile), tool("download", "Export all chats", exportAll), tool("theme", "Colours", theme, {"aria-haspopup": "menu"}),
    tool("key", "API key", askKey), tool("keyboard", "Keys (?)", showKeys));
  at("new").addEventListener("click", newChat);
  at("side-open").addEventListener("click", () => { openSide(sideHidden()); kept.write("side", sideHidden() ? "no" : null); if (narrow.matches) at("new").focus(); });
  at("side-close").addEventListener("click", () => { openSide(false); at("side-open").focus(); });
  at("scrim").addEventListener("click", () => openSide(false));
  at("settings-open").addEventListener("click", () => settings());
  at("inside-open").addEventListener("click", lookInside);
  at("model").addEventListener("click", () => openModels(at("model"), models, talk.chat, chooseModel));
  at("title").addEventListener("dblclick", () => { if (!talk.chat.$new) rename(talk.chat); });
}

dressAll();
openSide(!narrow.matches && kept.read("side") !== "no");
const listAgain = throttled(() => sidebar.refresh(talk.chat.id), 1000);
store.addEventListener("changed", async event => {
  listAgain();
  if (answers.of(event.chat) && !(await store.chat(event.chat))) answers.stop(event.chat);
  if (event.chat === talk.chat.id) await onChangedElsewhere();
});
store.addEventListener("stop", event => answers.stop(event.chat));
narrow.addEventListener("change", () => openSide(!narrow.matches && kept.read("side") !== "no"));
store.addEventListener("whose", event => { if (answers.writes(event.message)) store.tell("mine", {message: event.message}); });
addEventListener("hashchange", async () => { await talk.open(location.hash.slice(1)); if (narrow.matches) openSide(false); at("text").focus(); });
addEventListener("pagehide", () => answers.keepAll());
document.addEventListener("visibilitychange", () => { if (document.hidden) answers.keepAll(); else title(); });
setInterval(() => {
  const run = answers.of(talk.chat.id);
  if (run?.message.state === "waiting") talk.grew(run.message);
  if (run) meter();
}, 1000);
await sidebar.refresh(null);
await talk.open(location.hash.slice(1));
if (!narrow.matches) at("text").focus();
if (!store.lasting) toast("This browser keeps nothing for this page: chats are gone when it is closed");
document.body.classList.add("ready");
look();
