// A long list of which only the part near the screen is in the page.

import { h } from "./dom.js";

const CHUNK = 20; // items that appear and disappear together
const ESTIMATE = 140; // pixels: the height of an item that was not shown yet, unless the list says otherwise
const MARGIN = "1500px 0px"; // how far from the screen items are made

/**
 * Shows items in chunks. A chunk far from the screen is an empty box of its last height, so the browser's own scrolling
 * stays exact, and 100,000 items cost little more than twenty.
 */
export class LongList {
  constructor(render, estimate = ESTIMATE) {
    this.render = render; // (item, index) → element
    this.estimate = estimate;
    this.items = [];
    this.chunks = [];
    this.element = h("div.long-list");
    this.observer = new IntersectionObserver((entries) => this.scrolled(entries), { rootMargin: MARGIN });
  }

  /** Replace the items. Chunks whose items are the same objects and did not change stay as they are. */
  update(items) {
    this.items = items;
    const wanted = Math.ceil(items.length / CHUNK);
    while (this.chunks.length > wanted) {
      const chunk = this.chunks.pop();
      this.observer.unobserve(chunk.box);
      chunk.box.remove();
    }
    while (this.chunks.length < wanted) {
      const chunk = { box: h("div.chunk"), shown: null, number: this.chunks.length };
      chunk.box.chunk = chunk;
      this.chunks.push(chunk);
      this.element.append(chunk.box);
      this.observer.observe(chunk.box);
    }
    for (const chunk of this.chunks) {
      const now = this.itemsOf(chunk);
      if (!chunk.shown) chunk.box.style.minHeight ||= `${now.length * this.estimate}px`;
      else if (now.length !== chunk.shown.length || now.some((item, at) => item !== chunk.shown[at] || item.changed)) {
        this.fill(chunk);
      }
    }
  }

  itemsOf(chunk) {
    return this.items.slice(chunk.number * CHUNK, (chunk.number + 1) * CHUNK);
  }

  fill(chunk) {
    const before = new Map((chunk.shown ?? []).map((item, at) => [item, chunk.box.children[at]]));
    const items = this.itemsOf(chunk);
    const elements = items.map((item, at) => {
      const kept = item.changed ? undefined : before.get(item);
      item.changed = false;
      return kept ?? this.render(item, chunk.number * CHUNK + at);
    });
    chunk.box.replaceChildren(...elements);
    chunk.box.style.minHeight = "";
    chunk.shown = items;
  }

  scrolled(entries) {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const { chunk } = target;
      if (isIntersecting && !chunk.shown) this.fill(chunk);
      else if (!isIntersecting && chunk.shown && !target.contains(document.activeElement)) {
        target.style.minHeight = `${boundingClientRect.height}px`;
        target.replaceChildren();
        chunk.shown = null;
      }
    }
  }

  /** Make the first chunk now, without waiting for the observer: the first paint shows it. */
  fillFirst() {
    if (this.chunks.length && !this.chunks[0].shown) this.fill(this.chunks[0]);
  }

  /** The element of an item, made now if it is far from the screen. */
  reveal(index) {
    const chunk = this.chunks[Math.floor(index / CHUNK)];
    if (!chunk) return null;
    if (!chunk.shown) this.fill(chunk);
    return chunk.box.children[index % CHUNK];
  }

  close() {
    this.observer.disconnect();
  }
}
