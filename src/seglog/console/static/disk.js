// The disk, drawn: partitions at the left; a log to scale, one of its segments, and look-ups with their bytes.

import { ApiError, get } from "./api.js";
import { duration, h, number, plural, replace, size } from "./dom.js";
import { showHex } from "./hex.js";
import { List } from "./list.js";
import { logStrip, retentionText } from "./log-strip.js";
import { lookUpPlayer } from "./look-up.js";
import { batchText, goneShare, segmentStrip } from "./segment-strip.js";

const ENTRIES = 48;
const BATCHES = 400;
const SHOWN_BYTES = 256;
const REFRESH = 3000;

export const partitionName = (one) => h("b", { class: "name" }, h("span", {}, one.topic), h("i", {}, `-${one.partition}`));

export function partitionList(context, { open, chosen }) {
  let text = "";
  const list = new List({
    label: "Partitions", height: 46,
    load: async (first, count) => {
      const found = await get("partitions", { filter: text, first, count });
      total.textContent = plural(found.total, "partition");
      return { total: found.total, rows: found.partitions };
    },
    row: (one) => {
      const replica = one.replicas[0];
      return [
        partitionName(one),
        h("small", {}, `${size(replica.size)} · ${plural(replica.segments, "segment")}`
          + (one.replicas.length > 1 ? ` · ${one.replicas.length} replicas` : "")),
      ];
    },
    same: (a, b) => a.topic === b.topic && a.partition === b.partition,
    open,
  });
  const total = h("p", { class: "total" });
  const filter = h("input", {
    type: "search", placeholder: "Filter partitions", "aria-label": "Filter partitions", autocomplete: "off",
    oninput: () => { text = filter.value; list.refresh().catch(context.fail); },
    onkeydown: (event) => { if (event.key === "ArrowDown") { list.element.focus(); event.preventDefault(); } },
  });
  list.chosen = chosen;
  const ready = list.refresh().then(() => {
    if (!list.chosen && list.item(0)) list.choose(0);
  }).catch(context.fail);
  return { element: h("aside", { class: "side" }, filter, list.element, total), close: () => list.close(), ready, list };
}

export function diskView(context, parameters) {
  const content = h("div", { class: "content" });
  let shown = null;
  const chosen = parameters.get("topic") === null ? null : { topic: parameters.get("topic"), partition: Number(parameters.get("partition")) };
  const side = partitionList(context, { open: (one) => context.go("disk", { topic: one.topic, partition: one.partition }), chosen });
  if (chosen) show();
  else replace(content, h("p", { class: "note" }, "Choose a partition."));

  async function show() {
    shown = new PartitionView(context, content, parameters);
    await shown.open();
  }

  return { element: h("div", { class: "split" }, side.element, content), close: () => { side.close(); shown?.close(); } };
}

class PartitionView {
  constructor(context, place, parameters) {
    Object.assign(this, { context, place });
    this.at = { topic: parameters.get("topic"), partition: Number(parameters.get("partition")), root: parameters.get("root") };
    this.wanted = { offset: parameters.get("offset"), time: parameters.get("time") };
    this.kind = context.kept.kind ?? "offset";
    this.closed = false;
    this.closers = [];
    this.timer = 0;
    this.turn = 0;
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    for (const close of this.closers) close();
    this.player?.close();
  }

  async open() {
    try {
      this.log = await get("partition", this.at);
    } catch (error) {
      if (!this.closed) replace(this.place, problem(error));
      return;
    }
    if (this.closed) return;
    this.draw();
    if (this.log.inUse) this.timer = setInterval(() => this.refresh(), REFRESH);
    if (!this.log.segments.length || this.log.end <= this.log.start) return;
    if (this.wanted.offset !== null) await this.lookUp({ offset: this.wanted.offset }, false);
    else if (this.wanted.time !== null) await this.lookUp({ time: this.wanted.time }, false);
    else await this.lookUp({ offset: this.first() }, false);
  }

  // An offset that shows much at first sight: in the middle of the segment with most index entries.
  first() {
    const { log } = this;
    const best = log.segments.reduce((a, b) => (b.indexEntries >= a.indexEntries ? b : a));
    const from = Math.max(best.baseOffset, log.start);
    return Math.min(Math.floor(from + (best.nextOffset - from) * 0.62), log.end - 1);
  }

  async refresh() {
    if (document.hidden) return;
    try {
      const log = await get("partition", this.at);
      if (this.closed || (log.end === this.log.end && log.size === this.log.size && log.start === this.log.start && log.highWatermark === this.log.highWatermark)) return;
      Object.assign(this.log, log);
      this.strip.set({});
      replace(this.facts, this.factRows());
    } catch {
      // the next refresh tells
    }
  }

  draw() {
    const { log } = this;
    this.strip = logStrip(log, {
      kind: this.kind, selected: null, lookUp: null,
      onSegment: (base) => this.lookUp({ offset: this.middle(base) }, false),
      onOffset: (offset) => this.lookUp({ offset }, true),
    });
    this.segment = segmentStrip({ onBatch: (batch) => this.showBatch(batch), onEntry: (of, slot) => this.showEntry(of, slot) });
    this.closers.push(this.strip.close, this.segment.close);
    this.hex = h("div", { class: "hex-place" });
    this.steps = h("div", { class: "steps-place" });
    this.segmentTitle = h("h2", {});
    this.window = h("div", { class: "window" });
    this.facts = h("dl", { class: "facts-row" }, this.factRows());
    const offset = h("input", { type: "text", inputmode: "numeric", pattern: "[0-9]*", "aria-label": "Offset to look up", placeholder: "offset", size: 9 });
    const moment = h("input", { type: "text", "aria-label": "Time to look up", placeholder: "time, or -1h", size: 14 });
    const form = h(
      "form", { class: "find", onsubmit: (event) => {
        event.preventDefault();
        if (offset.value.trim()) this.lookUp({ offset: offset.value.trim() }, true);
        else if (moment.value.trim()) this.lookUp({ time: moment.value.trim() }, true);
        else offset.focus();
      } },
      offset, h("span", {}, "or"), moment, h("button", { type: "submit", class: "primary" }, "Look up"),
    );
    offset.addEventListener("input", () => { moment.value = ""; });
    moment.addEventListener("input", () => { offset.value = ""; });
    this.offsetInput = offset;
    replace(
      this.place,
      h("div", { class: "title" },
        h("h1", {}, h("bdi", {}, log.topic), h("i", {}, `-${log.partition}`)),
        this.replicaChoice(),
        h("span", { class: "actions" },
          h("a", { class: "button", href: this.context.link("records", { topic: log.topic, partition: log.partition }) }, "Records"),
          h("button", { type: "button", onclick: (event) => this.verify(event.target) }, "Check every byte"))),
      this.facts,
      log.damage ? h("p", { class: "banner bad", role: "alert" }, h("b", {}, "Damage. "), log.damage, ` — seglog repair ${log.directory}/${log.topic}-${log.partition}`) : null,
      this.verdict = h("div", { "aria-live": "polite" }),
      h("section", { class: "panel", "aria-labelledby": "log-title" },
        h("div", { class: "panel-head" }, h("h2", { id: "log-title" }, "The log"), this.scales(), form),
        this.strip.element,
        h("p", { class: "says" }, this.retention())),
      h("section", { class: "panel", "aria-label": "Segment" },
        h("div", { class: "panel-head" }, this.segmentTitle, this.colours()),
        this.segment.element, this.window, this.legend = h("p", { class: "legend" })),
      h("div", { class: "two" },
        h("section", { class: "panel" }, h("h2", {}, "The look-up"), this.steps),
        h("section", { class: "panel", "aria-live": "off" }, h("h2", {}, "The bytes"), this.hex)),
    );
    if (!log.segments.length || log.end <= log.start) replace(this.steps, h("p", { class: "note" }, "The log is empty."));
  }

  factRows() {
    const { log } = this;
    const stable = log.lastStableOffset;
    const rows = [
      ["start", number(log.start), "the first offset that consumers can read"],
      ["LSO", number(stable), "last stable offset: read_committed consumers read up to here"],
      ["high watermark", number(log.highWatermark), log.highWatermarkFrom ? `from ${log.highWatermarkFrom}` : "no file has it"],
      ["end", number(log.end), "log end offset (LEO): the next record's"],
      ["recovery point", number(log.recoveryPoint), "everything below is on the disk; recovery begins here"],
      ["size", size(log.size), plural(log.segments.length, "segment")],
      ["epochs", number(log.epochs.length), log.epochs.length ? `newest ${log.epochs.at(-1).epoch}` : ""],
      ["aborted", number(log.aborted.length), "aborted transactions"],
    ];
    return rows.map(([name, value, note]) => h("div", { title: note }, h("dt", {}, name), h("dd", {}, value)));
  }

  replicaChoice() {
    const { log } = this;
    if (log.replicas.length < 2) return h("span", { class: "path" }, log.directory);
    return h("select", {
      "aria-label": "Replica", onchange: (event) => this.context.go("disk", { topic: log.topic, partition: log.partition, root: event.target.value }),
    }, log.replicas.map((one) => h("option", { value: one.root, selected: one.root === log.root },
      `${one.broker === null ? "" : `broker ${one.broker} · `}${one.directory}`)));
  }

  scales() {
    return this.choice("Scale", [["offset", "offsets"], ["time", "time"], ["bytes", "bytes"]], this.kind, (kind) => {
      this.kind = this.context.kept.kind = kind;
      this.strip.set({ kind });
    });
  }

  colours() {
    return this.choice("Colour batches by", [["codec", "codec"], ["producer", "producer"], ["epoch", "epoch"]], this.segment.state.colour, (colour) => {
      this.segment.set({ colour });
      this.drawLegend();
    });
  }

  choice(label, options, chosen, choose) {
    const name = `choice-${label.replaceAll(" ", "-")}`;
    return h("fieldset", { class: "choice" }, h("legend", {}, label), options.map(([value, text]) => h(
      "label", {}, h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }), h("span", {}, text))));
  }

  retention() {
    const { log } = this;
    const { retention } = log;
    if (retention.source === "none") return "This directory does not have the topic's configuration, so it cannot tell what retention takes: add -b HOST:PORT.";
    const parts = [];
    if (retention.policy.includes("delete")) {
      const first = retention.segments[0];
      const bounds = [
        retention.retentionMs >= 0 ? `retention.ms = ${duration(retention.retentionMs)}` : "no limit of time",
        retention.retentionBytes >= 0 ? `retention.bytes = ${size(retention.retentionBytes)}` : "no limit of size",
      ].join(", ");
      const text = first ? retentionText(log, first) : "";
      parts.push(text ? `Retention (${bounds}): the oldest segment ${text}.` : `Retention keeps everything (${bounds}).`);
    }
    if (retention.policy.includes("compact")) {
      parts.push(`Compaction keeps the newest value of each key${log.cleanerPoint === null ? "" : `; it has cleaned up to offset ${number(log.cleanerPoint)}`}.`);
    }
    return parts.join(" ");
  }

  middle(base) {
    const one = this.log.segments.find((segment) => segment.baseOffset === base);
    const from = Math.max(one.baseOffset, this.log.start);
    return Math.max(Math.min(Math.floor((from + one.nextOffset) / 2), this.log.end - 1), this.log.start);
  }

  // Look-ups

  async lookUp(wanted, play) {
    const turn = ++this.turn;
    this.player?.close();
    let found;
    try {
      found = await get("lookup", { ...this.at, root: this.log.root, ...wanted });
    } catch (error) {
      if (turn === this.turn) replace(this.steps, problem(error));
      return;
    }
    if (this.closed || turn !== this.turn) return;
    this.player = lookUpPlayer(found, { show: (steps, at, visit) => this.showStep(found, steps, at, visit) });
    replace(this.steps, this.player.element);
    if (found.found) {
      this.offsetInput.value = found.offset;
      this.offsetInput.dispatchEvent(new Event("input"));
      this.context.keep("disk", { topic: this.log.topic, partition: this.log.partition, root: this.log.root || null, offset: found.offset });
    }
    const last = this.player.steps.findLast((one) => one.step === "index") ?? this.player.steps.at(-1);
    if (last?.segment !== null && last) await this.loadSegment(last.segment, last.slot ?? 0);
    if (this.closed || turn !== this.turn) return;
    this.strip.set({ lookUp: found.found ? { offset: found.offset } : null, selected: last?.segment ?? null });
    if (play) this.player.start();
    else this.player.go(this.player.steps.length - 1);
  }

  async loadSegment(base, around, place = null) {
    if (!this.log.segments.some((one) => one.baseOffset === base)) return;
    const at = { ...this.at, root: this.log.root, base };
    const index = await get("index", { ...at, count: ENTRIES, around });
    const position = index.slots.length && index.slots[0] > 0 ? index.positions[0] : 0;
    const batches = await get("batches", { ...at, position: place ?? position, count: BATCHES });
    if (this.closed) return;
    this.base = base;
    this.segment.set({ index, batches, path: null, chosen: null });
    const one = this.log.segments.find((segment) => segment.baseOffset === base);
    replace(this.segmentTitle, `Segment ${one.file}`);
    this.drawWindow(index, batches, base);
    this.drawLegend();
  }

  drawWindow(index, batches, base) {
    const isWhole = index.entries <= ENTRIES && batches.next === null;
    const slider = h("input", {
      type: "range", min: 0, max: Math.max(index.entries - 1, 0), value: index.slots[Math.floor(index.slots.length / 2)] ?? 0,
      "aria-label": "Part of the segment that is shown", onchange: (event) => this.loadSegment(base, Number(event.target.value)),
    });
    replace(this.window, isWhole ? null : [
      h("span", {}, `${size(batches.batches[0]?.position ?? 0)} to ${size(batches.next ?? index.size)} of ${size(index.size)}`), slider]);
  }

  drawLegend() {
    const { batches, colour } = this.segment.state;
    if (!batches) return;
    const rows = batches.batches;
    const keys = new Map();
    for (const one of rows) {
      const name = colour === "codec" ? one.codec : colour === "epoch" ? `epoch ${one.partitionLeaderEpoch}` : one.producerId < 0 ? "no producer id" : `producer ${one.producerId}`;
      const kind = colour === "codec" ? `codec-${one.codec}` : colour === "epoch" ? `ink-${Math.max(one.partitionLeaderEpoch, 0) % 6}` : one.producerId < 0 ? "codec-none" : `ink-${one.producerId % 6}`;
      if (keys.size < 12) keys.set(name, kind);
    }
    const more = [];
    if (rows.some((one) => one.isControl)) more.push(["control", "marker of a transaction"]);
    if (rows.some((one) => one.isAborted)) more.push(["is-aborted", "aborted"]);
    if (rows.some((one) => one.tombstones)) more.push(["tombstones", "share of tombstones"]);
    if (rows.some((one) => goneShare(one) > 0)) more.push(["gone", "removed by compaction"]);
    if (rows.some((one) => one.hole)) more.push(["hole", "whole batches removed"]);
    replace(
      this.legend,
      [...keys].sort().map(([name, kind]) => h("span", {}, h("i", { class: `chip ${kind}`, "aria-hidden": "true" }), name)),
      more.map(([kind, name]) => h("span", {}, h("i", { class: `chip ${kind}`, "aria-hidden": "true" }), name)),
      h("span", { class: "mute" }, `${plural(rows.length, "batch", "es")}, ${number(rows.reduce((sum, one) => sum + Math.max(one.count ?? 1, 0), 0))} records`),
      batches.damage ? h("b", { class: "warn" }, batches.damage) : null,
    );
  }

  showStep(found, steps, at, visit) {
    const path = { visits: [], visited: 0, timeVisits: [], timeVisited: 0, scanned: [], scan: 0, slot: undefined, timeSlot: undefined };
    steps.slice(0, at + 1).forEach((one, order) => {
      const seen = order === at ? visit : Infinity;
      if (one.step === "timeindex") Object.assign(path, { timeVisits: one.visits ?? [], timeVisited: seen, timeSlot: one.slot, isTimeFound: seen >= (one.visits ?? []).length });
      if (one.step === "index") Object.assign(path, { visits: one.visits ?? [], visited: seen, slot: one.slot, isFound: seen >= (one.visits ?? []).length, scanned: [], scan: 0, isBatch: false });
      if (one.step === "scan") Object.assign(path, { scanned: one.visits ?? [], scan: seen });
      if (one.step === "batch") Object.assign(path, { position: one.position, isBatch: true });
    });
    const step = steps[at];
    this.segment.set({ path, chosen: null });
    this.strip.set({ selected: step.segment });
    if (visit === 0 || visit === Infinity) this.showStepBytes(found, steps, at);
  }

  async showStepBytes(found, steps, at) {
    const step = steps[at];
    const position = steps.slice(0, at + 1).findLast((one) => one.step === "batch")?.position;
    if (step.step === "index" || step.step === "timeindex") {
      if (step.slot !== null) await this.bytes({ base: step.segment, of: step.step, number: step.slot });
    } else if (step.step === "record" && step.number !== null) await this.bytes({ base: step.segment, of: "record", position, number: step.number });
    else if (step.step === "position" || step.step === "scan" || step.step === "batch") await this.bytes({ base: step.segment, of: "batch", position: step.position ?? 0 });
    else await this.bytes({ base: step.segment, of: "batch", position: 0 });
  }

  async bytes(wanted) {
    const turn = (this.bytesTurn = (this.bytesTurn ?? 0) + 1);
    try {
      const found = await get("bytes", { ...this.at, root: this.log.root, count: SHOWN_BYTES, ...wanted });
      if (!this.closed && turn === this.bytesTurn) showHex(this.hex, found);
    } catch (error) {
      if (!this.closed && turn === this.bytesTurn) replace(this.hex, problem(error));
    }
  }

  async showBatch(batch) {
    this.segment.set({ chosen: batch.position });
    await this.bytes({ base: this.base, of: "batch", position: batch.position });
    const first = batch.baseOffset ?? batch.lastOffset;
    this.hex.prepend(h("p", { class: "chosen-batch" }, batchText(batch), ". ",
      h("a", { href: this.context.link("records", { topic: this.log.topic, partition: this.log.partition, offset: first }) }, "Its records")));
  }

  showEntry(of, slot) {
    this.bytes({ base: this.base, of, number: slot });
  }

  async verify(button) {
    button.disabled = true;
    button.textContent = "Checking …";
    try {
      const found = await get("verify", { ...this.at, root: this.log.root });
      const damage = found.findings.filter((one) => one.severity === "damage");
      replace(this.verdict, h("p", { class: `banner ${damage.length ? "bad" : "good"}` },
        h("b", {}, damage.length ? `Damage in ${plural(damage.length, "place")}. ` : "No damage. "),
        `${size(found.bytes)}, ${plural(found.batches, "batch", "es")}, ${plural(found.records, "record")} checked.`,
        found.findings.slice(0, 50).map((one) => h("span", { class: "finding" }, `${one.severity}: ${one.file}${one.position === null ? "" : ` at byte ${number(one.position)}`}: ${one.reason}`)),
        damage.length ? h("span", { class: "finding" }, `What to do: seglog repair ${this.log.directory}/${this.log.topic}-${this.log.partition}`) : null));
    } catch (error) {
      replace(this.verdict, problem(error));
    }
    button.disabled = false;
    button.textContent = "Check every byte";
  }
}

export function problem(error) {
  const text = error instanceof ApiError ? error.message : `The console does not answer: ${error.message}`;
  return h("p", { class: "banner bad", role: "alert" }, text);
}

