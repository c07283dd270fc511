// Runs the script of the chat page at the address argv[2] in a small document, and obeys one JSON command a line:
// {"ask": text}, {"click": id}, {"set": {id: value}}, {"state": true}.  Every command is answered with what the page shows now.
"use strict";
const vm = require("vm");
const readline = require("readline");

class Element {
  constructor(tag) {
    Object.assign(this, {tag, children: [], listeners: {}, textContent: "", className: "", value: "", hidden: false, open: false});
    Object.assign(this, {placeholder: "", scrollHeight: 0, scrollTop: 0, clientHeight: 0});
  }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  scrollIntoView() {}
  fire(kind) { this.listeners[kind]({preventDefault() {}}); }
  get shown() {
    const own = {kind: this.className || this.tag, text: this.textContent};
    return this.children.length ? {...own, open: this.open, children: this.children.map(child => child.shown)} : own;
  }
}

async function main(base) {
  const page = await (await fetch(base)).text();
  const script = page.match(/<script>([^]*?)<\/script>/)[1];
  const elements = {};
  for (const [, tag, id] of page.matchAll(/<(\w+)[^>]*? id="(\w+)"/g)) elements[id] = new Element(tag);
  const document = {getElementById: id => elements[id], createElement: tag => new Element(tag)};
  const own = {document, fetch: (path, options) => fetch(base + path, options), TextDecoderStream, AbortController, JSON, console};
  vm.runInNewContext(script, own);
  for await (const line of readline.createInterface({input: process.stdin})) {
    const command = JSON.parse(line);
    if (command.ask) { elements.text.value = command.ask; elements.form.fire("submit"); }
    for (const [id, value] of Object.entries(command.set ?? {})) elements[id].value = value;
    if (command.click) elements[command.click].fire("click");
    const shown = elements.chat.children.map(child => child.shown);
    console.log(JSON.stringify({shown, send: elements.send.textContent, status: elements.status.textContent}));
  }
}

main(process.argv[2]);
