// A message of one's own is written anew in its place: it and all after it go away when it is sent.

import { ask, cutAt, isBusy } from "./answers.js";
import { make } from "./markdown.js";
import { at, sends, state } from "./state.js";
import { fillMine, hooks } from "./turns.js";

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
    cutAt(turn.message, 2);
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

hooks.edit = edit;
