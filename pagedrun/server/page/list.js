// The list of conversations.

import { showState, stop } from "./answers.js";
import * as columns from "./columns.js";
import { make } from "./markdown.js";
import { at, held, sends, setCurrent, state, toast } from "./state.js";
import * as store from "./store.js";
import { follow, showMessages } from "./thread.js";
import { icon } from "./turns.js";

let shown = "";
let shownAt = -1; // where the current one is in the list

export function showList() {
  at("title").textContent = state.current.title;
  document.title = state.current.messages.length ? `${state.current.title} – pagedrun` : "pagedrun";
  if (at("list").querySelector("input")) return; // a title is being written: the list is shown anew after it
  const every = store.all();
  const now = JSON.stringify([state.current.id, every.map(({ id, title }) => [id, title])]);
  if (now === shown) return;
  shown = now;
  const focused = document.activeElement.closest("#list li");
  const place = focused && [...focused.children].indexOf(document.activeElement);
  at("list").replaceChildren(...every.map(entry));
  const index = every.findIndex(({ id }) => id === state.current.id);
  if (index !== shownAt) at("list").children[index]?.scrollIntoView({ block: "nearest" });
  shownAt = index;
  if (focused) itemOf(focused.dataset.id)?.children[Math.max(0, place)].focus();
}

const itemOf = (id) => [...at("list").children].find((item) => item.dataset.id === id);

function entry(conversation) {
  const item = make("li", conversation.id === state.current.id ? "current" : "");
  item.dataset.id = conversation.id;
  const open = make("button", "open", conversation.title);
  open.type = "button";
  open.title = conversation.title;
  if (conversation.id === state.current.id) open.setAttribute("aria-current", "true");
  open.onclick = () => {
    openChat(conversation.id);
    if (columns.isOver(at("side"))) columns.shut("side");
    at("message").focus();
  };
  open.onkeydown = (event) => {
    if (event.key === "F2") rename(item, conversation.id);
    if (event.key === "Delete") removeChat(conversation.id);
  };
  item.append(
    open,
    icon("edit", `Rename ${conversation.title}`, () => rename(item, conversation.id)),
    icon("bin", `Delete ${conversation.title}`, () => removeChat(conversation.id)),
  );
  return item;
}

function rename(item, id) {
  const input = make("input");
  input.value = item.querySelector(".open").textContent;
  input.setAttribute("aria-label", "Title");
  let over = false;
  const end = (save, back) => {
    if (over) return;
    over = true;
    const title = input.value.trim();
    if (save && title) {
      store.rename(id, title.slice(0, 200));
      const here = held(id);
      if (here) Object.assign(here, { title: title.slice(0, 200), named: true });
    }
    input.remove();
    shown = "";
    showList();
    if (back) itemOf(id)?.querySelector(".open").focus();
  };
  input.onkeydown = (event) => {
    event.stopPropagation();
    if (sends(event)) {
      event.preventDefault();
      end(true, true);
    }
    if (event.key === "Escape") end(false, true);
  };
  input.onblur = () => end(true, false);
  item.replaceChildren(input);
  input.focus();
  input.select();
}

function removeChat(id) {
  if (state.running?.conversation.id === id) stop();
  const removed = held(id);
  const place = [...at("list").children].findIndex((item) => item.dataset.id === id);
  store.remove(id);
  if (id === state.current.id) newChat();
  else showList();
  const next = at("list").children[Math.min(place, at("list").children.length - 1)];
  (next?.querySelector(".open") || at("new")).focus();
  toast("Deleted.", () => {
    if (removed) store.restore(removed);
    openChat(id);
    (columns.isOver(at("side")) ? itemOf(id)?.querySelector(".open") : at("message"))?.focus();
  });
}

export function newChat() {
  setCurrent(store.create());
  openedAnother();
}

function openChat(id) {
  if (id === state.current.id) return;
  setCurrent(held(id) || store.create());
  openedAnother();
}

export function openedAnother() {
  showMessages();
  showList();
  showState();
  follow();
}
