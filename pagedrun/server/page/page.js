// The page: conversations, and one answer at a time in each.

import * as columns from "./columns.js";
import * as engine from "./engine.js";
import { make } from "./markdown.js";
import * as store from "./store.js";
import { Refused, chat, get, key } from "./talk.js";
import { addTurn, announce, fillAnswer, fillMine, hooks, icon } from "./turns.js";

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const DRAW_MS = 60; // between two looks of text that comes
const SAVE_MS = 2000;
const SHORT = 400; // characters of an answer that is read out when it is done

let current = store.create();
let models = new Map(); // name: what the server says of it
let thinks = true;
let running = null; // {conversation, message, controller, turn}
let removed = null;

// what is said for a moment

let toastTimer = 0;
function toast(text, undo = null) {
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

// conversations

function keep(conversation) {
  conversation.updated = Date.now();
  if (!store.save(conversation)) toast("This browser has no room for it any more: delete some conversations.");
}

function showList() {
  const every = store.all();
  const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
  at("list").replaceChildren(...every.map(entry));
  at("title").textContent = current.title;
  document.title = current.messages.length ? `${current.title} – pagedrun` : "pagedrun";
  if (focused) at("list").querySelector(`li[data-id="${focused}"] .open`)?.focus();
}

function entry(conversation) {
  const item = make("li", conversation.id === current.id ? "current" : "");
  item.dataset.id = conversation.id;
  const open = make("button", "open", conversation.title);
  open.type = "button";
  open.title = conversation.title;
  if (conversation.id === current.id) open.setAttribute("aria-current", "true");
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
  const conversation = id === current.id ? current : store.load(id);
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
  if (running?.conversation.id === id) stop();
  removed = id === current.id ? current : store.load(id);
  const place = [...at("list").children].findIndex((item) => item.dataset.id === id);
  store.remove(id);
  if (id === current.id) newChat();
  else showList();
  const next = at("list").children[Math.min(place, at("list").children.length - 1)];
  (next?.querySelector(".open") || at("new")).focus();
  toast("Deleted.", () => {
    store.save(removed);
    openChat(removed.id);
    at("message").focus();
  });
}

function newChat() {
  current = store.create();
  openedAnother();
}

function openChat(id) {
  if (id === current.id) return;
  current = running?.conversation.id === id ? running.conversation : store.load(id) || store.create();
  openedAnother();
}

function openedAnother() {
  sessionStorage.setItem("pagedrun.current", current.id);
  showMessages();
  showList();
  showState();
  at("scroll").scrollTop = at("scroll").scrollHeight;
}

// messages

function showMessages() {
  at("messages").replaceChildren();
  at("welcome").hidden = current.messages.length > 0;
  at("messages").hidden = current.messages.length === 0;
  for (const message of current.messages) addTurn(message);
  if (running?.conversation === current) running.turn = at("messages").lastElementChild;
  showContext();
}

function edit(turn) {
  if (running?.conversation === current) return;
  const box = make("form", "edit");
  const field = make("textarea");
  const row = make("div", "row");
  const cancel = make("button", "plain", "Cancel");
  const send = make("button", "primary", "Send");
  field.value = turn.message.content;
  field.setAttribute("aria-label", "Edit message");
  cancel.type = "button";
  const back = () => {
    fillMine(turn);
    turn.querySelector('[aria-label="Edit message"]').focus();
  };
  cancel.onclick = back;
  field.onkeydown = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      back();
    }
    if (sends(event)) {
      event.preventDefault();
      box.requestSubmit();
    }
  };
  box.onsubmit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    cutAt(turn.message);
    ask(field.value);
    at("message").focus();
  };
  row.append(cancel, send);
  box.append(field, row);
  turn.querySelectorAll(":scope > :not(h2)").forEach((node) => node.remove());
  turn.append(box);
  field.style.height = `${Math.min(field.scrollHeight + 4, 400)}px`;
  field.focus();
}

/** Take this message and all after it away. */
function cutAt(message) {
  current.messages.length = current.messages.indexOf(message);
  showMessages();
}

function regenerate(turn) {
  if (running) return;
  cutAt(turn.message);
  answer();
  at("message").focus();
}

// asking

const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.isComposing;

function ask(text) {
  if (running) return;
  const first = current.messages.length === 0;
  current.messages.push({ role: "user", content: text });
  if (first && !current.named) current.title = store.titleOf(text);
  keep(current);
  showMessages();
  answer();
}

function body() {
  const asked = store.settings.get();
  const messages = current.messages.map(({ role, content }) => ({ role, content }));
  if (asked.system?.trim()) messages.unshift({ role: "system", content: asked.system });
  const found = { messages };
  if (at("model").value) found.model = at("model").value;
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"]) {
    const value = asked[name];
    if (value !== undefined && value !== "" && Number.isFinite(Number(value))) found[name] = Number(value);
  }
  if (asked.think && thinks) found.chat_template_kwargs = { enable_thinking: asked.think === "on" };
  return found;
}

async function answer() {
  const conversation = current;
  const asked = body();
  const message = { role: "assistant", content: "", reasoning: "" };
  const controller = new AbortController();
  conversation.messages.push(message);
  running = { conversation, message, controller, turn: null };
  showMessages();
  showList();
  showState();
  follow(true);
  announce("The answer is being written.");
  let drawn = 0;
  let saved = Date.now();
  let timings = null;
  let usage = null;
  let reason = "";
  const draw = () => {
    if (conversation !== current || !running?.turn) return;
    const down = isDown();
    fillAnswer(running.turn);
    if (down) follow();
  };
  const later = setInterval(() => {
    if (drawn) {
      drawn = 0;
      draw();
    }
  }, DRAW_MS);
  try {
    for await (const chunk of chat(asked, controller.signal)) {
      if (chunk.usage) usage = chunk.usage;
      if (chunk.timings) timings = chunk.timings;
      const choice = chunk.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason || reason;
      message.reasoning += choice.delta.reasoning_content || "";
      message.content += choice.delta.content || "";
      drawn++;
      if (Date.now() - saved > SAVE_MS) {
        store.save(conversation);
        saved = Date.now();
      }
    }
    if (reason === "length") message.note = "The answer ended here because it may not be longer.";
    if (!message.content && !message.reasoning) message.note = "The model said nothing.";
    if (usage) conversation.tokens = usage.total_tokens;
    message.stats = figures(usage, timings);
  } catch (error) {
    if (error.name === "AbortError") message.note = "Stopped.";
    else if (error instanceof Refused) failed(error, message);
    else {
      message.error = "The page failed.";
      console.error(error);
    }
  } finally {
    clearInterval(later);
    const { turn } = running;
    running = null;
    message.content = message.content.trim();
    if (store.load(conversation.id)) keep(conversation); // it may have been deleted
    if (conversation === current) {
      const down = isDown();
      if (turn) fillAnswer(turn);
      showContext();
      if (down) follow();
    }
    showList();
    showState();
    announce(said(message));
    if (isLoaded()) engine.look();
    else findModels();
  }
}

function said(message) {
  if (message.error) return message.error;
  if (message.note === "Stopped.") return "Stopped.";
  return message.content.length <= SHORT ? `The answer: ${message.content}` : "The answer is done.";
}

function failed(error, message) {
  message.error = error.message;
  if (error.status === 401) {
    message.error = key.get() ? "The server does not know this key." : "This server wants an API key.";
    askForKey();
  }
  if (error.code === "context_length_exceeded") message.error = "The conversation is longer than the model's context. Begin a new one, or shorten a message.";
}

function figures(usage, timings) {
  const found = [];
  if (usage) found.push(`${number.format(usage.completion_tokens)} tokens`);
  const rate = timings?.predicted_per_second;
  if (rate && usage.completion_tokens > 1) found.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) found.push(`${number.format(cached)} of ${number.format(usage.prompt_tokens)} prompt tokens from the cache`);
  return found.join(" · ");
}

const waitsFor = () => (isLoaded() ? "Reading the prompt" : "Loading the model");

function stop() {
  running?.controller.abort();
}

// state

function showState() {
  const here = running !== null;
  at("stop").hidden = !here;
  at("send").hidden = here;
  at("send").disabled = !at("message").value.trim();
}

function showContext() {
  const size = models.get(at("model").value)?.max_model_len;
  const n = current.messages.length ? current.tokens : 0;
  at("context").textContent = n && size ? `${number.format(n)} of ${number.format(size)} tokens` : "";
}

const isDown = () => at("scroll").scrollHeight - at("scroll").scrollTop - at("scroll").clientHeight < 60;

function follow() {
  at("scroll").scrollTop = at("scroll").scrollHeight;
}

function grow() {
  const field = at("message");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
  showState();
}

// settings, the key, the models

function openSettings() {
  const values = store.settings.get();
  for (const field of at("settings-form").elements) if (field.name) field.value = values[field.name] ?? "";
  at("s-think").hidden = !thinks;
  at("settings").showModal();
}

function saveSettings() {
  const values = store.settings.get();
  for (const field of at("settings-form").elements) {
    if (!field.name) continue;
    if (field.value.trim() && field.validity.valid) values[field.name] = field.value;
    else delete values[field.name];
  }
  store.settings.set(values);
}

function askForKey() {
  if (at("key").open) return;
  at("key-value").value = "";
  at("key").showModal();
}

async function findModels() {
  let found;
  try {
    found = await get("v1/models");
  } catch (error) {
    if (error.status === 401) askForKey();
    else toast(error.message);
    return;
  }
  const before = at("model").value || store.settings.get().model;
  models = new Map(found.data.map((one) => [one.id, one]));
  at("model").replaceChildren(...[...models.keys()].map((name) => new Option(name, name)));
  if (models.has(before)) at("model").value = before;
  await choseModel();
}

const isLoaded = () => models.get(at("model").value)?.pagedrun?.loaded !== false;

async function choseModel() {
  const name = at("model").value;
  showContext();
  thinks = true; // the server says so if it does not
  if (!isLoaded()) {
    engine.watch(null, true);
    return;
  }
  try {
    const found = await get(`v1/pagedrun/properties?model=${encodeURIComponent(name)}`);
    if (name !== at("model").value) return; // another one was chosen meanwhile
    thinks = found.supports_thinking ?? false;
    engine.watch(name, found.model.device !== "CPU");
    engine.look();
  } catch {
    engine.watch(null, true);
  }
}

function wire() {
  const field = at("message");
  at("composer").onsubmit = (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text || running) return;
    field.value = "";
    grow();
    ask(text);
  };
  field.onkeydown = (event) => {
    if (!sends(event)) return;
    event.preventDefault();
    at("composer").requestSubmit();
  };
  field.oninput = grow;
  at("stop").onclick = () => {
    stop();
    field.focus();
  };
  at("new").onclick = () => {
    newChat();
    if (columns.isOver(at("side"))) columns.setOpen("side", false);
    field.focus();
  };
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (!columns.shutOver()) stop();
  });
  at("settings-open").onclick = openSettings;
  at("settings").onclose = saveSettings;
  at("settings-reset").onclick = () => {
    for (const input of at("settings-form").elements) if (input.name) input.value = "";
  };
  at("key-form").onsubmit = (event) => {
    event.preventDefault();
    key.set(at("key-value").value.trim(), at("key-remember").checked);
    at("key").close();
    findModels();
    field.focus();
  };
  at("key-cancel").onclick = () => at("key").close();
  at("model").onchange = () => {
    store.settings.set({ ...store.settings.get(), model: at("model").value });
    choseModel();
  };
  addEventListener("pagehide", () => running && store.save(running.conversation));
  addEventListener("storage", (event) => {
    if (!store.isChat(event.key)) return;
    if (event.key?.endsWith(current.id) && !running && event.newValue) {
      current = store.load(current.id);
      showMessages();
    }
    showList();
  });
}

Object.assign(hooks, { isLive: (message) => running?.message === message, edit, regenerate, waitsFor });
wire();
columns.start(engine.look);
const last = sessionStorage.getItem("pagedrun.current");
const found = last && store.load(last);
if (found) current = found;
openedAnother();
grow();
at("message").focus();
findModels();
engine.start(findModels);
