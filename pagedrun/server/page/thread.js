// The messages of the conversation that is shown.

import { at, isLoaded, number, state } from "./state.js";
import * as store from "./store.js";
import { addTurn, fillAnswer, fillMine, hooks } from "./turns.js";

export function showMessages() {
  at("messages").replaceChildren();
  for (const message of state.current.messages) addTurn(message);
  showRest();
}

/** Show what another tab made of the conversation. What stayed as it was is not touched, nor what is being edited. */
export function refresh() {
  const down = isDown();
  const { messages } = state.current;
  const turns = [...at("messages").children];
  const same = turns.findIndex((turn, i) => turn.message.role !== messages[i]?.role);
  if (same >= 0) for (const turn of turns.splice(same)) dropTurn(turn);
  messages.forEach((message, i) => (i < turns.length ? update(turns[i], message) : addTurn(message)));
  showRest();
  if (down) follow();
}

function update(turn, message) {
  const changed = JSON.stringify(turn.message) !== JSON.stringify(message);
  turn.message = message;
  if (!changed || turn.querySelector(".edit")) return;
  if (message.role === "user") fillMine(turn);
  else fillAnswer(turn);
}

function dropTurn(turn) {
  keepEdited(turn);
  turn.remove();
}

/** What is being edited goes to the field, as its message goes away. */
export function keepEdited(box) {
  const text = box.querySelector(".edit textarea")?.value.trim();
  if (!text) return;
  const field = at("message");
  field.value = field.value.trim() ? `${field.value}\n\n${text}` : text;
  field.dispatchEvent(new Event("input"));
  field.focus();
}

function showRest() {
  const n = state.current.messages.length;
  at("welcome").hidden = n > 0;
  at("messages").hidden = n === 0;
  if (state.running?.conversation === state.current) state.running.turn = at("messages").lastElementChild;
  showContext();
}

export function showContext() {
  const size = state.models.get(at("model").value)?.max_model_len;
  const n = state.current.messages.length ? state.current.tokens : 0;
  at("context").textContent = n && size ? `${number.format(n)} of ${number.format(size)} tokens` : "";
}

export const isDown = () => at("scroll").scrollHeight - at("scroll").scrollTop - at("scroll").clientHeight < 60;

export function follow() {
  at("scroll").scrollTop = at("scroll").scrollHeight;
}

Object.assign(hooks, {
  isLive: (message) => state.running?.message === message || store.isWrittenElsewhere(message),
  waitsFor: () => (isLoaded() ? "Reading the prompt" : "Loading the model"),
});
