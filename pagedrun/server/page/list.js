// The list of conversations.

import { follow, showMessages, showState, stop } from "./answers.js";
import * as columns from "./columns.js";
import { make } from "./markdown.js";
import { at, sends, state, toast } from "./state.js";
import * as store from "./store.js";
import { icon } from "./turns.js";

export function showList() {
  const every = store.all();
  const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
  at("list").replaceChildren(...every.map(entry));
  at("title").textContent = state.current.title;
  document.title = state.current.messages.length ? `${state.current.title} – pagedrun` : "pagedrun";
  if (focused) at("list").querySelector(`li[data-id="${focused}"] .open`)?.focus();
}

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
  const conversation = id === state.current.id ? state.current : store.load(id);
  const input = make("input");
  input.value = conversation.title;
  input.setAttribute("aria-label", "Title");
  let over = false;
  const end = (save) => {
    if (over) return;
    over = true;
    const title = input.value.trim();
    if (save && title) {
      conversation.title = title.slice(0, 200);
      conversation.named = true;
      store.save(conversation);
    }
    showList();
    at("list").querySelector(`li[data-id="${id}"] .open`)?.focus();
  };
  input.onkeydown = (event) => {
    event.stopPropagation();
    if (sends(event)) {
      event.preventDefault();
      end(true);
    }
    if (event.key === "Escape") end(false);
  };
  input.onblur = () => end(true);
  item.replaceChildren(input);
  input.focus();
  input.select();
}

function removeChat(id) {
  if (state.running?.conversation.id === id) stop();
  const removed = id === state.current.id ? state.current : store.load(id);
  const place = [...at("list").children].findIndex((item) => item.dataset.id === id);
  store.remove(id);
  if (id === state.current.id) newChat();
  else showList();
  const next = at("list").children[Math.min(place, at("list").children.length - 1)];
  (next?.querySelector(".open") || at("new")).focus();
  toast("Deleted.", () => {
    store.save(removed);
    openChat(removed.id);
    at("message").focus();
  });
}

export function newChat() {
  state.current = store.create();
  openedAnother();
}

function openChat(id) {
  if (id === state.current.id) return;
  state.current = state.running?.conversation.id === id ? state.running.conversation : store.load(id) || store.create();
  openedAnother();
}

export function openedAnother() {
  sessionStorage.setItem("pagedrun.current", state.current.id);
  showMessages();
  showList();
  showState();
  follow();
}
