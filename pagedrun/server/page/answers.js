// One answer at a time: what is asked, what comes, and how it is shown.

import { announce, at, held, isLoaded, keep, number, state, toast } from "./state.js";
import * as store from "./store.js";
import { Refused, chat, key } from "./talk.js";
import { follow, isDown, showContext, showMessages } from "./thread.js";
import { GONE, fillAnswer, hooks } from "./turns.js";

const DRAW_MS = 60; // between two looks of text that comes
const LIGHT = 4; // a look that takes long is followed by so many times as long for all else
const SAVE_MS = 2000;
const SHORT = 400; // characters of an answer that is read out when it is done

/** What the rest of the page does: changed(): a conversation has; ended(); needsKey(id): to go on with that one. */
export const after = { changed() {}, ended() {}, needsKey() {} };

/** Take this message and all after it away; `n` of them come anew. */
export function cutAt(message, n) {
  const { id, title, messages } = state.current;
  const before = [...messages];
  messages.length = messages.indexOf(message);
  showMessages();
  if (before.length > messages.length + n) toast("What came after is gone.", () => putBack(id, { title, messages: before }));
}

function putBack(id, before) {
  const conversation = held(id);
  if (!conversation?.rev || !store.isMine(conversation.rev)) return; // another tab has gone on
  if (state.running?.conversation === conversation) stop();
  Object.assign(conversation, before);
  keep(conversation);
  after.changed();
  if (conversation === state.current) showMessages();
}

function regenerate(turn) {
  if (isBusy()) return;
  cutAt(turn.message, 1);
  answer();
  at("message").focus();
}

/** Whether an answer is being written, here or in another conversation, or to this one in another tab; says so. */
export function isBusy() {
  const elsewhere = !state.running && store.isWrittenElsewhere(state.current.messages.at(-1));
  if (state.running) toast("Another answer is being written: wait for it, or stop it.");
  if (elsewhere) toast("Another tab is writing an answer here: wait for it, or stop it there.");
  return state.running !== null || elsewhere;
}

export function ask(text) {
  const first = state.current.messages.length === 0;
  state.current.messages.push({ role: "user", content: text });
  if (first && !state.current.named) state.current.title = store.titleOf(text);
  answer();
}

/** Ask again, if the last answer of that conversation is an error. */
export function askAgain(id) {
  const conversation = held(id);
  if (state.running || !conversation?.messages.at(-1)?.error) return;
  conversation.messages.pop();
  answer(conversation);
}

function body(conversation) {
  const asked = store.settings.get();
  const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
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

/** An answer whose page is gone stays as it is. */
function settle(message) {
  if (!message.writing) return;
  delete message.writing;
  message.note ||= GONE;
}

async function answer(conversation = state.current) {
  const asked = body(conversation);
  const message = { role: "assistant", content: "", reasoning: "", writing: Date.now() };
  const controller = new AbortController();
  conversation.messages.forEach(settle);
  conversation.messages.push(message);
  conversation.updated = Date.now();
  state.running = { conversation, message, controller, turn: null };
  if (!keep(conversation)) {
    conversation.rev = undefined; // deleted in another tab just now: who writes in it wants it
    keep(conversation);
  }
  if (conversation === state.current) showMessages();
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
  const save = () => {
    if (Date.now() - saved < SAVE_MS) return;
    const { id } = conversation;
    message.writing = saved = Date.now();
    keep(conversation, true);
    if (conversation.id !== id) after.changed();
  };
  let loaded = isLoaded();
  let free = 0;
  const later = setInterval(() => {
    save();
    const begin = performance.now();
    if (begin < free || (!drawn && loaded === isLoaded())) return;
    loaded = isLoaded();
    drawn = 0;
    draw();
    free = begin + LIGHT * (performance.now() - begin);
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
      save(); // timers of a hidden tab are slow
    }
    if (reason === "length") message.note = "The answer ended here because it may not be longer.";
    if (!message.content && !message.reasoning) message.note = "The model said nothing.";
    if (usage) conversation.tokens = usage.total_tokens;
    message.stats = figures(usage, timings);
  } catch (error) {
    if (error.name === "AbortError" || message.note === GONE) message.note ||= "Stopped.";
    else if (error instanceof Refused) failed(error, message, conversation);
    else {
      message.error = "The page failed.";
      console.error(error);
    }
  } finally {
    clearInterval(later);
    const { turn } = state.running;
    state.running = null;
    delete message.writing;
    keep(conversation);
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

function failed(error, message, conversation) {
  message.error = error.message;
  if (error.status === 401) {
    message.error = key.get() ? "The server does not know this key." : "This server wants an API key.";
    after.needsKey(conversation.id);
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

/** The page is left: what there is of an answer says so. */
export function leave() {
  if (!state.running) return;
  const { conversation, message } = state.running;
  message.note = GONE;
  delete message.writing;
  keep(conversation, true);
  stop();
}

export function showState() {
  const here = state.running !== null;
  at("stop").hidden = !here;
  at("send").hidden = here;
  at("send").disabled = !at("message").value.trim();
}

hooks.regenerate = regenerate;
