// The columns at the sides: beside the messages where there is room, over them where there is none.

import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const OVER = { side: "(max-width: 760px)", panel: "(max-width: 1080px)" };
export const isOver = (box) => matchMedia(OVER[box.id]).matches;

export function setOpen(id, open) {
  const box = at(id);
  box.classList.toggle("shut", !open);
  box.inert = !open;
  at(`${id}-toggle`).setAttribute("aria-expanded", String(open));
  at("shade").hidden = !["side", "panel"].some((one) => !at(one).inert && isOver(at(one)));
}

export function toggle(id) {
  const open = at(id).inert;
  if (open && isOver(at(id))) setOpen(id === "side" ? "panel" : "side", false);
  setOpen(id, open);
  if (!isOver(at(id))) remember(id, open);
  else if (open) at(`${id}-close`).focus();
}

export function shut(id) {
  setOpen(id, false);
  at(`${id}-toggle`).focus();
}

function remember(id, open) {
  store.settings.set({ ...store.settings.get(), [`${id}Shut`]: !open });
}

export function layOut() {
  for (const id of ["side", "panel"]) setOpen(id, !isOver(at(id)) && !store.settings.get()[`${id}Shut`]);
}

/** Close what lies over the messages; whether anything did. */
export function shutOver() {
  const over = ["side", "panel"].find((id) => !at(id).inert && isOver(at(id)));
  if (over) shut(over);
  return Boolean(over);
}

export function start(opened) {
  for (const id of ["side", "panel"]) {
    at(`${id}-toggle`).onclick = () => {
      toggle(id);
      opened();
    };
    at(`${id}-close`).onclick = () => shut(id);
    matchMedia(OVER[id]).addEventListener("change", layOut);
  }
  at("shade").onclick = layOut;
  layOut();
}
