// The sources of one run: the quotes of its answer, and each page as it was read, at the passage that is quoted.

import { outsideLink } from "./deciding.js";
import { h, replaceChildren } from "./dom.js";
import { moment } from "./format.js";
import { t } from "./language.js";
import { argumentList } from "./parts.js";
import { listSources, loadSource } from "./source.js";

/** The sources of a run, drawn in `main`. `route.query` has c, the number of a citation, or r, the handle of a result. */
export class SourcesPage {
  constructor(main, { id, query }) {
    this.runId = id;
    this.main = main;
    this.closed = false;
    this.citation = Number(query.get("c") ?? 1) - 1;
    this.handle = query.get("r") ?? "";
    this.detail = h("section.source", { "aria-live": "polite" });
  }

  async open() {
    const { citations, sources } = await listSources(this.runId);
    if (this.closed) return;
    this.citations = citations;
    this.current = this.handle ? null : citations[this.citation];
    const back = h("a", { href: `#/run/${encodeURIComponent(this.runId)}`, dir: "auto" }, `← ${this.runId}`);
    const others = sources.filter((source) => !source.cited);
    replaceChildren(this.main, h("div.sources-page", null,
      h("aside.source-list", null, h("p", null, back), h("h1", null, t("Sources")),
        citations.length ? h("ol.citations", null, citations.map((each, place) => h("li", null, this.row(each, place)))) : h("p.quiet", null, t("The answer quotes nothing.")),
        others.length ? [h("h2", null, t("Also read")), h("ul.citations", null, others.map((each) => h("li", null, this.otherRow(each))))] : null),
      this.detail));
    await this.showPage(this.handle || this.current?.source?.handle || "");
  }

  address(parameters) {
    return `#/run/${encodeURIComponent(this.runId)}/sources?${new URLSearchParams(parameters)}`;
  }

  row(citation, place) {
    const where = citation.by_provider ? citation.title || citation.address
      : citation.source ? `${citation.source.handle} · ${citation.source.tool}` : t("not found");
    return h("a.citation", { href: this.address({ c: place + 1 }), class: citation.problem ? "bad" : "", "aria-current": citation === this.current ? "true" : null },
      h("b", null, `[${place + 1}]`), " ", h("q", { dir: "auto" }, citation.quote), h("small.quiet", { dir: "auto" }, where));
  }

  otherRow({ handle, tool, arguments: given }) {
    return h("a.citation", { href: this.address({ r: handle }), "aria-current": handle === this.handle ? "true" : null },
      h("b", null, handle), " ", tool, h("small.quiet", { dir: "auto" }, given.slice(0, 120)));
  }

  async showPage(handle) {
    const { current } = this;
    const problem = current?.problem ? h("p.line.error", { dir: "auto" }, current.problem) : null;
    if (!handle && current?.by_provider) {
      return replaceChildren(this.detail, h("h2", { dir: "auto" }, current.title || current.address), h("p", null, outsideLink(current.address, "Open {host}")),
        h("p.quiet", null, t("The model's provider cites this page. The run has not read it, so it is not kept here.")));
    }
    if (!handle) return replaceChildren(this.detail, problem);
    const source = await loadSource(this.runId, handle);
    const address = current?.address || source?.address;
    if (this.closed) return;
    if (!source) return replaceChildren(this.detail, problem, h("p.quiet", null, t("This file has the cited sources only.")));
    replaceChildren(this.detail, problem,
      h("h2", { dir: "auto" }, `${source.handle} · ${source.tool}`), argumentList(source.arguments),
      h("dl.arguments", null,
        address ? [h("dt", null, t("Address")), h("dd", null, h("code", { dir: "auto" }, address), outsideLink(address, "Open {host}"))] : null,
        h("dt", null, t("Read")), h("dd", null, moment(source.time)),
        h("dt", null, "SHA-256"), h("dd", null, h("code", null, source.sha256))),
      h("div.source-texts", { tabindex: "0" }, source.texts.map(({ path, pieces }) => [path ? h("h3.quiet", { dir: "auto" }, path) : null,
        h("pre.text", { dir: "auto" }, pieces.map((piece) => this.piece(piece)))])));
    this.detail.querySelector("mark.current, mark")?.scrollIntoView({ block: "center" });
  }

  piece({ text, cited }) {
    if (!cited.length) return text;
    const isCurrent = cited.some((number) => this.citations[number] === this.current);
    return h(isCurrent ? "mark.current" : "mark", { title: cited.map((number) => `[${number + 1}]`).join(" ") }, text);
  }

  key(key) {
    const next = { j: this.citation + 1, k: this.citation - 1 }[key];
    if (!this.citations?.[next]) return false;
    location.hash = this.address({ c: next + 1 });
    return true;
  }

  close() {
    this.closed = true;
  }
}
