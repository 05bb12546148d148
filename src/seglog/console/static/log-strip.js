// A log to scale: segments by offset, time or bytes, with epochs, transactions, marks, retention and replicas.

import { duration, h, number, onWidth, plural, replace, s, size, ticks, time } from "./dom.js";

const LEFT = 12;
const RIGHT = 12;
const BAR = 60;
const MOST_DRAWN = 1500;

// The place of each segment on the line, and the functions from offsets to x and back.
export function scaleOf(log, kind, width) {
  const inner = Math.max(width - LEFT - RIGHT, 10);
  const segments = log.segments;
  let spans;
  if (kind === "time") {
    let last = segments.find((one) => one.firstTimestamp !== null || one.maxTimestamp !== null);
    last = last ? (last.firstTimestamp ?? last.maxTimestamp) : 0;
    spans = segments.map((one) => {
      const from = Math.max(one.firstTimestamp ?? last, last);
      last = Math.max(one.maxTimestamp ?? from, from);
      return [from, last];
    });
  } else if (kind === "bytes") {
    let sum = 0;
    spans = segments.map((one) => [sum, (sum += one.size)]);
  } else spans = segments.map((one) => [one.baseOffset, one.nextOffset]);
  const low = spans.length ? spans[0][0] : 0;
  const high = spans.length ? Math.max(spans.at(-1)[1], low + 1) : 1;
  const x = (value) => LEFT + ((value - low) / (high - low)) * inner;
  const places = spans.map(([from, to]) => [x(from), x(to)]);
  const find = (offset) => {
    let at = segments.findLastIndex((one) => one.baseOffset <= offset);
    return at < 0 ? 0 : at;
  };
  return {
    low, high, x, places,
    ofOffset(offset) {
      if (!segments.length) return LEFT;
      const at = find(offset);
      const one = segments[at];
      const share = (offset - one.baseOffset) / Math.max(one.nextOffset - one.baseOffset, 1);
      const [from, to] = places[at];
      return from + Math.min(Math.max(share, 0), 1) * (to - from);
    },
    toOffset(x_) {
      let at = places.findLastIndex(([from]) => from <= x_);
      at = at < 0 ? 0 : at;
      const one = segments[at];
      if (!one) return 0;
      const [from, to] = places[at];
      const share = to > from ? (x_ - from) / (to - from) : 0;
      const offset = Math.floor(one.baseOffset + Math.min(Math.max(share, 0), 1) * (one.nextOffset - one.baseOffset));
      return Math.min(Math.max(offset, log.start), Math.max(log.end - 1, log.start));
    },
  };
}

// Runs of offsets with one leader epoch.
function epochRuns(log) {
  const entries = log.epochs.length ? log.epochs : [{ epoch: 0, startOffset: log.segments[0]?.baseOffset ?? 0 }];
  return entries.map((one, at) => ({
    epoch: one.epoch,
    from: Math.max(one.startOffset, log.segments[0]?.baseOffset ?? 0),
    to: entries[at + 1]?.startOffset ?? log.end,
  })).filter((one) => one.to > one.from);
}

function marksOf(log) {
  const given = [
    ["start", log.start, "start"], ["cleaned", log.cleanerPoint, "cleaned to"],
    ["recovery", log.recoveryPoint, "recovery point"], ["lso", log.lastStableOffset, "LSO"],
    ["hw", log.highWatermark, "HW"], ["leo", log.end, "LEO"],
  ];
  const found = [];
  for (const [kind, offset, name] of given) {
    if (offset === null || offset === undefined) continue;
    const same = found.find((one) => one.offset === offset);
    if (same) same.names.push(name);
    else found.push({ kind, offset, names: [name] });
  }
  return found.sort((a, b) => a.offset - b.offset);
}

export function logStrip(log, { kind, selected, lookUp, onSegment, onOffset }) {
  const place = h("div", { class: "strip" });
  const state = { kind, selected, lookUp };
  let width_ = 0;

  function draw(width) {
    width_ = width;
    const scale = scaleOf(log, state.kind, width);
    const marks = marksOf(log);
    const rows = [];
    for (const mark of marks) {
      mark.x = scale.ofOffset(mark.offset);
      mark.text = `${mark.names.join(" = ")} ${number(mark.offset)}`;
      const wide = mark.text.length * 6.4 + 10;
      mark.flip = mark.x + wide > width - 4;
      const span = mark.flip ? [mark.x - wide, mark.x] : [mark.x, mark.x + wide];
      mark.row = rows.findIndex((end) => end.every(([a, b]) => span[1] < a || span[0] > b));
      if (mark.row < 0) mark.row = rows.push([]) - 1;
      rows[mark.row].push(span);
    }
    const top = rows.length * 16 + 8;
    const bottom = top + BAR;
    const lanes = log.replicas.length > 1 ? log.replicas.length : 0;
    const replicaTop = bottom + 48;
    const axis = replicaTop + (lanes ? lanes * 19 + 8 : -2);
    const height = axis + 30;
    const svg = s("svg", {
      class: `log${state.lookUp ? " looking" : ""}`, width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": `Log of ${log.topic}-${log.partition}, ${plural(log.segments.length, "segment")}`,
    });
    svg.append(
      s("defs", {},
        s("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          s("rect", { width: 2.4, height: 7, class: "hatch" })),
        s("pattern", { id: "dots", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
          s("circle", { cx: 1.5, cy: 1.5, r: 1.1, class: "hatch-open" }))),
    );
    drawSegments(svg, scale, top);
    drawTransactions(svg, scale, bottom + 5);
    drawRetention(svg, scale, bottom + 19);
    if (lanes) drawReplicas(svg, scale, replicaTop);
    drawAxis(svg, scale, axis, width);
    for (const mark of marks) {
      const y = (rows.length - 1 - mark.row) * 16 + 12;
      svg.append(
        s("g", { class: `mark ${mark.kind}` },
          s("path", { d: `M${mark.x} ${y - 9}V${bottom + 2}` }),
          s("text", { x: mark.x + (mark.flip ? -4 : 4), y: y - 1, "text-anchor": mark.flip ? "end" : "start" }, mark.text)),
      );
    }
    if (state.lookUp) {
      const x = scale.ofOffset(state.lookUp.offset);
      svg.append(s("g", { class: "needle" },
        s("path", { d: `M${x} ${top - 3}V${bottom + 3}` }),
        s("path", { d: `M${x - 5} ${top - 8}h10l-5 7z`, class: "needle-head" })));
    }
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const y = event.clientY - box.top;
      if (y < top - 8 || y > bottom + 4 || !log.segments.length || log.end <= log.start) return;
      onOffset(scale.toOffset(event.clientX - box.left));
    });
    replace(place, svg);
  }

  function drawSegments(svg, scale, top) {
    const every = Math.max(Math.ceil(log.segments.length / MOST_DRAWN), 1);
    const going = new Map(log.retention.segments.map((one) => [one.baseOffset, one]));
    const bars = s("g", {});
    log.segments.forEach((one, at) => {
      if (at % every && one.baseOffset !== state.selected) return;
      const [from, to_] = scale.places[at];
      const to = scale.places[Math.min(at + every, log.segments.length) - 1][1];
      const wide = Math.max(to - from - (to - from > 6 ? 2 : 0), 1);
      const isLast = at === log.segments.length - 1;
      const goes = going.get(one.baseOffset)?.goes;
      const bar = s("g", {
        class: `segment${one.baseOffset === state.selected ? " selected" : ""}${isLast ? " active" : ""}`,
        role: "button", tabindex: one.baseOffset === state.selected ? "0" : "-1",
        "aria-pressed": String(one.baseOffset === state.selected),
        "aria-label": `Segment ${number(one.baseOffset)} to ${number(one.nextOffset - 1)}, ${size(one.size)}`
          + (isLast ? ", active" : "") + (goes ? `, goes now: ${goes}` : ""),
        "data-base": one.baseOffset,
        onkeydown: (event) => segmentKey(event, at),
      });
      const clip = s("clipPath", { id: `clip-${at}` }, s("rect", { x: from, y: top, width: wide, height: BAR, rx: Math.min(5, wide / 3) }));
      bar.append(clip);
      const inside = s("g", { "clip-path": `url(#clip-${at})` });
      for (const run of epochRuns(log)) {
        const a = Math.max(run.from, one.baseOffset);
        const b = Math.min(run.to, every > 1 ? Infinity : one.nextOffset);
        if (b <= a) continue;
        const xa = scale.ofOffset(a);
        const xb = b === one.nextOffset ? to_ : scale.ofOffset(b);
        inside.append(s("rect", { x: xa, y: top, width: Math.max(xb - xa, 1), height: BAR, class: `epoch-${run.epoch % 6}` },
          s("title", {}, `leader epoch ${run.epoch}: offsets ${number(run.from)} to ${number(run.to - 1)}`)));
        if (xb - xa > 62 && a === run.from) inside.append(s("text", { x: xa + 7, y: top + BAR - 8, class: "tiny" }, `epoch ${run.epoch}`));
      }
      if (goes) inside.append(s("rect", { x: from, y: top, width: wide, height: BAR, fill: "url(#hatch)" }));
      if (one.baseOffset < log.start) {
        inside.append(s("rect", { x: from, y: top, width: Math.max(scale.ofOffset(Math.min(log.start, one.nextOffset)) - from, 0), height: BAR, fill: "url(#hatch)" }));
      }
      if (wide > 66) {
        inside.append(s("text", { x: from + 7, y: top + 18, class: "strong" }, number(one.baseOffset)));
        inside.append(s("text", { x: from + 7, y: top + 33, class: "tiny" }, size(one.size)));
      }
      bar.append(inside, s("rect", { x: from, y: top, width: wide, height: BAR, rx: Math.min(5, wide / 3), class: "outline" }));
      bars.append(bar);
    });
    svg.append(bars);
  }

  function segmentKey(event, at) {
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: log.segments.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") onSegment(log.segments[at].baseOffset);
    else if (next !== undefined && log.segments[next]) {
      onSegment(log.segments[next].baseOffset);
      place.querySelector(`[data-base="${log.segments[next].baseOffset}"]`)?.focus();
    } else return;
    event.preventDefault();
  }

  function drawTransactions(svg, scale, y) {
    const lane = s("g", { class: "transactions" });
    for (const one of log.aborted.slice(0, 2000)) {
      const from = scale.ofOffset(one.firstOffset);
      lane.append(s("rect", { x: from, y, width: Math.max(scale.ofOffset(one.lastOffset + 1) - from, 2), height: 6, rx: 2, class: "aborted" },
        s("title", {}, `aborted: producer ${one.producerId}, offsets ${number(one.firstOffset)} to ${number(one.lastOffset)}`)));
    }
    const stable = log.lastStableOffset;
    const readable = log.highWatermark ?? log.end;
    if (stable !== null && stable < readable) {
      const from = scale.ofOffset(stable);
      lane.append(s("rect", { x: from, y: y - BAR - 5, width: Math.max(scale.ofOffset(readable) - from, 2), height: BAR, fill: "url(#dots)" },
        s("title", {}, "an open transaction: read_committed consumers wait at the LSO")));
    }
    svg.append(lane);
  }

  function drawRetention(svg, scale, y) {
    const lane = s("g", { class: "retention" });
    let free = 0;
    log.retention.segments.forEach((one, at) => {
      const [from, to] = scale.places[at];
      const text = retentionText(log, one);
      if (!text || from < free || to - from < 60) return;
      lane.append(s("path", { d: `M${from + 1} ${y}v4H${to - 3}v-4` }));
      const shown = text.slice(0, Math.max(Math.floor((to - from - 8) / 6), 4));
      lane.append(s("text", { x: from + 4, y: y + 17, class: one.goes ? "tiny warn" : "tiny" }, shown === text ? text : `${shown.slice(0, -1)}…`, s("title", {}, text)));
      free = to;
    });
    svg.append(lane);
  }

  function drawReplicas(svg, scale, top) {
    log.replicas.forEach((one, at) => {
      const y = top + at * 19;
      const first = one.segments[0]?.baseOffset ?? 0;
      const from = scale.ofOffset(Math.max(first, log.segments[0]?.baseOffset ?? 0));
      const to = scale.ofOffset(one.end);
      const name = one.broker === null ? one.directory.split("/").at(-1) : `broker ${one.broker}`;
      const text = `${name} · ${one.lag ? `${number(one.lag)} behind` : "at the end"}`;
      const lane = s("g", { class: `replica${one.root === log.root ? " shown" : ""}${one.lag ? " behind" : ""}` },
        s("title", {}, `${one.directory}: offsets ${number(one.start)} to ${number(one.end)}, ${size(one.size)}`),
        s("rect", { x: from, y, width: Math.max(to - from, 1), height: 14, rx: 3 }));
      for (const part of one.segments.slice(1, MOST_DRAWN)) {
        const x = scale.ofOffset(part.baseOffset);
        lane.append(s("path", { d: `M${x} ${y}v14` }));
      }
      lane.append(s("text", { x: from + 7, y: y + 10.5, class: "tiny" }, text));
      svg.append(lane);
    });
  }

  function drawAxis(svg, scale, y, width) {
    const axis = s("g", { class: "axis" }, s("path", { d: `M${LEFT} ${y}H${width - RIGHT}` }));
    const unit = state.kind === "time" ? timeStep(scale.low, scale.high, width / 130) : null;
    const values = unit ?? ticks(scale.low, scale.high, width / 110);
    for (const value of values) {
      const x = scale.x(value);
      const text = state.kind === "time" ? time(value, false).slice(5) : state.kind === "bytes" ? size(value) : number(value);
      axis.append(s("path", { d: `M${x} ${y}v5` }),
        s("text", { x: Math.min(Math.max(x, LEFT + 4), width - 30), y: y + 18, "text-anchor": x < 40 ? "start" : "middle", class: "tiny" }, text));
    }
    svg.append(axis);
  }

  const close = onWidth(place, draw);
  return {
    element: place,
    close,
    set(changes) {
      Object.assign(state, changes);
      if (width_) draw(width_);
    },
  };
}

function timeStep(low, high, most) {
  const steps = [1000, 5000, 15000, 60000, 300000, 900000, 3600000, 3 * 3600000, 12 * 3600000, 86400000, 2 * 86400000, 7 * 86400000, 30 * 86400000];
  const step = steps.find((one) => (high - low) / one <= Math.max(most, 1)) ?? 365 * 86400000;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

export function retentionText(log, one) {
  if (one.goes) return `goes now: ${one.goes}`;
  const parts = [];
  if (one.at !== null) parts.push(one.at > log.now ? `goes in ${duration(one.at - log.now)}` : "goes with those before it");
  if (one.afterBytes !== null) parts.push(`${parts.length ? "or " : "goes "}after ${size(one.afterBytes)} more`);
  return parts.join(", ");
}
