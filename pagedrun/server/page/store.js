// Conversations and settings, in the browser's storage.
//
// A conversation: {id, title, named, updated, messages: [{role, content, reasoning, note, error, stats}]}

const PREFIX = "pagedrun.chat.";
const SETTINGS = "pagedrun.settings";

export function all() {
  const found = [];
  for (let i = 0; i < localStorage.length; i++) {
    const name = localStorage.key(i);
    if (name.startsWith(PREFIX)) {
      const one = read(name);
      if (one && Array.isArray(one.messages)) found.push(one);
    }
  }
  return found.sort((a, b) => b.updated - a.updated);
}

export function create() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return { id: `${Date.now().toString(36)}${random[0].toString(36)}`, title: "New chat", named: false, updated: Date.now(), messages: [] };
}

/** Whether there was room. */
export function save(conversation) {
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function load(id) {
  return read(PREFIX + id);
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

export const isChat = (name) => name === null || name.startsWith(PREFIX);

export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 48 ? `${line.slice(0, 47).trimEnd()}…` : line || "New chat";
}

export const settings = {
  get: () => read(SETTINGS) || {},
  set(values) {
    try {
      localStorage.setItem(SETTINGS, JSON.stringify(values));
    } catch {
      // no room: they last until the page is closed
    }
  },
};

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}
