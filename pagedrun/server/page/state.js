// What the page is about, shared by its parts.

import { session } from "./storage.js";
import * as store from "./store.js";

/** models: what the server says of each, by name. running: {conversation, message, controller, turn}, or null. */
export const state = { current: store.create(), models: new Map(), thinks: true, running: null };

export const at = (id) => document.getElementById(id);
export const number = new Intl.NumberFormat("en");

/** Whether a key sends what was written. */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.isComposing;

/** Whether the chosen model is loaded. */
export const isLoaded = () => state.models.get(at("model").value)?.pagedrun?.loaded !== false;

/** Say something to those who do not see it. */
export function announce(text) {
  at("status").textContent = "";
  requestAnimationFrame(() => (at("status").textContent = text));
}

let toastTimer = 0;

/** Say something for a moment; `undo` takes it back. */
export function toast(text, undo = null) {
  at("toast-text").textContent = text;
  at("toast-undo").hidden = undo === null;
  at("toast-undo").onclick = () => {
    at("toast").hidden = true;
    undo();
  };
  at("toast").hidden = false;
  announce(text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (at("toast").hidden = true), undo ? 10000 : 4000);
}

/** The conversation that is shown, here and after a reload. */
export function setCurrent(conversation) {
  state.current = conversation;
  session.set("pagedrun.current", conversation.id);
}

/** The conversation with this id as this page has it, or as it is stored; null: there is none. */
export const held = (id) => [state.current, state.running?.conversation].find((one) => one?.id === id) || store.load(id);

/** Save a conversation that has changed; as a copy if another tab changed it meanwhile. Whether it still exists.
    quiet: if there is no room, somebody else says so. */
export function keep(conversation, quiet = false) {
  let how = store.save(conversation);
  if (how === "taken") {
    store.part(conversation);
    how = store.save(conversation);
    if (conversation === state.current) setCurrent(conversation);
    toast("Another tab went on with this conversation: here it goes on as a copy.");
  }
  if (how === "full" && !quiet) toast("This browser has no room for it any more: delete some conversations.");
  return how !== "gone";
}
