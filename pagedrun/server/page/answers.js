// One answer at a time: what is asked, what comes, and how it is shown.

import { make } from "./markdown.js";
import { announce, at, isLoaded, keep, number, sends, state, toast } from "./state.js";
import * as store from "./store.js";
import { Refused, chat, key } from "./talk.js";
import { addTurn, fillAnswer, fillMine, hooks } from "./turns.js";

const DRAW_MS = 60; // between two looks of text that comes
const SAVE_MS = 2000;
const SHORT = 400; // characters of an answer that is read out when it is done

/** What the rest of the page does: changed(): a conversation has; ended(); needsKey(). */
export const after = { changed() {}, ended() {}, needsKey() {} };

export function showMessages() {
  at("messages").replaceChildren();
  at("welcome").hidden = state.current.messages.length > 0;
  at("messages").hidden = state.current.messages.length === 0;
  for (const message of state.current.messages) addTurn(message);
  if (state.running?.conversation === state.current) state.running.turn = at("messages").lastElementChild;
  showContext();
}

function edit(turn) {
  if (state.running?.conversation === state.current) return;
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
    if (!field.value.trim() || isBusy()) return;
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
  state.current.messages.length = state.current.messages.indexOf(message);
  showMessages();
}

function regenerate(turn) {
  if (isBusy()) return;
  cutAt(turn.message);
  answer();
  at("message").focus();
}

/** Whether an answer is being written, here or in another conversation; says so. */
export function isBusy() {
  if (state.running) toast("Another answer is being written: wait for it, or stop it.");
  return state.running !== null;
}

export function ask(text) {
  const first = state.current.messages.length === 0;
  state.current.messages.push({ role: "user", content: text });
  if (first && !state.current.named) state.current.title = store.titleOf(text);
  keep(state.current);
  showMessages();
  answer();
}

function body() {
  const asked = store.settings.get();
  const messages = state.current.messages.map(({ role, content }) => ({ role, content }));
  if (asked.system?.trim()) messages.unshift({ role: "system", content: asked.system });
  const found = { messages };
  if (at("model").value) found.model = at("model").value;
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"]) {
    const value = asked[name];
    if (value !== undefined && value !== "" && Number.isFinite(Number(value))) found[name] = Number(value);
  }
  if (asked.think && state.thinks) found.chat_template_kwargs = { enable_thinking: asked.think === "on" };
  return found;
}

async function answer() {
  const conversation = state.current;
  const asked = body();
  const message = { role: "assistant", content: "", reasoning: "" };
  const controller = new AbortController();
  conversation.messages.push(message);
  state.running = { conversation, message, controller, turn: null };
  showMessages();
  after.changed();
  showState();
  follow();
  announce("The answer is being written.");
  let drawn = 0;
  let saved = Date.now();
  let timings = null;
  let usage = null;
  let reason = "";
  const draw = () => {
    if (conversation !== state.current || !state.running?.turn) return;
    const down = isDown();
    fillAnswer(state.running.turn);
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
    const { turn } = state.running;
    state.running = null;
    if (store.load(conversation.id)) keep(conversation); // it may have been deleted
    if (conversation === state.current) {
      const down = isDown();
      if (turn) fillAnswer(turn);
      showContext();
      if (down) follow();
    }
    after.changed();
    showState();
    announce(said(message));
    after.ended();
  }
}

function said(message) {
  if (message.error) return message.error;
  if (message.note === "Stopped.") return "Stopped.";
  const text = message.content.trim();
  return text.length <= SHORT ? `The answer: ${text}` : "The answer is done.";
}

function failed(error, message) {
  message.error = error.message;
  if (error.status === 401) {
    message.error = key.get() ? "The server does not know this key." : "This server wants an API key.";
    after.needsKey();
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

export function stop() {
  state.running?.controller.abort();
}

export function showState() {
  const here = state.running !== null;
  at("stop").hidden = !here;
  at("send").hidden = here;
  at("send").disabled = !at("message").value.trim();
}

export function showContext() {
  const size = state.models.get(at("model").value)?.max_model_len;
  const n = state.current.messages.length ? state.current.tokens : 0;
  at("context").textContent = n && size ? `${number.format(n)} of ${number.format(size)} tokens` : "";
}

const isDown = () => at("scroll").scrollHeight - at("scroll").scrollTop - at("scroll").clientHeight < 60;

export function follow() {
  at("scroll").scrollTop = at("scroll").scrollHeight;
}

const waitsFor = () => (isLoaded() ? "Reading the prompt" : "Loading the model");

Object.assign(hooks, { isLive: (message) => state.running?.message === message, edit, regenerate, waitsFor });
