// The panel: pages by tier as cells, and how fast the engine is, while somebody can see it.

import { get } from "./talk.js";
import { make } from "./markdown.js";

const EVERY_MS = 1000;
const MOST_CELLS = 360;
const HISTORY = 60;
const number = new Intl.NumberFormat("en");

const at = (id) => document.getElementById(id);
let before = null;
let onGpu = true;
let model = null; // null: not loaded
let lost = () => {};
const rates = [];
const drawn = new Map(); // tier: {canvas, used, room}

/** Which model the figures are of; null: of none, and why. */
export function watch(name, gpu, why = "") {
  if (name !== model) rates.length = 0;
  model = name;
  onGpu = gpu;
  before = null;
  if (name === null) showMemory(null, why);
}

/** Look again and again. whenLost: called when the model is not loaded any more. */
export function start(whenLost) {
  lost = whenLost;
  setInterval(look, EVERY_MS);
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  look();
}

export async function look() {
  if (document.hidden || at("panel").inert || model === null) {
    before = null;
    return;
  }
  const of = `?model=${encodeURIComponent(model)}`;
  try {
    const [speed, memory] = await Promise.all([get(`v1/pagedrun/stats${of}`), get(`v1/pagedrun/memory${of}`)]);
    showSpeed(speed);
    showMemory(memory.kv_cache);
    at("lost").hidden = true;
  } catch (error) {
    before = null; // the next look may do
    at("lost").hidden = error.status !== 0;
    for (const figure of ["rate", "reading", "running", "waiting"]) at(figure).textContent = "–";
    if (error.status === 404 && model !== null) {
      watch(null, onGpu);
      lost();
    }
  }
}

function showSpeed(now) {
  const time = performance.now();
  let chosen = 0;
  let read = 0;
  if (before && now.tokens_sampled >= before.now.tokens_sampled) {
    const seconds = (time - before.time) / 1000;
    chosen = (now.tokens_sampled - before.now.tokens_sampled) / seconds;
    read = Math.max(0, (now.tokens_computed - before.now.tokens_computed) / seconds - chosen);
  }
  before = { time, now };
  rates.push(chosen);
  if (rates.length > HISTORY) rates.shift();
  at("rate").textContent = chosen < 10 ? chosen.toFixed(chosen ? 1 : 0) : number.format(Math.round(chosen));
  at("reading").textContent = `${number.format(Math.round(read))} tokens/s`;
  at("running").textContent = number.format(now.running);
  at("waiting").textContent = number.format(now.waiting);
  drawSpark();
}

function showMemory(kv, why = "The KV cache of this model has no pages.") {
  at("memory-none").hidden = kv !== null;
  at("memory-none").textContent = why;
  at("memory-figures").hidden = kv === null;
  at("tiers").hidden = kv === null;
  if (kv === null) return;
  const tiers = [
    ["device", onGpu ? "GPU" : "RAM", kv.device],
    ["host", onGpu ? "RAM" : "Swap space", kv.host],
    ["disk", "Disk", kv.disk],
  ];
  for (const [kind, name, tier] of tiers) showTier(kind, name, tier);
  figures(at("memory-figures"), {
    Tokens: number.format(kv.tokens),
    Conversations: `${number.format(kv.conversations)} (${number.format(kv.resting)} at rest)`,
    "Shared pages": number.format(kv.shared_pages),
    ...(kv.spill.cold ? { "Read from RAM": `${number.format(kv.spill.cold)} pages` } : {}),
    ...(kv.evictions ? { "Moved out": `${number.format(kv.evictions)} pages` } : {}),
  });
}

function showTier(kind, name, tier) {
  let there = drawn.get(kind);
  if (!there) {
    const box = make("div", `tier ${kind}`);
    const head = make("div", "tier-head");
    const label = make("span", "tier-name", name);
    const text = make("span", "tier-text");
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    head.append(label, text);
    box.append(head, canvas);
    at("tiers").append(box);
    there = { box, label, text, canvas };
    drawn.set(kind, there);
  }
  const room = Math.max(tier.budget, tier.used);
  there.box.hidden = room === 0;
  if (there.used === tier.used && there.room === room && there.label.textContent === name) return;
  Object.assign(there, { used: tier.used, room });
  const said = `${number.format(tier.used)} of ${number.format(room)} pages`;
  there.label.textContent = name;
  there.text.textContent = `${said}, ${size(tier.n_bytes)} of ${size(tier.limit_bytes)}`;
  there.canvas.setAttribute("aria-label", `${name}: ${said} in use`);
  drawTier(there);
}

function redraw() {
  for (const tier of drawn.values()) drawTier(tier);
  drawSpark();
}

/** One cell for each page, or for several where there are many. A cell that is used in part is filled in part. */
function drawTier({ canvas, used, room }) {
  if (!room) return;
  const per = Math.ceil(room / MOST_CELLS);
  const n = Math.ceil(room / per);
  const width = canvas.clientWidth || 240;
  const cell = n > 180 ? 8 : n > 60 ? 10 : 14;
  const gap = 2;
  const across = Math.max(1, Math.floor((width + gap) / (cell + gap)));
  const pen = fitted(canvas, width, Math.ceil(n / across) * (cell + gap) - gap);
  const style = getComputedStyle(canvas);
  const full = style.getPropertyValue("--cell");
  const empty = style.getPropertyValue("--cell-empty");
  for (let i = 0; i < n; i++) {
    const x = (i % across) * (cell + gap);
    const y = Math.floor(i / across) * (cell + gap);
    const part = Math.min(1, Math.max(0, (used - i * per) / per));
    pen.fillStyle = empty;
    rounded(pen, x, y, cell, cell);
    if (part > 0) {
      pen.fillStyle = full;
      const height = Math.max(2, Math.round(cell * part));
      rounded(pen, x, y + cell - height, cell, height);
    }
  }
}

function drawSpark() {
  const canvas = at("spark");
  const width = canvas.clientWidth || 240;
  const height = 44;
  const pen = fitted(canvas, width, height);
  const style = getComputedStyle(canvas);
  const most = Math.max(1, ...rates);
  const step = width / (HISTORY - 1);
  const x = (i) => width - (rates.length - 1 - i) * step;
  const y = (rate) => height - 2 - (rate / most) * (height - 6);
  pen.strokeStyle = style.getPropertyValue("--cell-empty");
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(0, height - 1.5);
  pen.lineTo(width, height - 1.5);
  pen.stroke();
  if (rates.length < 2) return;
  pen.beginPath();
  rates.forEach((rate, i) => pen.lineTo(x(i), y(rate)));
  pen.strokeStyle = style.getPropertyValue("--cell");
  pen.lineWidth = 1.75;
  pen.lineJoin = "round";
  pen.stroke();
  pen.lineTo(width, height);
  pen.lineTo(x(0), height);
  pen.globalAlpha = 0.14;
  pen.fillStyle = pen.strokeStyle;
  pen.fill();
  pen.globalAlpha = 1;
}

function fitted(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  return pen;
}

function rounded(pen, x, y, width, height) {
  pen.beginPath();
  pen.roundRect(x, y, width, height, Math.min(2, height / 2));
  pen.fill();
}

function figures(list, values) {
  const names = Object.keys(values);
  if (list.dataset.names !== names.join()) {
    list.dataset.names = names.join();
    list.replaceChildren(
      ...names.map((name) => {
        const row = make("div");
        row.append(make("dt", "", name), make("dd"));
        return row;
      }),
    );
  }
  names.forEach((name, i) => {
    list.children[i].lastChild.textContent = values[name];
  });
}

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${n < 10 && unit ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}
