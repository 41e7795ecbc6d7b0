// Building elements. Text goes in as text nodes only: nothing a model or a tool wrote is ever read as HTML.

/**
 * Make an element: h("a.quiet", {href: "#/"}, "Runs").
 * Children are strings, numbers, elements, arrays of these, or nothing (null, undefined, false).
 */
export function h(tag, properties, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "href") element.setAttribute("href", safeAddress(value));
    else if (key === "class") element.classList.add(...String(value).split(" ").filter(Boolean));
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child);
  }
}

export function replaceChildren(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Addresses come from this program, and still only these kinds may be followed. */
function safeAddress(address) {
  return /^(#|\.?\/|api\/)/.test(address) ? address : "#/";
}

/** Text with parts of it marked: marks are [start, end] pairs in ascending order. */
export function marked(text, marks) {
  const parts = [];
  let at = 0;
  for (const [start, end] of marks) {
    if (start < at) continue;
    parts.push(text.slice(at, start), h("mark", null, text.slice(start, end)));
    at = end;
  }
  parts.push(text.slice(at));
  return parts;
}

/** Where a piece of text occurs in another one, as marks. */
export function occurrences(text, piece) {
  const found = [];
  if (!piece) return found;
  for (let at = text.indexOf(piece); at >= 0 && found.length < 200; at = text.indexOf(piece, at + piece.length)) {
    found.push([at, at + piece.length]);
  }
  return found;
}
