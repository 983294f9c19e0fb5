// Markdown as models write it, into DOM nodes. Text is only ever text: nothing here takes HTML.

const FENCE = /^(\s{0,3})(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*)$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const SEPARATOR = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 8;

/** Show `text` in `box`. Blocks that are as they were stay, so that a selection survives while text comes. */
export function show(box, text, codeTools = () => null) {
  const blocks = split(text);
  blocks.forEach((block, i) => {
    const there = box.childNodes[i];
    if (there && there.source === block.source) return;
    const node = render(block, codeTools, 0);
    node.source = block.source;
    if (there) box.replaceChild(node, there);
    else box.append(node);
  });
  while (box.childNodes.length > blocks.length) box.lastChild.remove();
}

/** Blocks: {kind, source, ...}. A fence that is open at the end is code already. */
function split(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const begin = at;
    const line = lines[at];
    let block;
    let found;
    if (!line.trim()) {
      at++;
      continue;
    }
    if ((found = FENCE.exec(line))) {
      const [, indent, mark, language] = found;
      const code = [];
      at++;
      while (at < lines.length && !closes(lines[at], mark)) code.push(unindented(lines[at++], indent.length));
      at++;
      block = { kind: "code", language, text: code.join("\n") };
    } else if ((found = HEADING.exec(line))) {
      at++;
      block = { kind: "heading", level: found[1].length, text: found[2].trimEnd().replace(/(^|\s)#+$/, "").trimEnd() };
    } else if (RULE.test(line)) {
      at++;
      block = { kind: "rule" };
    } else if (QUOTE.test(line)) {
      const inner = [];
      while (at < lines.length && (found = QUOTE.exec(lines[at]))) {
        inner.push(found[1]);
        at++;
      }
      block = { kind: "quote", text: inner.join("\n") };
    } else if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && SEPARATOR.test(lines[at + 1])) {
      const rows = [cells(line)];
      const sides = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
      at += 2;
      while (at < lines.length && lines[at].includes("|")) rows.push(cells(lines[at++]));
      block = { kind: "table", rows, sides };
    } else if (ITEM.test(line)) {
      at = listEnd(lines, at);
      block = { kind: "list", lines: lines.slice(begin, at) };
    } else {
      const inner = [];
      while (at < lines.length && lines[at].trim() && (at === begin || !begins(lines[at]))) inner.push(lines[at++]);
      block = { kind: "text", text: inner.join("\n") };
    }
    block.source = lines.slice(begin, at).join("\n");
    blocks.push(block);
  }
  return blocks;
}

const begins = (line) => FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || RULE.test(line);

function closes(line, mark) {
  const found = /^\s*(`{3,}|~{3,})\s*$/.exec(line);
  return found && found[1][0] === mark[0] && found[1].length >= mark.length;
}

function unindented(line, n) {
  let cut = 0;
  while (cut < n && line[cut] === " ") cut++;
  return line.slice(cut);
}

/** What is between the bars of a row that neither code nor a backslash protects. */
function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  const found = [""];
  for (const [part] of inner.matchAll(/\\\||`[^`]*`|[\s\S]/g)) {
    if (part === "|") found.push("");
    else found[found.length - 1] += part.replaceAll("\\|", "|");
  }
  return found.map((cell) => cell.trim());
}

/** Where a list that begins at `at` ends: at an empty line that nothing of it follows, or at a line that is not its. */
function listEnd(lines, at) {
  const first = ITEM.exec(lines[at])[1].length;
  let fence = "";
  for (at++; at < lines.length; at++) {
    const line = lines[at];
    if (fence) {
      if (closes(line, fence)) fence = "";
      continue;
    }
    const next = lines.slice(at).find((l) => l.trim());
    const indented = (l) => l.length - l.trimStart().length > first;
    if (!line.trim()) {
      if (next === undefined || !(ITEM.test(next) || indented(next))) return at;
    } else if (FENCE.test(line.trim()) && indented(line)) {
      fence = FENCE.exec(line.trim())[2];
    } else if (!ITEM.test(line) && !indented(line) && (!lines[at - 1].trim() || begins(line))) {
      return at;
    }
  }
  return at;
}

function render(block, codeTools, depth) {
  switch (block.kind) {
    case "code":
      return code(block, codeTools);
    case "heading":
      return inlineInto(make(`h${Math.min(block.level + 2, 6)}`), block.text);
    case "rule":
      return make("hr");
    case "quote":
      return nested(make("blockquote"), block.text, codeTools, depth);
    case "table":
      return table(block.rows, block.sides);
    case "list":
      return list(block.lines, codeTools, depth);
    default:
      return inlineInto(make("p"), block.text);
  }
}

function nested(box, text, codeTools, depth) {
  if (depth >= DEEPEST) return inlineInto(box, text);
  for (const block of split(text)) box.append(render(block, codeTools, depth + 1));
  return box;
}

function code(block, codeTools) {
  const box = make("div", "code");
  const head = make("div", "code-head");
  const tools = codeTools(block.text);
  head.append(make("span", "", block.language || "text"), ...(tools ? [tools] : []));
  const pre = make("pre");
  pre.tabIndex = 0; // it scrolls
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", `Code: ${block.language || "text"}`);
  pre.append(make("code", "", block.text));
  box.append(head, pre);
  return box;
}

function table(rows, sides) {
  const box = make("div", "table");
  const whole = make("table");
  rows.forEach((row, i) => {
    const line = make("tr");
    row.forEach((cell, column) => line.append(inlineInto(make(i ? "td" : "th", sides[column]), cell)));
    whole.append(line);
  });
  box.append(whole);
  return box;
}

function list(lines, codeTools, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const box = make(ordered ? "ol" : "ul");
  if (ordered && parseInt(first[2], 10) !== 1) box.start = parseInt(first[2], 10);
  let inner = [];
  let pad = 0;
  const end = () => {
    if (!inner.length) return;
    const item = make("li");
    const text = inner.join("\n");
    if (/\n/.test(text)) {
      nested(item, text, codeTools, depth);
      const only = item.firstChild;
      if (only && only.tagName === "P" && !/\n\s*\n/.test(text)) only.replaceWith(...only.childNodes); // a tight list
    } else inlineInto(item, text);
    box.append(item);
    inner = [];
  };
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= first[1].length + 1) {
      end();
      pad = line.length - found[3].length;
      inner.push(found[3]);
    } else inner.push(unindented(line, pad));
  }
  end();
  return box;
}

const INLINE = [
  [/^(`+)(?!`)([\s\S]*?[^`])\1(?!`)/, (m) => make("code", "", m[2].replace(/^ (.*) $/, "$1"))],
  [/^\\\([\s\S]+?\\\)|^\\\[[\s\S]+?\\\]|^\$\$[\s\S]+?\$\$|^\$(?=[^\s$])[^$\n]*[^\s$]\$(?!\w)/, (m) => make("span", "math", m[0])],
  [/^<br ?\/?>/i, () => make("br")],
  [/^\*\*\*(?=[^\s*])([\s\S]*?[^\s*])\*\*\*(?!\*)/, (m, d) => wrapped("em", inlineInto(make("strong"), m[1], d + 1))],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)/, (m, d) => inlineInto(make("strong"), m[1], d + 1)],
  [/^__(?=\S)([\s\S]*?\S)__(?!\w)/, (m, d) => inlineInto(make("strong"), m[1], d + 1)],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m, d) => inlineInto(make("del"), m[1], d + 1)],
  [/^\*(?=[^\s*])([\s\S]*?[^\s*])\*(?!\*)/, (m, d) => inlineInto(make("em"), m[1], d + 1)],
  [/^_(?=[^\s_])([^_]*?[^\s_])_(?!\w)/, (m, d) => inlineInto(make("em"), m[1], d + 1)],
  [/^!?\[([^\]\n]{1,500})\]\(\s*<?((?:[^\s<>()]|\([^\s<>()]*\)){1,2000})>?(?:\s+"[^"\n]*")?\s*\)/, (m, d) => link(m[2], m[1], d)],
  [/^<(https?:\/\/[^\s<>]{1,2000})>/, (m) => link(m[1], m[1], DEEPEST)],
  [/^https?:\/\/(?:[^\s<>"'`*\]()]|\([^\s<>"'`*\]()]*\)){0,2000}(?:[^\s<>"'`*\]().,:;!?]|\([^\s<>"'`*\]()]*\))/, (m) => link(m[0], m[0], DEEPEST)],
];
const LONGEST = 4000; // characters in which a mark is looked for

function inlineInto(box, text, depth = 0) {
  let plain = "";
  const flush = () => {
    if (plain) box.append(plain);
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const char = text[at];
    if (char === "\n") {
      plain = plain.replace(/ +$|\\$/, "");
      flush();
      box.append(make("br"));
      at++;
      continue;
    }
    const inWord = (char === "_" || char === "h") && /[A-Za-z0-9]/.test(text[at - 1] || "");
    if (depth < DEEPEST && !inWord && "`*_~[!<h$\\".includes(char)) {
      const rest = text.slice(at, at + LONGEST);
      let found = null;
      for (const [pattern, made] of INLINE) {
        if ((found = pattern.exec(rest))) {
          flush();
          box.append(made(found, depth));
          at += found[0].length;
          break;
        }
      }
      if (found) continue;
      if (char === "`") {
        const [run] = /^`+/.exec(rest); // that nothing closes is text, all of it
        plain += run;
        at += run.length;
        continue;
      }
    }
    if (char === "\\" && /[\\`*_{}[\]()#+\-.!|<>~$]/.test(text[at + 1] || "")) at++;
    plain += text[at];
    at++;
  }
  flush();
  return box;
}

function wrapped(tag, inner) {
  const box = make(tag);
  box.append(inner);
  return box;
}

/** Only to where a click is harmless; else the text alone. Pictures are links: the page loads nothing from elsewhere. */
function link(address, text, depth) {
  const box = make(/^(https?:\/\/|mailto:)/i.test(address) ? "a" : "span");
  if (box.tagName === "A") {
    box.href = address;
    box.target = "_blank";
    box.rel = "noopener noreferrer";
  }
  return inlineInto(box, text, depth + 1);
}

export function make(tag, className = "", text = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== null) node.textContent = text;
  return node;
}
