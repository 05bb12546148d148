// A look-up as the log does it, step by step: what was chosen, why, and the bytes that decided.

import { append, bytesText, h, number, reducedMotion, time } from "./dom.js";

const NAMES = {
  segment: "Segment, by its name", timeindex: "Time index, by binary search", index: "Offset index, by binary search",
  position: "Position in the log", scan: "Scan of batch headers", batch: "Batch, by its CRC", record: "Record",
};
const PAUSE = 1500;
const VISIT = 420;

// The steps to show: the document's, with the position that the index gave as a step of its own.
export function stepsOf(found) {
  const steps = [];
  let segment = null;
  for (const one of found.steps) {
    if (one.step === "segment") segment = Number.parseInt(one.file, 10);
    steps.push({ ...one, segment });
    if (one.step === "index") {
      steps.push({ step: "position", why: one.slot === null ? "the first byte of the segment" : `the batch that slot ${one.slot} points to begins here`, position: one.position, slot: one.slot, segment });
    }
  }
  return steps;
}

export function lookUpPlayer(found, { show }) {
  const steps = stepsOf(found);
  const state = { at: -1, timer: 0, visit: 0 };
  const list = h("ol", { class: "steps" });
  const play = h("button", { type: "button", class: "primary", onclick: () => (state.timer ? stop() : start()) }, "Play");
  const back = h("button", { type: "button", onclick: () => { stop(); go(state.at - 1); }, "aria-label": "Step back" }, "‹");
  const next = h("button", { type: "button", onclick: () => { stop(); go(state.at + 1); }, "aria-label": "Next step" }, "›");
  const element = h(
    "section", { class: "look-up", "aria-label": "Look-up, step by step", onkeydown: key },
    h("div", { class: "player" }, back, play, next, h("p", { class: "goal" }, goal(found))),
    list,
  );

  function goal(document_) {
    if (!document_.found) return "No record is at or after that time.";
    return ["Record ", h("b", {}, number(document_.offset)), " of ", time(document_.timestamp)];
  }

  append(list, steps.map((one, at) => h("li", {},
    h("button", { type: "button", onclick: () => { stop(); go(at); } },
      h("b", {}, NAMES[one.step] ?? one.step), h("span", {}, one.why), h("span", { class: "facts" }, facts(one))))));

  // The elements stay, so that the focus stays.
  function draw() {
    [...list.children].forEach((one, at) => {
      one.className = at === state.at ? "now" : at < state.at ? "done" : "";
      if (at === state.at) one.firstChild.setAttribute("aria-current", "step");
      else one.firstChild.removeAttribute("aria-current");
    });
    back.disabled = state.at <= 0;
    next.disabled = state.at >= steps.length - 1;
    play.textContent = state.timer ? "Pause" : state.at >= steps.length - 1 ? "Play again" : "Play";
  }

  function facts(one) {
    if (one.step === "segment") return one.file;
    if (one.step === "index" || one.step === "timeindex") {
      const path = (one.visits ?? []).join(" → ");
      const end = one.slot === null ? "before the first entry" : `slot ${number(one.slot)}`;
      return `${path ? `${path} ⇒ ` : ""}${end} of ${number(one.entries)}`;
    }
    if (one.step === "position") return `byte ${number(one.position)}`;
    if (one.step === "scan") return `${number(one.batches)} ${one.batches === 1 ? "batch" : "batches"}, ${number(one.bytes)} bytes`;
    if (one.step === "batch") return `offsets ${number(one.firstOffset)} to ${number(one.lastOffset)}, ${number(one.records)} records`;
    if (one.step === "record") return one.offset === null ? "" : `number ${number(one.number)} of the batch${found.key === null ? "" : `, key ${bytesText(found.key).slice(0, 40)}`}`;
    return "";
  }

  function go(at) {
    state.at = Math.min(Math.max(at, 0), steps.length - 1);
    state.visit = state.timer && !reducedMotion() ? 0 : Infinity;
    draw();
    show(steps, state.at, state.visit);
    const now = list.children[state.at];
    if (now && element.contains(document.activeElement)) now.scrollIntoView({ block: "nearest" });
  }

  function tick() {
    const visits = steps[state.at]?.visits?.length ?? 0;
    if (state.at >= 0 && state.visit < Math.min(visits, 40)) {
      state.visit += 1;
      show(steps, state.at, state.visit);
      state.timer = setTimeout(tick, state.visit < visits ? VISIT : PAUSE / 2);
      return;
    }
    if (state.at >= steps.length - 1) {
      stop();
      return;
    }
    go(state.at + 1);
    state.timer = setTimeout(tick, steps[state.at].visits?.length ? VISIT : PAUSE);
  }

  function start() {
    if (state.at >= steps.length - 1) state.at = -1;
    state.timer = -1;
    tick();
    draw();
  }

  function stop() {
    clearTimeout(state.timer);
    state.timer = 0;
    draw();
  }

  function key(event) {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    stop();
    go(state.at + moves[event.key]);
    list.children[state.at]?.querySelector("button")?.focus();
  }

  draw();
  return { element, start, go, steps, close: () => clearTimeout(state.timer) };
}
