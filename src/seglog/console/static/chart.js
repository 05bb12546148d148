// Lines over time, with the values under the pointer.

import { h, onWidth, replace, s, ticks, time } from "./dom.js";

const TOP = 8;
const BOTTOM = 22;
const LEFT = 52;

// series: [{name, kind, points: [[ms, value|null]], dashed}]; format makes text of a value.
export function lineChart({ label, height = 170, format }) {
  const place = h("div", { class: "chart" });
  const state = { series: [], span: 300000, now: 0 };
  let width_ = 0;

  function draw(width) {
    width_ = width;
    const high = Math.max(1, ...state.series.flatMap((one) => one.points.map(([, value]) => value ?? 0))) * 1.08;
    const from = state.now - state.span;
    const x = (at) => LEFT + ((at - from) / state.span) * (width - LEFT - 8);
    const y = (value) => TOP + (1 - value / high) * (height - TOP - BOTTOM);
    const last = state.series.map((one) => `${one.name} ${format(one.points.at(-1)?.[1] ?? null)}`).join(", ");
    const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: ${last || "nothing yet"}` });
    for (const value of ticks(0, high, 4)) {
      svg.append(s("path", { class: "grid", d: `M${LEFT} ${y(value)}H${width - 8}` }), s("text", { class: "tiny mute", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)));
    }
    const step = state.span / Math.max(Math.floor((width - LEFT) / 120), 1);
    for (let at = state.now; at > from + step / 3; at -= step) {
      svg.append(s("text", { class: "tiny mute", x: x(at), y: height - 6, "text-anchor": at === state.now ? "end" : "middle" }, time(Math.round(at)).slice(11, 19)));
    }
    for (const one of state.series) {
      let path = "";
      let pen = "M";
      for (const [at, value] of one.points) {
        if (value === null) pen = "M";
        else if (at >= from) {
          path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
          pen = "L";
        }
      }
      svg.append(s("path", { class: `line ${one.kind}${one.dashed ? " dashed" : ""}`, d: path }));
      const end = one.points.at(-1);
      if (end && end[1] !== null) svg.append(s("circle", { class: `dot ${one.kind}`, cx: x(end[0]), cy: y(end[1]), r: 3 }));
    }
    replace(place, svg);
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
