// Bytes with the names of their fields: pointing at a name marks its bytes, and the other way round.

import { h, number, replace, time, visible } from "./dom.js";

const COLUMNS = 16;
const TIMES = new Set(["baseTimestamp", "maxTimestamp", "timestamp"]);

export function hexView(document_) {
  const bytes = document_.hex.match(/../g) ?? [];
  const owner = new Array(bytes.length).fill(-1);
  document_.fields.forEach((field, index) => {
    for (let at = field.at; at < Math.min(field.at + field.size, bytes.length); at++) owner[at] = index;
  });
  const cells = bytes.map((byte, at) =>
    h("span", { class: `byte field-${owner[at] < 0 ? "none" : owner[at] % 6}`, "data-field": owner[at] }, byte),
  );
  const lines = [];
  for (let at = 0; at < bytes.length; at += COLUMNS) {
    const text = bytes.slice(at, at + COLUMNS).map((byte) => {
      const code = Number.parseInt(byte, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
    });
    lines.push(
      h(
        "div", { class: "hex-line" },
        h("span", { class: "hex-at" }, String(document_.position + at).padStart(7, " ")),
        h("span", { class: "hex-bytes" }, cells.slice(at, at + COLUMNS)),
        h("span", { class: "hex-text" }, text.join("")),
      ),
    );
  }
  const rows = document_.fields.map((field, index) =>
    h(
      "tr", { "data-field": index },
      h("th", { scope: "row" }, h("i", { class: `chip field-${index % 6}`, "aria-hidden": "true" }), field.name),
      h("td", { class: "type" }, field.type),
      h("td", { class: "value" }, value(field)),
    ),
  );
  const mark = (index) => {
    for (const one of [...cells, ...rows]) one.classList.toggle("marked", one.dataset.field === index && index !== "-1");
  };
  const point = (event) => mark(event.target.closest("[data-field]")?.dataset.field);
  return h(
    "div", { class: "hex", onpointerover: point, onpointerleave: () => mark(undefined) },
    h("p", { class: "hex-where" }, document_.where, h("span", {}, ` at byte ${number(document_.position)}`)),
    h(
      "div", { class: "hex-dump", tabindex: "0", role: "group", "aria-label": "Bytes in hexadecimal" },
      lines.length ? lines : h("p", { class: "note" }, "No bytes."),
    ),
    h(
      "table", { class: "fields" },
      h("caption", { class: "unseen" }, "Fields of these bytes"),
      h("tbody", {}, rows),
    ),
  );
}

function value(field) {
  const shown = field.value === null ? "null" : visible(String(field.value));
  const note = TIMES.has(field.name) && typeof field.value === "number" && field.value > 0 ? time(field.value) : field.note;
  return [shown, note ? h("small", {}, note) : null];
}

export function showHex(place, document_) {
  replace(place, hexView(document_));
}
