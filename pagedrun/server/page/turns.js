// Messages as they are shown. What is to be done with one is the page's to say: `hooks`.

import { make, show } from "./markdown.js";
import { announce, at } from "./state.js";

export const GONE = "The answer ends here: the page was closed or loaded anew.";

/** isLive(message): whether it is being written; waitsFor(): what for; edit(turn), regenerate(turn). */
export const hooks = { isLive: () => false, waitsFor: () => "", edit() {}, regenerate() {} };

export function addTurn(message) {
  const turn = make("li", `turn ${message.role}`);
  turn.message = message;
  turn.append(make("h2", "hidden", message.role === "user" ? "You" : "Answer"));
  at("messages").append(turn);
  if (message.role === "user") fillMine(turn);
  else fillAnswer(turn);
  return turn;
}

export function fillMine(turn) {
  turn.querySelectorAll(":scope > :not(h2)").forEach((node) => node.remove());
  const tools = make("div", "tools");
  tools.append(copyButton("Copy message", () => turn.message.content), icon("edit", "Edit message", () => hooks.edit(turn)));
  turn.append(make("div", "body", turn.message.content), tools);
}

export function fillAnswer(turn) {
  const { message } = turn;
  const live = hooks.isLive(message);
  turn.setAttribute("aria-busy", String(live));
  if (message.reasoning) showThinking(turn, live);
  let text = turn.querySelector(":scope > .text");
  if (!text) turn.append((text = make("div", "text")));
  show(text, message.content, (code) => copyButton("Copy code", () => code));
  turn.querySelectorAll(":scope > .waiting, :scope > .tools, :scope > .note, :scope > .error").forEach((n) => n.remove());
  if (live) {
    if (!message.content) turn.append(waiting(message.reasoning ? "" : hooks.waitsFor()));
    return;
  }
  const note = message.note || (message.writing ? GONE : "");
  if (note) turn.append(make("p", "note", note));
  if (message.error) {
    const box = make("div", "error");
    const again = make("button", "", "Try again");
    again.type = "button";
    again.onclick = () => hooks.regenerate(turn);
    box.append(make("span", "", message.error), again);
    turn.append(box);
  }
  const tools = make("div", "tools");
  if (message.content) tools.append(copyButton("Copy answer", () => message.content.trim()));
  tools.append(icon("again", "Answer again", () => hooks.regenerate(turn)));
  if (message.stats) tools.append(make("span", "stats", message.stats));
  turn.append(tools);
}

function showThinking(turn, live) {
  const { message } = turn;
  let box = turn.querySelector(":scope > .thinking");
  if (!box) {
    box = make("details", "thinking");
    box.append(make("summary"), make("div"));
    turn.querySelector("h2").after(box);
  }
  box.querySelector("summary").textContent = live && !message.content ? "Thinking…" : "Thoughts";
  const inside = box.querySelector("div");
  if (inside.textContent !== message.reasoning.trim()) inside.textContent = message.reasoning.trim();
}

function waiting(text) {
  const box = make("div", "waiting");
  box.append(make("i"), make("i"), make("i"), make("span", "", text));
  return box;
}

export function icon(name, label, action) {
  const button = make("button", "icon");
  button.type = "button";
  button.title = label;
  button.setAttribute("aria-label", label);
  button.append(drawing(name));
  button.onclick = action;
  return button;
}

function drawing(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

function copyButton(label, text) {
  const button = icon("copy", label, async () => {
    const done = await copied(text());
    announce(done ? "Copied." : "The browser does not let this page copy.");
    if (!done) return;
    button.replaceChildren(drawing("done"));
    setTimeout(() => button.replaceChildren(drawing("copy")), 1500);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", "hidden", text); // pages that are not on loopback have no clipboard without TLS
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
