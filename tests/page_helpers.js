// What the tests of the chat page ask it: injected before its own scripts.
"use strict";
window.tested = {
  all: selector => [...document.querySelectorAll(selector)],

  /** What the messages say, [who, text]. */
  shown() { return this.all("article").map(one => [one.classList[0], one.querySelector(".body").innerText]); },

  /** The last button of this name below a message. */
  foot(label) { return this.all(".foot button").findLast(one => (one.ariaLabel ?? one.innerText) === label); },

  idle: () => !document.querySelector("article.busy"),

  atEnd() {
    const log = document.querySelector("#log");
    return log.scrollHeight - log.scrollTop - log.clientHeight < 5;
  },

  /** Markdown's `text` as it is drawn when it comes whole, and in pieces of some sizes. */
  async drawn(text) {
    const {Markdown} = await import(new URL("web/markdown.js", location).href), seen = [];
    for (const size of [text.length, 1, 2, 3, 7, 50]) {
      const box = document.createElement("div"), shown = new Markdown(box);
      for (let end = size; end < text.length; end += size) shown.update(text.slice(0, end), false);
      shown.update(text, true);
      seen.push(box.innerHTML);
    }
    return seen;
  },

  async store() { return (await import(new URL("web/store.js", location).href)).Store.open(); },

  /** How many chats and messages there are in the database. */
  async kept() {
    const store = await this.store();
    return {chats: (await store.chats()).length, messages: (await store.messages()).length};
  },

  async isKept(content) { return (await (await this.store()).messages()).some(message => message.content === content); },

  /** What is shown of Markdown's `text`, which comes in halves. */
  async whole(text) {
    const {Markdown} = await import(new URL("web/markdown.js", location).href), box = document.createElement("div"), shown = new Markdown(box);
    shown.update(text.slice(0, text.length / 2), false);
    shown.update(text, true);
    return box.textContent;
  },

  touchAll() { this.all(".block a, button, summary").forEach(one => one.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}))); },

  /** Imports a file of chats as a person does. */
  imports(text) {
    const real = HTMLInputElement.prototype.click;
    HTMLInputElement.prototype.click = function() {
      HTMLInputElement.prototype.click = real;
      const files = new DataTransfer();
      files.items.add(new File([text], "chats.json"));
      this.files = files.files;
      this.dispatchEvent(new Event("change"));
    };
    this.all("#tools button").find(one => one.ariaLabel === "Import chats").click();
  },

  /** What could run, or ask somebody, in the messages. */
  dangerous() {
    const bad = ["script", "img", "svg:not(.icon)", "iframe", "style", "form", "link", "meta", "base", "object", "[style]", "[id]", "[onerror]", "[onload]", "[ping]"];
    return this.all(bad.map(one => `#turns ${one}`).join(", ")).map(one => one.outerHTML);
  },

  links() { return this.all(".block a[href]").map(one => [one.href, one.target, one.rel]); },

  /** What lies outside of a screen of `width`, but for what scrolls on its own. */
  sideways(width) {
    const scrolls = Math.max(document.documentElement.scrollWidth, document.querySelector("#log").scrollWidth) > width ? ["the page scrolls sideways"] : [];
    const outside = this.all("button, textarea, article, h1").filter(one => {
      const box = one.getBoundingClientRect();
      return box.width && !one.closest("#side, .wide, .code") && (box.left < 0 || box.right > width);
    });
    return [...scrolls, ...outside.map(one => one.outerHTML.slice(0, 80))];
  },

  /** Controls without a name. */
  nameless() {
    const controls = this.all("button, input, textarea, select, a[href]").filter(one => one.type !== "file");
    return controls.filter(one => !(one.ariaLabel || one.innerText.trim() || one.labels?.length)).map(one => one.outerHTML);
  },

  /** Marks what the Tab key should reach, and gives the marks. */
  reachable() {
    const controls = this.all("button:not([disabled]), textarea, input, select, a[href]").filter(one => one.checkVisibility({visibilityProperty: true}) && one.type !== "file");
    return controls.map((one, index) => { one.dataset.tested = index; return String(index); });
  },

  /** Texts whose contrast with what is behind them is below 4.5. */
  faint() {
    const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const parsed = color => {
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data];
    };
    const light = color => {
      const [r, g, b] = color.slice(0, 3).map(part => part / 255).map(part => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const opaque = one => !/rgba\(.*, 0\)|transparent/.test(getComputedStyle(one).backgroundColor);
    const ground = one => (opaque(one) || !one.parentElement ? parsed(getComputedStyle(one).backgroundColor) : ground(one.parentElement));
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), bad = new Set();
    while (texts.nextNode()) {
      const one = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
      if (!text || !one.checkVisibility({visibilityProperty: true}) || one.closest(".away, .skip, :disabled, noscript, script")) continue;
      const [more, less] = [light(parsed(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => b - a), ratio = (more + 0.05) / (less + 0.05);
      if (ratio < 4.5) bad.add(`${one.tagName}.${one.className} ${text.slice(0, 20)} ${ratio.toFixed(2)}`);
    }
    return [...bad];
  },

  attach(name, data) {
    const files = new DataTransfer(), field = document.querySelector("#picked");
    files.items.add(new File([new Uint8Array(data)], name));
    field.files = files.files;
    field.dispatchEvent(new Event("change"));
  },

  /** The server's answer to a chat is `events`, and then nothing. */
  answerWith(events) {
    const real = fetch;
    const body = () => new ReadableStream({start: one => one.enqueue(new TextEncoder().encode(events))});
    window.fetch = (path, ...more) => (path.includes("chat") ? Promise.resolve(new Response(body())) : real(path, ...more));
  },

  /** What an export holds, and what importing it, or a broken file, gives. */
  async transferred(broken) {
    const {asJson, asMarkdown, fromJson} = await import(new URL("web/transfer.js", location).href), {Store} = await import(new URL("web/store.js", location).href);
    const store = await Store.open(), chats = await store.chats(), messages = await store.messages();
    const again = fromJson(asJson(chats, messages)), known = new Set(messages.map(one => one.id)), fresh = new Set(again.messages.map(one => one.id));
    const told = one => [one.role, one.content, one.state, one.created];
    const refusal = text => { try { fromJson(text); return "taken"; } catch (error) { return error.message; } };
    return {
      markdown: asMarkdown(chats[0], messages), before: messages.map(told), after: again.messages.map(told), fresh: fresh.isDisjointFrom(known),
      linked: again.messages.filter(one => fresh.has(one.parent)).length, refused: broken.map(refusal),
    };
  },
};
