// The page: the field to write in, settings, the key, the models.

import { after, ask, askAgain, isBusy, leave, showState, stop } from "./answers.js";
import * as columns from "./columns.js";
import "./edit.js";
import * as engine from "./engine.js";
import { newChat, openedAnother, showList } from "./list.js";
import { at, isLoaded, sends, setCurrent, state, toast } from "./state.js";
import { local, session } from "./storage.js";
import * as store from "./store.js";
import * as tabs from "./tabs.js";
import { get, key } from "./talk.js";
import { showContext } from "./thread.js";

const LOADS_MS = 1500; // between two looks whether the model is loaded that an answer waits for

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
  at("s-think").hidden = !state.thinks;
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

let waiting = null; // the conversation that goes on when there is a key

function askForKey(id = null) {
  waiting = id ?? waiting;
  at("key-wrong").hidden = !key.get();
  if (at("key").open) return;
  at("key-value").value = "";
  at("key").showModal();
}

async function useKey() {
  key.set(at("key-value").value.trim(), at("key-remember").checked);
  at("key").close("use");
  at("message").focus();
  await findModels();
  if (at("key").open) return; // it is the wrong one
  if (waiting !== null) askAgain(waiting);
  waiting = null;
}

/** quiet: nobody asked for it, so that nobody wants to hear why it failed. */
async function findModels(quiet = false) {
  let found;
  try {
    found = await get("v1/models");
  } catch (error) {
    if (quiet) return;
    if (error.status === 401) {
      askForKey();
      engine.watch(null, true, "The server tells nothing without its key.");
    } else toast(error.message);
    return;
  }
  const before = at("model").value || store.settings.get().model;
  const chats = found.data.filter((one) => one.pagedrun?.kind !== "embedding");
  const names = chats.map((one) => one.id);
  const shown = [...state.models.keys()];
  state.models = new Map(chats.map((one) => [one.id, one]));
  if (names.join("\n") !== shown.join("\n")) {
    at("model").replaceChildren(...names.map((name) => new Option(name, name)));
    if (state.models.has(before)) at("model").value = before;
  }
  if (names.length) await showModel();
  else engine.watch(null, true, "No model of this server generates text.");
}

async function showModel() {
  const name = at("model").value;
  showContext();
  state.thinks = true; // the server says so if it does not
  if (!isLoaded()) {
    engine.watch(null, true, "The model is loaded when you send something.");
    return;
  }
  try {
    const found = await get(`v1/pagedrun/properties?model=${encodeURIComponent(name)}`);
    if (name !== at("model").value) return; // another one was chosen meanwhile
    state.thinks = found.supports_thinking ?? false;
    engine.watch(name, found.model.device !== "CPU");
    engine.look();
  } catch (error) {
    engine.watch(null, true, error.message);
  }
}

function wire() {
  const field = at("message");
  at("composer").onsubmit = (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text || isBusy()) return;
    field.value = "";
    grow();
    at("toast").hidden = true; // what was undone now would take this away
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
    const undoes = event.key === "z" && (event.ctrlKey || event.metaKey) && !event.target.matches("input, textarea");
    if (undoes && !at("toast").hidden && !at("toast-undo").hidden) at("toast-undo").click();
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
    useKey();
  };
  at("key-cancel").onclick = () => at("key").close("");
  at("key").onclose = () => {
    if (at("key").returnValue !== "use") waiting = null;
    at("key").returnValue = "";
  };
  at("model").onchange = () => {
    store.settings.set({ ...store.settings.get(), model: at("model").value });
    showModel();
    findModels(true); // it may have been loaded meanwhile, or unloaded
  };
  addEventListener("pagehide", () => {
    leave();
    session.set("pagedrun.draft", field.value);
  });
}

Object.assign(after, {
  changed: showList,
  ended() {
    tabs.look();
    if (isLoaded()) engine.look();
    else findModels();
  },
  needsKey: askForKey,
});
wire();
columns.start(engine.look);
const last = session.get("pagedrun.current");
setCurrent((last && store.load(last)) || state.current);
if (!local.lasts) at("list-empty").textContent = "This browser keeps nothing for this page: conversations last until it is closed.";
openedAnother();
at("message").value = session.get("pagedrun.draft") ?? "";
tabs.start();
setInterval(() => state.running && !isLoaded() && findModels(true), LOADS_MS);
grow();
at("message").focus();
findModels();
engine.start(findModels);
