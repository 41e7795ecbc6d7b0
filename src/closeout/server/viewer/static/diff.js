// The difference between two texts, by words or by lines.

import { h } from "./dom.js";
import { t } from "./language.js";

const MOST_PARTS = 3000; // beyond this only the common beginning and end are told apart

/** Returns [{kind: "same" | "removed" | "added", text}] that turns `before` into `after`. */
export function difference(before, after, pattern = /\s+|\w+|[^\s\w]/gu) {
  const a = before.match(pattern) ?? [];
  const b = after.match(pattern) ?? [];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const parts = [];
  push(parts, "same", a.slice(0, start));
  middle(parts, a.slice(start, a.length - end), b.slice(start, b.length - end));
  push(parts, "same", end ? a.slice(-end) : []);
  return parts;
}

/** The longest common subsequence of what is between the common beginning and end. */
function middle(parts, a, b) {
  if (!a.length || !b.length || a.length * b.length > MOST_PARTS * MOST_PARTS) {
    push(parts, "removed", a);
    push(parts, "added", b);
    return;
  }
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      lengths[at] = a[i] === b[j] ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      push(parts, "same", [a[i]]);
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) {
      push(parts, "removed", [a[i]]);
      i += 1;
    } else {
      push(parts, "added", [b[j]]);
      j += 1;
    }
  }
  push(parts, "removed", a.slice(i));
  push(parts, "added", b.slice(j));
}

function push(parts, kind, pieces) {
  if (!pieces.length) return;
  const last = parts.at(-1);
  if (last?.kind === kind) last.text += pieces.join("");
  else parts.push({ kind, text: pieces.join("") });
}

const TAGS = { same: "span", removed: "del", added: "ins" };

/** Two texts beside each other, the changed words marked in both. `labels` name them. */
export function beforeAndAfter(before, after, labels = [t("Before"), t("After")]) {
  const parts = difference(before, after);
  const side = (left_out) =>
    parts.filter((part) => part.kind !== left_out).map((part) => h(TAGS[part.kind], null, part.text));
  const pane = (name, label, text, left_out) => h(`div.${name}`, null, h("span.label", { dir: "auto" }, label),
    text ? h("pre", { dir: "auto" }, side(left_out)) : h("p.quiet", null, t("nothing")));
  return h("div.diff", null, pane("before", labels[0], before, "added"), pane("after", labels[1], after, "removed"));
}

/** One text in which removed and added lines are marked. */
export function lineDifference(before, after) {
  const parts = difference(before, after, /[^\n]*\n|[^\n]+/gu);
  return h("pre.diff.lines", null, parts.map((part) => h(TAGS[part.kind], null, part.text)));
}
