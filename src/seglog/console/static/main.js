// The page: what the console was started with, the views, and the address that names what is shown.

import { get } from "./api.js";
import { diskView, problem } from "./disk.js";
import { append, h, replace, toast } from "./dom.js";
import { liveView } from "./live.js";
import { recordsView } from "./records.js";

const VIEWS = {
  disk: { name: "Disk", needs: "disk", make: diskView },
  live: { name: "Live", needs: "brokers", make: liveView },
  records: { name: "Records", needs: "", make: recordsView },
};
const view = document.getElementById("view");
const nav = document.getElementById("nav");
let about = null;
let current = null;
let kept = "";
const context = {
  kept: {},
  get about() { return about; },
  link: (name, values = {}) => `#/${name}?${query(values)}`,
  go: (name, values = {}) => { location.hash = context.link(name, values); },
  // Name in the address what is shown now, without showing it again.
  keep: (name, values) => {
    kept = context.link(name, values);
    history.replaceState(null, "", kept);
  },
  fail: (error) => replace(view, problem(error)),
  toast,
};

function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined && value !== null) found.set(name, String(value));
  return found;
}

function available(name) {
  const needs = VIEWS[name].needs;
  return needs === "" || (needs === "disk" ? about.directories.length > 0 : about.bootstrap !== null);
}

function show() {
  const [, name_, text] = /^#\/(\w*)\??(.*)$/.exec(location.hash) ?? [null, "", ""];
  const names = Object.keys(VIEWS).filter(available);
  const name = names.includes(name_) ? name_ : names[0];
  current?.close();
  replace(nav, names.map((one) => h("a", { href: `#/${one}`, "aria-current": one === name ? "page" : null }, VIEWS[one].name)));
  document.title = `${VIEWS[name].name} · seglog console`;
  current = VIEWS[name].make(context, new URLSearchParams(text));
  replace(view, current.element);
}

addEventListener("hashchange", () => {
  if (location.hash === kept) return;
  kept = "";
  show();
});

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest?.("input, textarea, select")) return;
  const search = view.querySelector("input[type=search]");
  if (search) {
    search.focus();
    event.preventDefault();
  }
});

try {
  about = await get("about");
  const where = [...about.directories.slice(0, 3), ...(about.directories.length > 3 ? [`and ${about.directories.length - 3} more`] : [])];
  if (about.bootstrap) where.push(about.bootstrap);
  append(document.getElementById("where"), where.map((one) => h("span", { title: one }, h("bdi", {}, one))));
  if (about.writes) append(document.getElementById("where"), [h("span", { class: "writes" }, "may write")]);
  show();
} catch (error) {
  context.fail(error);
}
