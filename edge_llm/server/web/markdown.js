// Markdown that grows: only its last blocks are read and drawn again.  HTML in it is text; what is drawn has gone through DOMPurify.
import "./vendor/purify.js";
import hljs from "./vendor/highlight.js";
import {Marked} from "./vendor/marked.js";
import {h, icon} from "./dom.js";
import {copy} from "./widgets.js";

const {DOMPurify} = globalThis;
const LINK = /^(?:https?|mailto):/i;
const HIGHLIGHTED = 40000;  // characters of code: more takes long, and nobody reads it for its colours
const CLEAN = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p", "pre", "span",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "title", "type"],
  ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};

const EMPHASIZED = 4e7;  // characters times marks of a paragraph: the parser looks from each mark through all the rest
const isTooDear = (() => {
  let last = "", found = false;  // it is asked at each mark
  return text => {
    if (text !== last) [last, found] = [text, text.length * text.split(/[*_]/).length > EMPHASIZED];
    return found;
  };
})();

const escaped = text => text.replace(/[&<>"']/g, mark => `&#${mark.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true,
  tokenizer: {
    html() {},
    tag(source) {
      const found = /^<br\s*\/?>/i.exec(source);
      return found ? {type: "br", raw: found[0]} : undefined;
    },
    emStrong(source, whole) { return isTooDear(whole) ? undefined : false; },
  },
  renderer: {
    html: token => escaped(token.raw),
    image: token => `<a href="${escaped(token.href)}">${escaped(token.text || token.href)}</a>`,  // a picture would be a request to somebody
  },
});

DOMPurify.addHook("afterSanitizeAttributes", element => {
  if (element.tagName === "A") {
    if (!LINK.test(element.getAttribute("href") ?? "")) { element.removeAttribute("href"); return; }
    element.title = element.getAttribute("href");
    element.target = "_blank";
    element.rel = "noopener noreferrer nofollow";
  }
  if (element.tagName === "INPUT" && element.type !== "checkbox") element.remove();
});

/** A document that shows `text` as it grows in `box`. */
export class Markdown {
  #blocks = [];  // {raw, element, done}
  #settled = 0;  // characters of blocks that cannot change any more
  #kept = 0;  // and how many blocks those are
  #text = "";

  constructor(box) { this.box = box; }

  /** Show `text`; `done` when it is all.  What the parser gives up on is shown as it is. */
  update(text, done) {
    if (!this.#plain) {
      try { this.#read(text, done); return; } catch (error) { console.error(error); }
      this.#plain = h("div", {class: "block plain"});
      this.box.replaceChildren(this.#plain);
    }
    this.#plain.textContent = text;
  }
  #plain = null;

  #read(text, done) {
    text = text.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.#text) || done) this.#settled = this.#kept = 0;
    this.#text = text;
    const tokens = marked.lexer(text.slice(this.#settled));
    const linked = done && Object.keys(tokens.links).length > 0;  // names of links may stand behind their use
    tokens.forEach((token, index) => this.#show(this.#kept + index, token, tokens.links, done || index < tokens.length - 1, linked));
    for (const block of this.#blocks.splice(this.#kept + tokens.length)) block.element?.remove();
    for (const token of tokens.slice(0, Math.max(0, tokens.length - 3))) {
      this.#settled += token.raw.length;
      this.#kept += 1;
    }
  }

  #show(index, token, links, closed, anew) {
    const old = this.#blocks[index];
    if (old && old.raw === token.raw && old.closed === closed && !anew) return;
    if (old?.element && token.type === "code" && old.lang === token.lang && !closed && grows(old.element, token.text)) {
      old.raw = token.raw;
      return;
    }
    const element = old && old.raw === token.raw && !anew ? old.element : drawn(token, links);
    if (closed && element) element.querySelectorAll("pre > code").forEach(colour);
    if (element !== old?.element) {
      if (old?.element && element) old.element.replaceWith(element);
      else if (element) this.box.insertBefore(element, this.#after(index));
      else old?.element?.remove();
    }
    this.#blocks[index] = {raw: token.raw, lang: token.type === "code" ? token.lang : null, element, closed};
  }

  #after(index) {
    return this.#blocks.slice(index + 1).find(block => block.element)?.element ?? null;
  }
}

function grows(element, text) {
  const node = element.querySelector("pre > code")?.firstChild;
  if (node?.nodeType !== Node.TEXT_NODE || !text.startsWith(node.data)) return false;
  node.appendData(text.slice(node.data.length));
  return true;
}

function drawn(token, links) {
  if (token.type === "space" || token.type === "def") return null;
  const tokens = [token];
  tokens.links = links;
  const clean = DOMPurify.sanitize(marked.parser(tokens), CLEAN);
  for (const table of clean.querySelectorAll("table")) {
    const box = h("div", {class: "wide", tabindex: "0", role: "region", "aria-label": "Table"});
    table.replaceWith(box);
    box.append(table);
  }
  for (const pre of clean.querySelectorAll("pre")) decorate(pre);
  const box = h("div", {class: "block"});
  box.append(clean);
  return box;
}

function decorate(pre) {
  const code = pre.querySelector("code");
  if (!code) return;
  if (code.lastChild?.nodeType === Node.TEXT_NODE) code.lastChild.data = code.lastChild.data.replace(/\n$/, "");
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const button = h("button", {type: "button", class: "copy", "aria-label": "Copy code", on: {click: () => copy(code.textContent, button)}}, icon("copy"), h("span", {text: "Copy"}));
  const box = h("div", {class: "code"}, h("div", {class: "code-head"}, h("span", {text: language || "text"}), button));
  pre.replaceWith(box);
  pre.tabIndex = 0;
  box.append(pre);
}

function colour(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1];
  if (!language || !hljs.getLanguage(language) || code.textContent.length > HIGHLIGHTED) return;
  code.replaceChildren(DOMPurify.sanitize(hljs.highlight(code.textContent, {language, ignoreIllegals: true}).value, CLEAN));
}
