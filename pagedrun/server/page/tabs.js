// What other tabs of this browser do with the conversations.

import { showState, stop } from "./answers.js";
import { newChat, showList } from "./list.js";
import { at, setCurrent, state, toast } from "./state.js";
import * as store from "./store.js";
import { keepEdited, refresh } from "./thread.js";
import { fillAnswer } from "./turns.js";

const LOST_MS = 5000; // between two looks whether a page that writes an answer is still there

/** Show the conversations as they are stored; what is being written here stays. */
export function look() {
  const { current, running } = state;
  if (running && store.isGone(running.conversation)) stop();
  const stored = store.load(current.id);
  if (running?.conversation === current || (stored && stored.rev === current.rev)) {
    if (stored?.named) Object.assign(current, { title: stored.title, named: true });
  } else if (store.isGone(current)) {
    keepEdited(at("messages"));
    newChat();
    toast("This conversation was deleted in another tab.");
  } else if (stored && store.isMine(stored.rev)) {
    store.save(current); // a rename elsewhere brought back what was there before
  } else if (stored) {
    setCurrent(stored);
    refresh();
  }
  showList();
  showState();
}

function lookForLost() {
  const turn = at("messages").lastElementChild;
  if (!state.running && turn?.message.writing && !store.isWrittenElsewhere(turn.message)) fillAnswer(turn);
}

export function start() {
  addEventListener("storage", (event) => store.isChat(event.key) && look());
  addEventListener("pageshow", (event) => event.persisted && look());
  document.addEventListener("visibilitychange", () => document.hidden || look());
  setInterval(lookForLost, LOST_MS);
}
