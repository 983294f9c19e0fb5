// The browser's storage, or the page's own memory where the browser keeps nothing.

class Box {
  constructor(name) {
    this.memory = new Map();
    try {
      this.storage = window[name];
      if (!this.storage.length) this.storage.setItem("pagedrun.probe", "");
      this.storage.removeItem("pagedrun.probe");
    } catch {
      this.storage = null; // forbidden, as in some private windows
    }
  }

  get(name) {
    return this.storage ? this.storage.getItem(name) : (this.memory.get(name) ?? null);
  }

  /** Whether there was room. */
  set(name, text) {
    try {
      if (this.storage) this.storage.setItem(name, text);
      else this.memory.set(name, text);
      return true;
    } catch {
      return false;
    }
  }

  remove(name) {
    if (this.storage) this.storage.removeItem(name);
    else this.memory.delete(name);
  }

  names() {
    return this.storage ? Object.keys(this.storage) : [...this.memory.keys()];
  }

  /** Whether what is set outlives the page. */
  get lasts() {
    return this.storage !== null;
  }
}

export const local = new Box("localStorage");
export const session = new Box("sessionStorage");
