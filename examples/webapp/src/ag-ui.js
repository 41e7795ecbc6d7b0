// The same agent over AG-UI, without a framework: its client keeps the messages, and the page draws them.
import { HttpAgent } from "@ag-ui/client";

const API = "agent/v1/ag-ui";
const url = new URL(location.href);
if (!url.searchParams.has("chat")) {
  url.searchParams.set("chat", crypto.randomUUID());
  history.replaceState(null, "", url);
}
const threadId = url.searchParams.get("chat");
const found = await (await fetch(`${API}/${encodeURIComponent(threadId)}`)).json();
const agent = new HttpAgent({ url: API, threadId, initialMessages: found.messages ?? [] });
const log = document.getElementById("log");
const files = [];
let failure = "";

const element = (name, className, text = "") => Object.assign(document.createElement(name), { className, textContent: text });

function draw() {
  const results = new Map(agent.messages.filter((each) => each.role === "tool").map((each) => [each.toolCallId, each.content]));
  const drawn = [];
  for (const message of agent.messages) {
    if (message.metadata?.closeout?.withdrawn) continue;
    const content = typeof message.content === "string" ? message.content : (message.content ?? []).map((part) => part.text ?? "").join("");
    if (["user", "assistant"].includes(message.role) && content) {
      const article = element("article", `message ${message.role}`);
      article.append(element("div", "text", content));
      drawn.push(article);
    }
    for (const call of message.toolCalls ?? []) {
      const card = element("section", "card");
      card.append(element("div", "head", `${call.function.name} ${call.function.arguments}`));
      if (results.has(call.id)) card.append(element("pre", "", results.get(call.id)));
      drawn.push(card);
    }
  }
  for (const interrupt of agent.pendingInterrupts) {
    const card = element("section", "card ask");
    const row = element("div", "row");
    card.append(element("p", "", interrupt.message), row);
    const answers = interrupt.reason === "approval" ? [["Decline", { approved: false }], ["Approve", { approved: true }]] : [];
    for (const [label, payload] of answers) {
      const button = element("button", "", label);
      button.onclick = () => run({ resume: [{ interruptId: interrupt.id, status: "resolved", payload }] });
      row.append(button);
    }
    drawn.push(card);
  }
  for (const file of files) drawn.push(Object.assign(element("a", "file", file.filename), { href: file.url, download: file.filename }));
  if (failure) drawn.push(element("p", "note bad", failure));
  log.replaceChildren(...drawn);
}

async function run(options = {}) {
  failure = "";
  log.dataset.status = "streaming";
  try {
    await agent.runAgent(options, {
      onEvent: () => { setTimeout(draw); },
      onCustomEvent: ({ event }) => {
        if (event.name === "closeout.file") files.push({ url: event.value.url, filename: event.value.providerMetadata.closeout.filename });
      },
      onRunErrorEvent: ({ event }) => { failure = event.message; },
    });
  } catch (error) {
    failure ||= error.message;
  }
  log.dataset.status = "ready";
  draw();
}

const base64 = async (file) => {
  const bytes = new Uint8Array(await file.arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
};

document.getElementById("form").onsubmit = async (event) => {
  event.preventDefault();
  const input = document.getElementById("text");
  const [file] = document.getElementById("file").files;
  const text = input.value.trim();
  if (!text || log.dataset.status === "streaming") return;
  input.value = "";
  const question = agent.pendingInterrupts.find((each) => each.reason === "question");
  const content = file
    ? [{ type: "document", source: { type: "data", value: await base64(file), mimeType: file.type || "text/plain" }, metadata: { filename: file.name } }, { type: "text", text }]
    : text;
  document.getElementById("file").value = "";
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  await run(question ? { resume: [{ interruptId: question.id, status: "resolved", payload: { answer: text } }] } : {});
};
log.dataset.status = "ready";
draw();
