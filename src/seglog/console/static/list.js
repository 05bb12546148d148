// A list of any length: only the rows in sight are elements, and pages of rows come from the API as they are needed.

import { h, replace } from "./dom.js";

const PAGE = 100;

export class List {
  // load(first, count) returns {total, rows}; row(item) returns the children of a row; open(item) when one is chosen.
  constructor({ label, height, load, row, open, same }) {
    Object.assign(this, { height, load, row, open, same });
    this.pages = new Map();
    this.total = 0;
    this.active = 0;
    this.chosen = null;
    this.generation = 0;
    this.space = h("div", { class: "list-space", role: "presentation" });
    this.element = h(
      "div",
      {
        class: "list", role: "listbox", tabindex: "0", "aria-label": label,
        onscroll: () => this.draw(), onkeydown: (event) => this.key(event),
      },
      this.space,
    );
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  async refresh(keepPlace = false) {
    const generation = ++this.generation;
    if (!keepPlace) {
      this.element.scrollTop = 0;
      this.active = 0;
    }
    const first = Math.floor(this.element.scrollTop / this.height / PAGE) * PAGE;
    const found = await this.load(first, PAGE);
    if (generation !== this.generation) return;
    this.pages.clear();
    this.put(first, found);
  }

  put(first, found) {
    this.pages.set(first / PAGE, found.rows);
    this.total = found.total;
    this.space.style.height = `${this.total * this.height}px`;
    this.draw();
  }

  item(at) {
    return this.pages.get(Math.floor(at / PAGE))?.[at % PAGE];
  }

  async fetchPage(page) {
    if (this.pages.has(page)) return;
    this.pages.set(page, []);
    const generation = this.generation;
    try {
      const found = await this.load(page * PAGE, PAGE);
      if (generation === this.generation) this.put(page * PAGE, found);
    } catch {
      this.pages.delete(page);
    }
  }

  draw() {
    const first = Math.max(Math.floor(this.element.scrollTop / this.height) - 3, 0);
    const last = Math.min(Math.ceil((this.element.scrollTop + this.element.clientHeight) / this.height) + 3, this.total);
    const rows = [];
    for (let at = first; at < last; at++) {
      const item = this.item(at);
      if (item === undefined) {
        this.fetchPage(Math.floor(at / PAGE));
        continue;
      }
      const isChosen = this.chosen !== null && this.same(item, this.chosen);
      const row = h(
        "div",
        {
          class: `row${isChosen ? " chosen" : ""}${at === this.active ? " active" : ""}`,
          role: "option", id: `row-${at}`, "aria-selected": String(isChosen),
          "aria-setsize": this.total, "aria-posinset": at + 1, onclick: () => this.choose(at),
        },
        this.row(item),
      );
      row.style.top = `${at * this.height}px`;
      row.style.height = `${this.height}px`;
      rows.push(row);
    }
    replace(this.space, rows);
    if (this.item(this.active) && first <= this.active && this.active < last) {
      this.element.setAttribute("aria-activedescendant", `row-${this.active}`);
    } else {
      this.element.removeAttribute("aria-activedescendant");
    }
  }

  choose(at) {
    const item = this.item(at);
    if (item === undefined) return;
    this.active = at;
    this.chosen = item;
    this.draw();
    this.open(item);
  }

  key(event) {
    const page = Math.max(Math.floor(this.element.clientHeight / this.height) - 1, 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.total, End: this.total };
    if (event.key === "Enter" || event.key === " ") this.choose(this.active);
    else if (event.key in moves) {
      this.active = Math.min(Math.max(this.active + moves[event.key], 0), Math.max(this.total - 1, 0));
      const top = this.active * this.height;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      const bottom = top + this.height - this.element.clientHeight;
      if (bottom > this.element.scrollTop) this.element.scrollTop = bottom;
      this.draw();
    } else return;
    event.preventDefault();
  }
}
