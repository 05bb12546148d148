// One segment as it lies on the disk: its offset index above, the log in the middle, its time index below. Each entry
// of an index is joined to the batch that it points to, so the gaps between entries are seen as they are.

import { h, number, onWidth, replace, s, size, time } from "./dom.js";

const SIDE = 12;
const INDEX_Y = 42;
const CELL = 22;
const LOG_Y = 134;
const LOG = 54;
const TIME_Y = 262;
const HEIGHT = TIME_Y + CELL + 38;

export function segmentStrip({ onBatch, onEntry }) {
  const place = h("div", { class: "strip segment-strip" });
  const state = { index: null, batches: null, colour: "codec", path: null, chosen: null };
  let width_ = 0;

  function draw(width) {
    width_ = width;
    const { index, batches } = state;
    if (!index || !batches) return;
    const rows = batches.batches;
    const low = rows.length ? rows[0].position : 0;
    const high = rows.length ? rows.at(-1).position + rows.at(-1).size : index.size;
    const inner = width - 2 * SIDE;
    const x = (position) => SIDE + ((position - low) / Math.max(high - low, 1)) * inner;
    const svg = s("svg", {
      class: `segment-picture${state.path ? " looking" : ""}`, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "group", "aria-label": "The segment's index, log and time index",
    });
    drawIndex(svg, index, x, inner, low, high);
    drawTimes(svg, index, rows, x, inner, low, high);
    drawLog(svg, rows, x);
    drawLabels(svg, index, low, high, width);
    replace(place, svg);
  }

  // The entries in sight, and the place of each cell.
  function cells(slots, keep, inner) {
    const shown = slots.map((slot, at) => ({ slot, at })).filter(({ at }) => keep(at));
    const wide = Math.min(inner / Math.max(shown.length, 1), 46);
    const left = SIDE + (inner - wide * shown.length) / 2;
    return { shown, wide, x: (order) => left + order * wide };
  }

  function drawIndex(svg, index, x, inner, low, high) {
    const { shown, wide, x: cellX } = cells(index.slots, (at) => index.positions[at] >= low && index.positions[at] < high, inner);
    const visited = state.path?.visits ?? [];
    const reached = visited.slice(0, state.path?.visited ?? 0);
    const lines = s("g", { class: "joins" });
    const row = s("g", { class: "entries" });
    shown.forEach(({ slot, at }, order) => {
      const from = cellX(order) + wide / 2;
      const to = x(index.positions[at]);
      const isFound = state.path?.slot === slot;
      const turn = reached.lastIndexOf(slot);
      const kind = `${isFound && state.path.isFound ? " found" : ""}${turn >= 0 ? " visited" : ""}`;
      lines.append(s("path", { class: `join${isFound && state.path.isFound ? " found" : ""}`, d: `M${from} ${INDEX_Y + CELL}C${from} ${LOG_Y - 26} ${to} ${LOG_Y - 44} ${to} ${LOG_Y}` }));
      const cell = s("g", { class: `entry${kind}`, onclick: () => onEntry("index", slot) },
        s("title", {}, `slot ${slot}: offset ${number(index.offsets[at])} → position ${number(index.positions[at])}`),
        s("rect", { x: cellX(order) + (wide > 5 ? 1 : 0), y: INDEX_Y, width: Math.max(wide - (wide > 5 ? 2 : 0.5), 1), height: CELL, rx: wide > 8 ? 3 : 0 }));
      if (wide > 34) cell.append(s("text", { x: from, y: INDEX_Y + 15, "text-anchor": "middle", class: "tiny" }, index.offsets[at]));
      if (turn >= 0) cell.append(s("text", { x: from, y: INDEX_Y - 6, "text-anchor": "middle", class: "turn" }, turn + 1));
      row.append(cell);
    });
    svg.append(lines, row);
  }

  function drawTimes(svg, index, rows, x, inner, low, high) {
    const place_ = (offset) => {
      const row = rows.find((one) => one.lastOffset >= offset);
      return row && (row.baseOffset ?? row.lastOffset) <= offset ? row.position : null;
    };
    const positions = index.timeOffsets.map(place_);
    const { shown, wide, x: cellX } = cells(index.timeSlots, (at) => positions[at] !== null && positions[at] >= low && positions[at] < high, inner);
    const reached = (state.path?.timeVisits ?? []).slice(0, state.path?.timeVisited ?? 0);
    const lines = s("g", { class: "joins" });
    const row = s("g", { class: "entries times" });
    shown.forEach(({ slot, at }, order) => {
      const from = cellX(order) + wide / 2;
      const to = x(positions[at]);
      const isFound = state.path?.timeSlot === slot && state.path.isTimeFound;
      const turn = reached.lastIndexOf(slot);
      lines.append(s("path", { class: `join${isFound ? " found" : ""}`, d: `M${to} ${LOG_Y + LOG}C${to} ${LOG_Y + LOG + 40} ${from} ${TIME_Y - 36} ${from} ${TIME_Y}` }));
      const cell = s("g", { class: `entry${isFound ? " found" : ""}${turn >= 0 ? " visited" : ""}`, onclick: () => onEntry("timeindex", slot) },
        s("title", {}, `slot ${slot}: ${time(index.timestamps[at])} → offset ${number(index.timeOffsets[at])}`),
        s("rect", { x: cellX(order) + (wide > 5 ? 1 : 0), y: TIME_Y, width: Math.max(wide - (wide > 5 ? 2 : 0.5), 1), height: CELL, rx: wide > 8 ? 3 : 0 }));
      if (wide > 38) cell.append(s("text", { x: from, y: TIME_Y + 15, "text-anchor": "middle", class: "tiny" }, time(index.timestamps[at]).slice(11, 16)));
      if (turn >= 0) cell.append(s("text", { x: from, y: TIME_Y + CELL + 13, "text-anchor": "middle", class: "turn" }, turn + 1));
      row.append(cell);
    });
    svg.append(lines, row);
  }

  function drawLog(svg, rows, x) {
    const log = s("g", { class: "batches" });
    const scanned = new Set((state.path?.scanned ?? []).slice(0, state.path?.scan ?? 0));
    rows.forEach((one, at) => {
      const from = x(one.position);
      const wide = x(one.position + one.size) - from;
      const isFound = state.path?.position === one.position && state.path.isBatch;
      const classes = ["batch", colourClass(one, state.colour)];
      if (one.isControl) classes.push("control");
      if (one.isAborted) classes.push("is-aborted");
      if (scanned.has(one.position)) classes.push("scanned");
      if (isFound) classes.push("found");
      if (state.chosen === one.position) classes.push("chosen");
      if (!one.isValid) classes.push("invalid");
      const first = one.baseOffset ?? one.lastOffset;
      const batch = s("g", {
        class: classes.join(" "), role: "button", tabindex: at === chosenAt(rows) ? "0" : "-1", "data-position": one.position,
        "aria-label": batchText(one),
        onclick: () => onBatch(one),
        onkeydown: (event) => batchKey(event, rows, at),
      }, s("title", {}, batchText(one)),
      s("rect", { x: from, y: LOG_Y, width: Math.max(wide - (wide > 4 ? 1 : 0.3), 0.8), height: LOG, rx: wide > 8 ? 2 : 0 }));
      const gone = goneShare(one);
      if (gone > 0) batch.append(s("rect", { class: "gone", x: from, y: LOG_Y, width: Math.max(wide - (wide > 4 ? 1 : 0), 0.8), height: gone * LOG * 0.86 }));
      if (one.isAborted) batch.append(s("path", { class: "strike", d: `M${from + 1} ${LOG_Y + LOG - 2}L${from + Math.max(wide - 2, 1)} ${LOG_Y + 2}` }));
      if (one.tombstones) {
        const part = one.tombstones / Math.max(one.count, 1);
        batch.append(s("rect", { class: "tombstones", x: from, y: LOG_Y + LOG - 6 - part * 14, width: Math.max(wide - 1, 1), height: 6 + part * 14 }));
      }
      if (one.hole) batch.append(s("path", { class: "hole", d: `M${from - 3} ${LOG_Y - 6}h6l-3 6z` }, s("title", {}, `${number(one.hole)} offsets before ${number(first)} are gone: compacted`)));
      log.append(batch);
      if (isFound || state.chosen === one.position) {
        svg.append(s("rect", { class: "frame", x: from - 2.5, y: LOG_Y - 6, width: Math.max(wide, 2) + 4, height: LOG + 12, rx: 4 }));
      }
    });
    svg.prepend(log);
  }

  function chosenAt(rows) {
    const at = rows.findIndex((one) => one.position === state.chosen);
    return at < 0 ? 0 : at;
  }

  function batchKey(event, rows, at) {
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") onBatch(rows[at]);
    else if (next !== undefined && rows[next]) {
      onBatch(rows[next]);
      place.querySelector(`[data-position="${rows[next].position}"]`)?.focus();
    } else return;
    event.preventDefault();
  }

  function drawLabels(svg, index, low, high, width) {
    const every = index.slots.length > 1 ? index.slots[1] - index.slots[0] : 1;
    const each = (step) => (step > 1 ? `, each ${number(step)}th drawn` : "");
    const label = (y, text, more) => svg.append(s("text", { x: SIDE, y, class: "tiny label" }, text, s("tspan", { class: "mute" }, more)));
    label(13, ".index", `  ${number(index.entries)} entries of 8 bytes: offset → position${each(every)}`);
    const timeEvery = index.timeSlots.length > 1 ? index.timeSlots[1] - index.timeSlots[0] : 1;
    svg.append(s("text", { x: SIDE, y: TIME_Y + CELL + 31, class: "tiny label" }, ".timeindex",
      s("tspan", { class: "mute" }, `  ${number(index.timeEntries)} entries of 12 bytes: time → offset${each(timeEvery)}`)));
    svg.append(s("text", { x: width - SIDE, y: LOG_Y + LOG + 15, "text-anchor": "end", class: "tiny label" }, size(high)));
    svg.append(s("text", { x: SIDE, y: LOG_Y + LOG + 15, class: "tiny label" }, low ? size(low) : ".log"));
  }

  const close = onWidth(place, draw);
  return {
    element: place,
    close,
    state,
    set(changes) {
      Object.assign(state, changes);
      if (width_) draw(width_);
    },
  };
}

// The share of a batch's offsets whose records compaction has removed.
export function goneShare(one) {
  if (one.baseOffset === null || one.count === null || one.isControl) return 0;
  return 1 - one.count / (one.lastOffset - one.baseOffset + 1);
}

export function colourClass(batch, colour) {
  if (colour === "codec") return `codec-${batch.codec}`;
  if (colour === "epoch") return `ink-${Math.max(batch.partitionLeaderEpoch, 0) % 6}`;
  return batch.producerId < 0 ? "codec-none" : `ink-${batch.producerId % 6}`;
}

export function batchText(one) {
  const first = one.baseOffset === null ? "" : `${number(one.baseOffset)} to `;
  const words = [`Batch of offsets ${first}${number(one.lastOffset)}`, `${size(one.size)} at ${number(one.position)}`, one.codec, `epoch ${one.partitionLeaderEpoch}`];
  if (one.producerId >= 0) words.push(`producer ${one.producerId}`);
  if (one.isControl) words.push("transaction marker");
  else if (one.isTransactional) words.push(one.isAborted ? "aborted transaction" : "transaction");
  if (one.tombstones) words.push(`${number(one.tombstones)} tombstones`);
  if (goneShare(one) > 0) words.push(`${number(one.count)} of ${number(one.lastOffset - one.baseOffset + 1)} records left`);
  if (one.hole) words.push(`${number(one.hole)} offsets before it are gone`);
  if (!one.isValid) words.push("WRONG CRC");
  return words.join(", ");
}
