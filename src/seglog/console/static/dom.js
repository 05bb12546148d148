// Elements and words. Text always becomes a text node: nothing that a record or a topic contains is ever markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// Words

export const number = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en"));

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function time(ms, seconds = true) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const moment = new Date(ms);
  if (Number.isNaN(moment.getTime())) return String(ms);
  const text = moment.toISOString().replace("T", " ");
  return seconds ? text.replace(/\.000Z$|Z$/, "") : text.slice(0, 16);
}

export function duration(ms) {
  const seconds = Math.round(Math.abs(ms) / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${(seconds / 86400).toFixed(seconds < 864000 ? 1 : 0)} d`;
}

export const plural = (count, noun, ending = "s") => `${number(count)} ${noun}${count === 1 ? "" : ending}`;

// What a document has for bytes: text, {base64}, or null.
export function bytesText(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return visible(value);
  return `base64:${value.base64}`;
}

// Characters that change the direction of text, or show nothing, as their numbers: no text hides or reorders another.
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => place.classList.remove("shown"), 4000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast(text);
  }
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Calls draw with the element's width, now and when it changes. Returns a function that ends that.
export function onWidth(element, draw) {
  let last = -1;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width > 0 && width !== last) {
      last = width;
      draw(width);
    }
  });
  observer.observe(element);
  return () => observer.disconnect();
}

export function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  let step = 10 ** Math.floor(Math.log10(span / most));
  for (const factor of [1, 2, 5, 10]) {
    if (span / (step * factor) <= most) {
      step *= factor;
      break;
    }
  }
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(Math.round(at * 1e6) / 1e6);
  return found;
}
