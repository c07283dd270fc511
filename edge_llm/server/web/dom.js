// Elements without HTML text: nothing here can turn a text into a program.
const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  plus: "M12 5v14M5 12h14", menu: "M4 7h16M4 12h16M4 17h10", close: "M6 6l12 12M18 6L6 18", send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.5 7.5h9v9h-9z", copy: "M9 9h10v11H9zM15 9V4H5v11h4", check: "M5 13l4.5 4.5L19 7.5", edit: "M5 19h3.5L18 9.5 14.5 6 5 15.5zM12.5 8l3.5 3.5",
  retry: "M19 12a7 7 0 1 1-2.1-5M17 3v4.2h-4.2", trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5.5M13.5 11v5.5",
  download: "M12 4v11M7 10.5l5 5 5-5M5 20h14", upload: "M12 16V5M7 9.5l5-5 5 5M5 20h14", more: "M6 12h.01M12 12h.01M18 12h.01",
  left: "M14 7l-5 5 5 5", right: "M10 7l5 5-5 5", down: "M12 5v14M6 13l6 6 6-6", chevron: "M7 10l5 5 5-5",
  clip: "M17.5 11.5l-6 6a4 4 0 0 1-5.7-5.7l7-7a2.7 2.7 0 0 1 3.8 3.8l-6.8 6.8a1.3 1.3 0 0 1-1.9-1.9l6-6",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4", pulse: "M3 12h4l3-7 4 14 3-7h4", theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  key: "M12 15.5a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM11 12.8L19.5 4.5M15.5 8.5l2.7 2.7", play: "M8 6l10 6-10 6z", file: "M7 4h7l4 4v12H7zM14 4v4h4",
  keyboard: "M3 7h18v10H3zM7 10.5h.01M11 10.5h.01M15 10.5h.01M8 14h8", warn: "M12 4L3 20h18zM12 10v4.5M12 17.3v.01",
};

export const at = id => document.getElementById(id);

/** An element: `props` are attributes, `class`, `text`, and `on` with listeners; what is null or false is left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [kind, listener] of Object.entries(value)) element.addEventListener(kind, listener);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export function s(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const icon = name => s("svg", {viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true"}, s("path", {d: ICONS[name]}));

/** A button that shows `name`'s icon and is called `label`. */
export const tool = (name, label, click, props = {}) =>
  h("button", {type: "button", class: "quiet", title: label, "aria-label": label, on: click ? {click} : {}, ...props}, icon(name));

/** Makes the button that the page has already into one of `tool`. */
export function dress(button, name, label, text = null) {
  button.replaceChildren(icon(name), ...(text ? [h("span", {text})] : []));
  button.setAttribute("aria-label", label);
  button.title = label;
}

const NARROW = matchMedia("(max-width: 860px)"), SMALL = matchMedia("(max-width: 560px)");

/** Whether a column covers the chat: what is behind it takes no focus then. */
export function cover() {
  const {classList} = document.body;
  document.querySelector("main").inert = (NARROW.matches && classList.contains("with-side")) || (SMALL.matches && classList.contains("with-panel"));
}
for (const query of [NARROW, SMALL]) query.addEventListener("change", cover);

/** Tells a screen reader, once. */
export function announce(text) {
  at("said").textContent = "";
  setTimeout(() => { at("said").textContent = text; }, 50);
}

const PREFIX = "edge-llm:";

export const kept = {  // the browser's own small storage; where it is closed or full, things last as long as the page
  memory: new Map(),
  read(name, area = "localStorage") {
    if (this.memory.has(area + name)) return this.memory.get(area + name);
    try { return window[area].getItem(PREFIX + name); } catch { return null; }
  },
  write(name, value, area = "localStorage") {
    this.memory.delete(area + name);
    try { value === null ? window[area].removeItem(PREFIX + name) : window[area].setItem(PREFIX + name, value); }
    catch { if (value !== null) this.memory.set(area + name, value); }
  },
  /** The names that begin with `start`. */
  names(start) {
    try { return Object.keys(localStorage).filter(name => name.startsWith(PREFIX + start)).map(name => name.slice(PREFIX.length)); } catch { return []; }
  },
};

/** `act` at most once in `ms`, and once more after the last call. */
export function throttled(act, ms) {
  let timer = null, last = 0;
  const run = () => { timer = null; last = performance.now(); act(); };
  return () => { timer ??= setTimeout(run, Math.max(0, last + ms - performance.now())); };
}

export function bytes(count) {
  const unit = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, size]) => count >= size);
  return unit ? `${(count / unit[1]).toPrecision(3)} ${unit[0]}` : `${count} B`;
}

export const counted = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
export const number = value => value.toLocaleString("en");
export const short = value => value < 1000 ? String(value) : value < 1e4 ? `${(value / 1000).toFixed(1)}k` : `${Math.round(value / 1000)}k`;
