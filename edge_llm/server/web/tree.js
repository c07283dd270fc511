// A chat's messages as a tree: what was edited or asked again lies beside what it replaces.

/** {children: id or "" of the parent -> messages in order, byId}. */
export function treeOf(messages) {
  const byId = new Map(messages.map(message => [message.id, message])), children = new Map();
  for (const message of [...messages].sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1))) {
    const parent = byId.has(message.parent) ? message.parent : "";
    children.set(parent, [...(children.get(parent) ?? []), message]);
  }
  return {byId, children};
}

export const siblings = (tree, message) => tree.children.get(tree.byId.has(message.parent) ? message.parent : "") ?? [];

/** The messages from the first one to `head`; to the newest leaf where there is no such. */
export function pathTo(tree, head) {
  const path = [];
  for (let here = tree.byId.get(head) ?? leafOf(tree, null); here; here = tree.byId.get(here.parent)) path.push(here);
  return path.reverse();
}

/** The newest leaf below `message`, itself if nothing is below; null is the root. */
export function leafOf(tree, message) {
  for (let here = message;;) {
    const below = tree.children.get(here?.id ?? "");
    if (!below?.length) return here;
    here = below.at(-1);
  }
}

/** `message` and all below it. */
export function below(tree, message) {
  const found = [message];
  for (const one of found) found.push(...(tree.children.get(one.id) ?? []));
  return found;
}

/** What the model reads for the messages of `path`: files in their message, none of what failed; the same speaker twice is one. */
export function wireMessages(chat, path) {
  const from = Math.max(0, path.findIndex(message => message.id === chat.start));
  const wire = chat.system?.trim() ? [{role: "system", content: chat.system}] : [];
  for (const message of path.slice(from)) {
    const content = withFiles(message);
    if (message.role === "assistant" && !content) continue;
    const last = wire.at(-1);
    if (last?.role === message.role) last.content += `\n\n${content}`;
    else wire.push({role: message.role, content});
  }
  return wire;
}

function withFiles(message) {
  const files = (message.files ?? []).map(({name, text}) => `${name}:\n${fenced(text)}`);
  return [...files, message.content].filter(Boolean).join("\n\n");
}

/** `text` as a block of code, whatever marks are in it. */
export function fenced(text) {
  let most = 2;
  for (const [run] of text.matchAll(/`+/g)) most = Math.max(most, run.length);
  const fence = "`".repeat(most + 1);
  return `${fence}\n${text}\n${fence}`;
}
