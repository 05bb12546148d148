// Records: browse, tail and filter; one record whole, with the commands for it; produce one if the console may write.

import { get, post } from "./api.js";
import { partitionList, partitionName, problem } from "./disk.js";
import { bytesText, copy, h, number, plural, replace, size, time, toast, visible } from "./dom.js";
import { List } from "./list.js";

const COUNT = 50;
const TAIL = 1000;
const SHOWN = 300;

export function recordsView(context, parameters) {
  const content = h("div", { class: "content" });
  const chosen = parameters.get("topic") === null ? null : { topic: parameters.get("topic"), partition: Number(parameters.get("partition")) };
  const open = (one) => context.go("records", { topic: one.topic, partition: one.partition });
  const side = context.about.directories.length ? partitionList(context, { open, chosen }) : brokerList(context, { open, chosen });
  const shown = chosen ? new Records(context, content, parameters) : null;
  if (!chosen) replace(content, h("p", { class: "note ready" }, "Choose a partition."));
  return { element: h("div", { class: "split" }, side.element, content), close: () => { side.close(); shown?.close(); } };
}

function brokerList(context, { open, chosen }) {
  let text = "";
  const total = h("p", { class: "total" });
  const list = new List({
    label: "Partitions", height: 46,
    load: async (first, count) => {
      const found = await get("cluster", { filter: text, first, count });
      total.textContent = plural(found.total, "partition");
      return { total: found.total, rows: found.partitions };
    },
    row: (one) => [partitionName(one), h("small", {}, one.leader === null ? "no leader" : `leader ${one.leader}`)],
    same: (a, b) => a.topic === b.topic && a.partition === b.partition,
    open,
  });
  const filter = h("input", { type: "search", placeholder: "Filter partitions", "aria-label": "Filter partitions", oninput: () => { text = filter.value; list.refresh().catch(context.fail); } });
  list.chosen = chosen;
  list.refresh().then(() => { if (!list.chosen && list.item(0)) list.choose(0); }).catch(context.fail);
  return { element: h("aside", { class: "side" }, filter, list.element, total), close: () => list.close() };
}

class Records {
  constructor(context, place, parameters) {
    Object.assign(this, { context, place });
    this.at = { topic: parameters.get("topic"), partition: Number(parameters.get("partition")) };
    this.offset = parameters.get("offset");
    this.timer = 0;
    this.closed = false;
    this.turn = 0;
    this.draw();
    this.load(this.offset);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  draw() {
    const { about } = this.context;
    const field = (name, label, hint, width) => h("label", { class: "field" }, h("span", {}, label), h("input", { name, placeholder: hint, size: width, autocomplete: "off" }));
    const choice = (name, label, options) => h("label", { class: "field" }, h("span", {}, label), h("select", { name }, options.map(([value, text]) => h("option", { value }, text))));
    const both = about.directories.length && about.bootstrap;
    this.form = h(
      "form", { class: "filters", onsubmit: (event) => { event.preventDefault(); this.stop(); this.load(this.form.elements.offset.value.trim() || null); } },
      field("offset", "from offset", "newest", 9),
      field("key", "key has", "", 10), field("value", "value has", "", 12), field("header", "header", "name=text", 11),
      field("path", "JSON path", "a.b.0=7", 12), field("since", "since", "-1h", 9), field("until", "until", "", 9),
      both ? choice("from", "read from", [["disk", "the disk"], ["brokers", "brokers"]]) : null,
      about.bootstrap ? choice("isolation", "isolation", [["read_uncommitted", "read_uncommitted"], ["read_committed", "read_committed"]]) : null,
      h("button", { type: "submit", class: "primary" }, "Read"),
    );
    if (this.offset !== null) this.form.elements.offset.value = this.offset;
    this.tail = h("button", { type: "button", "aria-pressed": "false", onclick: () => (this.timer ? this.stop() : this.start()) }, "Tail");
    this.rows = h("tbody", {});
    this.state = h("p", { class: "says ready", role: "status" });
    this.more = h("div", { class: "pager" });
    replace(
      this.place,
      h("div", { class: "title" }, h("h1", {}, h("bdi", {}, this.at.topic), h("i", {}, `-${this.at.partition}`)),
        h("span", { class: "actions" }, this.tail,
          about.directories.length ? h("a", { class: "button", href: this.context.link("disk", this.at) }, "On the disk") : null)),
      about.writes ? this.producer() : null,
      h("section", { class: "panel", "aria-label": "Records" }, this.form,
        h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table of records" },
          h("table", { class: "records" },
            h("thead", {}, h("tr", {}, ["offset", "time", "key", "value", "headers"].map((name) => h("th", { scope: "col" }, name)))), this.rows)),
        this.state, this.more),
    );
  }

  values() {
    const found = { ...this.at };
    for (const one of this.form.elements) if (one.name && one.name !== "offset" && one.value.trim()) found[one.name] = one.value.trim();
    return found;
  }

  async load(offset, add = false) {
    const turn = ++this.turn;
    if (!add) replace(this.state, "Reading …");
    let found;
    try {
      found = await get("records", { ...this.values(), offset, count: COUNT });
    } catch (error) {
      if (turn === this.turn && !this.closed) {
        this.stop();
        replace(this.state, problem(error));
      }
      return;
    }
    if (turn !== this.turn || this.closed) return;
    if (!add) replace(this.rows);
    for (const one of found.records) this.rows.append(this.row(one, found.from));
    while (add && this.rows.children.length > 500) this.rows.firstChild.remove();
    replace(this.state, `${plural(this.rows.children.length, "record")} of offsets ${number(found.start)} to ${number(found.end - 1)}`,
      found.scanned > found.records.length ? `, ${number(found.scanned)} read` : "", found.damage ? h("b", { class: "warn" }, ` ${found.damage}`) : null);
    const first = found.records[0]?.offset ?? Number(offset ?? found.end);
    replace(this.more,
      first > found.start && !add ? h("button", { type: "button", onclick: () => this.load(Math.max(first - COUNT, found.start)) }, "Earlier") : null,
      found.next === null ? null : h("button", { type: "button", onclick: () => this.load(found.next) }, "Later"),
      Object.entries(found.commands).map(([name, text]) => h("button", { type: "button", title: text, onclick: () => copy(text) }, `Copy ${name}`)));
    this.following = found.next ?? found.end;
  }

  start() {
    this.tail.setAttribute("aria-pressed", "true");
    const turn = async () => {
      const before = this.following;
      await this.load(before ?? null, before !== undefined);
      if (this.timer) this.timer = setTimeout(turn, TAIL);
    };
    this.timer = setTimeout(turn, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.tail.setAttribute("aria-pressed", "false");
  }

  row(one, source) {
    const value = bytesText(one.value);
    const row = h(
      "tr", { class: `${one.isControl ? "control " : ""}${one.value === null ? "tombstone" : ""}` },
      h("td", { class: "num" }, h("button", { type: "button", class: "plain", "aria-expanded": "false", onclick: (event) => this.expand(row, one, source, event.currentTarget) }, number(one.offset))),
      h("td", { class: "num" }, time(one.timestamp)),
      h("td", { class: "code" }, one.key === null ? h("i", {}, "null") : bytesText(one.key).slice(0, 60)),
      h("td", { class: "code value" }, one.isControl ? h("i", {}, "transaction marker") : one.value === null ? h("i", {}, "null: a tombstone") : value.slice(0, SHOWN),
        one.valueSize > SHOWN ? h("small", {}, ` ${size(one.valueSize)}`) : null),
      h("td", { class: "num" }, one.headers.length || ""),
    );
    return row;
  }

  async expand(row, one, source, button) {
    if (row.nextSibling?.classList.contains("detail")) {
      row.nextSibling.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    button.setAttribute("aria-expanded", "true");
    const cell = h("td", { colspan: 5 }, "Reading …");
    row.after(h("tr", { class: "detail" }, cell));
    try {
      const found = await get("records", { ...this.at, from: source, offset: one.offset, count: 1 });
      const whole = found.records.find((record) => record.offset === one.offset) ?? one;
      const parts = [
        h("dl", { class: "about" }, [["size", `${size(Math.max(whole.valueSize, 0))}, key ${size(Math.max(whole.keySize, 0))}`], ["leader epoch", whole.leaderEpoch],
          ["producer", whole.producerId ?? "–"], ["transactional", whole.isTransactional === undefined ? "–" : String(whole.isTransactional)]]
          .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
        h("h2", {}, "Key"), h("pre", { tabindex: "0" }, bytesText(whole.key)),
        h("h2", {}, "Value"), h("pre", { tabindex: "0" }, pretty(bytesText(whole.value))),
        whole.headers.length ? [h("h2", {}, "Headers"), h("pre", { tabindex: "0" }, whole.headers.map(([name, value]) => `${visible(name)}: ${bytesText(value)}\n`))] : null,
        h("p", { class: "pager" },
          Object.entries(found.commands).map(([name, text]) => h("button", { type: "button", title: text, onclick: () => copy(text) }, `Copy ${name}`)),
          this.context.about.directories.length ? h("a", { class: "button", href: this.context.link("disk", { ...this.at, offset: one.offset }) }, "Look it up on the disk") : null),
      ];
      replace(cell, parts);
    } catch (error) {
      replace(cell, problem(error));
    }
  }

  producer() {
    const key = h("input", { name: "key", autocomplete: "off" });
    const value = h("textarea", { name: "value", rows: 2, cols: 40 });
    const tombstone = h("input", { type: "checkbox", name: "tombstone" });
    const here = h("input", { type: "checkbox", name: "here", checked: true });
    const send = async (event) => {
      event.preventDefault();
      try {
        const given = { topic: this.at.topic, partition: here.checked ? this.at.partition : null, key: key.value || null, value: tombstone.checked ? null : value.value };
        const sent = await post("produce", given);
        toast(sent.partitions.map((one) => `Sent: ${sent.topic}-${one.partition}, offset ${number(one.lastOffset)}`).join());
      } catch (error) {
        toast(error.message);
      }
    };
    return h("details", { class: "panel" }, h("summary", {}, "Produce a record"),
      h("form", { class: "filters produce", onsubmit: send },
        h("label", { class: "field" }, h("span", {}, "key"), key), h("label", { class: "field" }, h("span", {}, "value"), value),
        h("label", { class: "check" }, tombstone, "null: a tombstone"), h("label", { class: "check" }, here, `to partition ${this.at.partition}`),
        h("button", { type: "submit", class: "primary" }, "Send")));
  }
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
