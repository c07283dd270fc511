// Menus, dialogs and short messages, each of which a keyboard can reach and leave.
import {announce, at, h, icon} from "./dom.js";

/** A menu at `anchor`; each item is {label, detail, icon, on, checked, danger, disabled}, or null for a line; `here`: which has the focus. */
export function openMenu(anchor, items, label, here = null) {
  document.querySelector(".menu")?.dismiss(false);
  const box = h("div", {class: "menu", role: "menu", "aria-label": label});
  for (const item of items) box.append(item === null ? h("hr") : menuItem(item, box));
  document.body.append(box);
  place(box, anchor.getBoundingClientRect());
  anchor.setAttribute("aria-expanded", "true");
  const outside = event => { if (!box.contains(event.target)) box.dismiss(false); };
  const resized = () => box.dismiss(false);
  box.dismiss = back => {
    box.remove();
    anchor.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", outside, true);
    removeEventListener("resize", resized);
    if (back) anchor.focus();
  };
  addEventListener("pointerdown", outside, true);
  addEventListener("resize", resized);
  box.addEventListener("keydown", event => walk(event, box));
  box.addEventListener("focusout", event => { if (event.relatedTarget && !box.contains(event.relatedTarget)) box.dismiss(false); });
  const buttons = [...box.querySelectorAll("button:not([disabled])")];
  Object.defineProperty(box, "place", {get: () => buttons.indexOf(document.activeElement)});
  (buttons[here ?? -1] ?? box.querySelector("[aria-checked=true]") ?? buttons[0])?.focus();
  return box;
}

function menuItem(item, box) {
  const role = item.checked === undefined ? "menuitem" : "menuitemradio";
  const text = h("span", {class: "what"}, h("span", {text: item.label}), item.detail && h("small", {text: item.detail}));
  const mark = item.checked ? icon("check") : item.icon ? icon(item.icon) : h("span", {class: "icon"});
  return h("button", {
    type: "button", role, class: item.danger ? "danger" : null, disabled: item.disabled, "aria-checked": item.checked === undefined ? null : String(item.checked),
    on: {click: () => { box.dismiss(true); item.on(); }},
  }, mark, text, item.state ?? null);
}

function walk(event, box) {
  const buttons = [...box.querySelectorAll("button:not([disabled])")];
  const here = buttons.indexOf(document.activeElement);
  const to = {ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: buttons.length - 1}[event.key];
  if (event.key === "Escape") box.dismiss(true);
  else if (event.key === "Tab") { box.dismiss(true); return; }
  else if (to === undefined) return;
  else buttons.at(to % buttons.length).focus();
  event.preventDefault();
  event.stopPropagation();
}

function place(box, anchor) {
  const gap = 6, {width, height} = box.getBoundingClientRect();
  const below = anchor.bottom + gap + height < innerHeight || anchor.top < height + gap;
  const left = anchor.left + width < innerWidth - gap ? anchor.left : anchor.right - width;
  box.style.left = `${Math.max(gap, Math.min(left, innerWidth - width - gap))}px`;
  box.style.top = `${Math.max(gap, below ? Math.min(anchor.bottom + gap, innerHeight - height - gap) : anchor.top - height - gap)}px`;
}

/** A dialog with `parts`; resolves to the value of the button that closed it ("" when it was left). */
export function ask(title, parts, buttons) {
  return new Promise(resolve => {
    const row = buttons.map(({value, label, kind}) => h("button", {value, class: kind ?? null, type: "submit", text: label}));
    const form = h("form", {method: "dialog"}, h("h2", {text: title}), ...parts, h("div", {class: "row"}, row));
    const box = h("dialog", {"aria-label": title, on: {close: () => { box.remove(); resolve(box.returnValue); }}}, form);
    form.addEventListener("submit", event => { event.preventDefault(); box.close(event.submitter?.value ?? ""); });
    box.addEventListener("pointerdown", event => { if (event.target === box) box.close(""); });
    document.body.append(box);
    box.showModal();
  });
}

/** The text that a person gives, or null. */
export async function askText(title, {value = "", hint = "", kind = "text", action = "Save"} = {}) {
  const field = h("input", {type: kind, value, "aria-label": title, autocomplete: "off", autofocus: true});
  const parts = [hint && h("p", {text: hint}), field];
  setTimeout(() => field.select());
  const answer = await ask(title, parts.filter(Boolean), [{value: "yes", label: action, kind: "primary"}, {value: "", label: "Cancel"}]);
  return answer === "yes" ? field.value : null;
}

/** A short message, with what undoes it or goes on from it. */
export function toast(text, action = null, seconds = action ? 10 : 4) {
  const gone = () => box.remove();
  const button = action && h("button", {type: "button", text: action.label, on: {click: () => { gone(); action.on(); }}});
  const box = h("div", {class: "toast", role: "status"}, h("span", {text}), button);
  at("toasts").append(box);
  while (at("toasts").childElementCount > 3) at("toasts").firstElementChild.remove();
  const end = () => { if (box.matches(":hover, :focus-within")) setTimeout(end, 2000); else gone(); };
  setTimeout(end, seconds * 1000);
}

/** Puts `text` on the clipboard; over plain HTTP from another machine only the old way works. */
export async function copy(text, button = null) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", {value: text, class: "away", "aria-hidden": "true"});
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    button?.focus();
    if (!done) { toast("This browser does not let the page copy; select the text instead"); return; }
  }
  if (!button) { toast("Copied"); return; }
  announce("Copied");
  const before = [...button.childNodes];
  button.replaceChildren(icon("check"), ...(button.classList.contains("quiet") ? [] : [h("span", {text: "Copied"})]));
  setTimeout(() => button.replaceChildren(...before), 1500);
}

/** Hands `text` to the browser as a file. */
export function download(name, text, kind) {
  const address = URL.createObjectURL(new Blob([text], {type: kind}));
  h("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
