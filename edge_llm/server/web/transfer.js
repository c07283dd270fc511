// Chats as files: one as Markdown to read, one or all as JSON, which can be imported again.
import {newId} from "./drafts.js";
import {SAMPLING, THINKING} from "./models.js";
import {fenced, pathTo, treeOf} from "./tree.js";

const KIND = "edge-llm chats";
const ROLES = ["user", "assistant"];
const ENDED = ["done", "stopped", "cut", "repeated", "failed", "broken"];
export const MOST_BYTES = 256 << 20;

export const fileName = (title, end) => `${(title || "chat").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "chat"}.${end}`;

/** What a person reads of `chat`: the messages that are shown. */
export function asMarkdown(chat, messages) {
  const parts = [`# ${chat.title || "Chat"}`];
  if (chat.system?.trim()) parts.push(`> ${chat.system.trim().replace(/\n/g, "\n> ")}`);
  for (const message of pathTo(treeOf(messages), chat.head)) {
    parts.push(`## ${message.role === "user" ? "You" : message.model || "Answer"}`);
    for (const {name, text} of message.files ?? []) parts.push(`<details><summary>${name.replace(/[&<>]/g, mark => `&#${mark.charCodeAt(0)};`)}</summary>\n\n${fenced(text)}\n\n</details>`);
    parts.push(message.content);
  }
  return `${parts.join("\n\n")}\n`;
}

export function asJson(chats, messages) {
  const whole = chats.map(chat => ({...chat, messages: messages.filter(message => message.chat === chat.id)}));
  return JSON.stringify({kind: KIND, version: 1, exported: new Date().toISOString(), chats: whole}, null, 1);
}

/** Chats and messages of a file, under new ids so that nothing here is written over; raises an `Error` in words. */
export function fromJson(text) {
  let data;
  try { data = JSON.parse(text); } catch { throw new Error("this is no JSON"); }
  if (data?.kind !== KIND || !Array.isArray(data.chats)) throw new Error("this is no export of edge-llm's chats");
  const found = data.chats.map(readChat);
  return {chats: found.map(({chat}) => chat), messages: found.flatMap(({messages}) => messages)};
}

const textOf = value => (typeof value === "string" ? value : "");
const timeOf = value => (Number.isFinite(value) ? value : Date.now());

function readChat(raw) {
  if (!Array.isArray(raw?.messages)) throw new Error("a chat in it has no messages");
  const ids = new Map(raw.messages.map(message => [message?.id, newId()])), id = newId();
  if (ids.size < raw.messages.length) throw new Error("two messages in it have the same id");
  const messages = raw.messages.map(message => readMessage(message, id, ids));
  checkTree(messages);
  const sampling = Object.fromEntries([...SAMPLING, "max_tokens", "seed"].filter(name => Number.isFinite(raw.sampling?.[name])).map(name => [name, raw.sampling[name]]));
  const chat = {
    id, title: textOf(raw.title).slice(0, 200), named: Boolean(raw.named), created: timeOf(raw.created), updated: timeOf(raw.updated), head: ids.get(raw.head) ?? null,
    model: textOf(raw.model) || null, system: textOf(raw.system), sampling, thinking: THINKING.some(([value]) => value === raw.thinking) ? raw.thinking : "", start: ids.get(raw.start) ?? null,
  };
  return {chat, messages};
}

/** Raises where a message comes after itself. */
function checkTree(messages) {
  const {byId} = treeOf(messages), sound = new Set();
  for (const message of messages) {
    const way = new Set();
    for (let here = message; here && !sound.has(here.id); here = byId.get(here.parent)) {
      if (way.has(here.id)) throw new Error("a message in it comes after itself");
      way.add(here.id);
    }
    for (const one of way) sound.add(one);
  }
}

function readMessage(raw, chat, ids) {
  if (!ROLES.includes(raw?.role) || typeof raw.content !== "string") throw new Error("a message in it is none");
  const files = Array.isArray(raw.files) ? raw.files.map(file => ({name: textOf(file?.name), text: textOf(file?.text)})) : [];
  const figures = Object.fromEntries(Object.entries(raw.figures ?? {}).filter(([, value]) => Number.isFinite(value)));
  return {
    id: ids.get(raw.id), chat, parent: ids.get(raw.parent) ?? null, role: raw.role, content: raw.content, thought: textOf(raw.thought) || undefined,
    thoughtMs: Number(raw.thoughtMs) || 0, files, created: timeOf(raw.created), state: raw.role === "user" ? "done" : ENDED.includes(raw.state) ? raw.state : raw.state ? "broken" : "done",
    error: raw.error ? {text: textOf(raw.error.text)} : null, model: textOf(raw.model), figures,
  };
}
