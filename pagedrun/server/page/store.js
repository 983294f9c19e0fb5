// Conversations and settings, in the browser's storage, which all tabs share.
//
// A conversation: {id, title, named, updated, tokens, rev, messages: [{role, content, reasoning, note, error, stats, writing}]}
// rev: PAGE.NUMBER, which page wrote the messages last; a title may change without. writing: when a page that writes the
// answer last said so, in ms; gone when the answer is done.

import { local } from "./storage.js";

const PREFIX = "pagedrun.chat.";
const SETTINGS = "pagedrun.settings";
const LEASE_MS = 30000; // without a sign of life of the page that writes an answer
const ME = random();
let saves = 0;

function random() {
  const [a, b] = crypto.getRandomValues(new Uint32Array(2));
  return a.toString(36) + b.toString(36);
}

const heads = new Map(); // name: {text, head}

/** {id, title, updated} of every conversation, the newest first. */
export function all() {
  const found = [];
  const names = new Set(local.names().filter((name) => name.startsWith(PREFIX)));
  for (const name of heads.keys()) if (!names.has(name)) heads.delete(name);
  for (const name of names) {
    const text = local.get(name);
    if (heads.get(name)?.text !== text) heads.set(name, { text, head: headOf(parsed(text)) });
    const { head } = heads.get(name);
    if (head) found.push(head);
  }
  return found.sort((a, b) => b.updated - a.updated);
}

const headOf = (one) => (Array.isArray(one?.messages) ? { id: one.id, title: one.title, updated: one.updated } : null);

export function create() {
  return { id: `${Date.now().toString(36)}${random()}`, title: "New chat", named: false, updated: Date.now(), messages: [] };
}

/** "saved", "full": no room; "gone": another page deleted it; "taken": another page has changed its messages. */
export function save(conversation) {
  const stored = load(conversation.id);
  if (!stored && conversation.rev) return "gone";
  if (stored && stored.rev !== conversation.rev && !isMine(stored.rev)) return "taken";
  if (stored?.named) Object.assign(conversation, { title: stored.title, named: true });
  return put(conversation, `${ME}.${++saves}`) ? "saved" : "full";
}

function put(conversation, rev) {
  if (!local.set(PREFIX + conversation.id, JSON.stringify({ ...conversation, rev }))) return false;
  conversation.rev = rev;
  return true;
}

/** Whether this page wrote the messages that are stored. */
export const isMine = (rev) => rev.startsWith(`${ME}.`);

export function load(id) {
  const found = parsed(local.get(PREFIX + id));
  return Array.isArray(found?.messages) ? { ...found, rev: found.rev || "0" } : null;
}

export const isGone = (conversation) => Boolean(conversation.rev) && !load(conversation.id);

/** Whether another page is writing this message. */
export const isWrittenElsewhere = (message) => Date.now() - (message?.writing || 0) < LEASE_MS;

/** Leaves the messages to whoever writes them. */
export function rename(id, title) {
  const stored = load(id);
  if (stored) put({ ...stored, title, named: true }, stored.rev);
}

/** Make it another conversation than the one that is stored. */
export function part(conversation) {
  Object.assign(conversation, { id: create().id, title: `${conversation.title} (copy)`, rev: undefined });
}

export function remove(id) {
  local.remove(PREFIX + id);
}

/** Put a deleted one back. */
export function restore(conversation) {
  for (const message of conversation.messages) if (message.writing) message.writing = 1; // nobody does any more
  conversation.rev = undefined;
  return save(conversation);
}

export const isChat = (name) => name === null || name.startsWith(PREFIX);

export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 48 ? `${line.slice(0, 47).trimEnd()}…` : line || "New chat";
}

export const settings = {
  get: () => parsed(local.get(SETTINGS)) || {},
  set: (values) => local.set(SETTINGS, JSON.stringify(values)), // without room they stay as they were
};

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
