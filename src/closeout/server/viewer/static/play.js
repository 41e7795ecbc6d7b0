// The playground: give the served agent a task, and watch its run.

import { h, replaceChildren } from "./dom.js";
import { t } from "./language.js";
import { commandLine, fold } from "./parts.js";
import { RunPage } from "./run.js";
import { agentPicture, beginRun, loadAgents, loadItems } from "./source.js";

export class Playground {
  constructor(main) {
    Object.assign(this, { main, agents: [], run: null, turns: [] }); // turns: the run ids of the conversation, oldest first
    this.task = h("textarea", { rows: 3, "aria-label": t("Task"), placeholder: t("What should the agent do?"), required: true });
    this.task.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.files = h("input", { type: "file", multiple: true, "aria-label": t("Files") });
    this.user = h("input", { type: "text", "aria-label": t("User"), placeholder: t("User") });
    this.button = h("button.button.primary", { type: "submit" }, t("Run"));
    this.state = h("div", { role: "status" });
    this.before = h("p.quiet");
    this.shown = h("div");
    this.form = h("form.play-form", { submit: (event) => this.begin(event) }, this.before, this.task,
      h("div.play-options", null, this.files, this.user, this.button), this.state);
  }

  async open() {
    this.agents = await loadAgents();
    this.draw();
  }

  draw() {
    const [agent] = this.agents;
    replaceChildren(this.main, h("div.play-page", null, h("h1", null, agent ? agent.name : t("Playground")),
      agent ? [
        h("p.quiet", null, t("Model"), " ", h("bdi", null, agent.model)),
        fold(t("The agent and its tools"), () => h("div.wide", { tabindex: "0", role: "region", "aria-label": t("The agent and its tools") }, h("img.agent-picture", { src: agentPicture(isDark()), alt: describeAgents(this.agents) }))),
        this.form, this.shown,
      ] : [h("p", null, t("This viewer has no agent to run. A server has one:")), commandLine("closeout serve AGENT.yaml")]));
    if (agent) this.task.focus();
  }

  async begin(event) {
    event.preventDefault();
    if (!this.task.value.trim()) return this.task.focus();
    this.button.disabled = true;
    replaceChildren(this.state);
    try {
      const files = await Promise.all([...this.files.files].map(async (file) => ({ name: file.name, data: await base64(file) })));
      const history = (await Promise.all(this.turns.map(exchange))).flat();
      const { run_id: id } = await beginRun({ task: this.task.value, history, files, ...(this.user.value.trim() ? { user: this.user.value.trim() } : {}) });
      this.turns.push(id);
      this.task.value = this.files.value = "";
      this.run?.close();
      this.drawBefore();
      this.run = new RunPage(this.shown, { id, event: null });
      await this.run.open();
    } catch (error) {
      replaceChildren(this.state, h("p.line.error", { role: "alert" }, error.message));
    }
    this.button.disabled = false;
  }

  /** The earlier runs of the conversation, and a way out of it. */
  drawBefore() {
    replaceChildren(this.before, t("The next task continues this conversation:"), " ",
      this.turns.map((id, at) => [at ? ", " : "", h("a", { href: `#/run/${encodeURIComponent(id)}` }, String(at + 1))]), " · ",
      h("button.more", { type: "button", click: () => {
        this.turns = [];
        this.run?.close();
        this.run = null;
        replaceChildren(this.before);
        replaceChildren(this.shown);
        this.task.focus();
      } }, t("New conversation")));
  }

  key() {
    return false;
  }

  close() {
    this.run?.close();
  }
}

/** What was said in a run, as messages: its task, and its answer if it has one. */
async function exchange(id) {
  const { run, items } = await loadItems(id, 0, 1);
  const said = [{ role: "user", content: items[0]?.event?.task?.$cut ?? items[0]?.event?.task ?? run.task }];
  return run.answer === null ? said : [...said, { role: "assistant", content: run.answer }];
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function describeAgents(agents) {
  return agents.map(({ name, model, tools }) => `${name} (${model}): ${tools.map(([tool, marks, target]) => `${tool} (${target === null ? marks : `→ ${agents[target].name}`})`).join(", ")}`).join(". ");
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
