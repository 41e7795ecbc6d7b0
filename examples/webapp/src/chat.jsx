// A chat with an agent that `AgentApp` serves. The record of the runs is the truth: the page asks for it when it loads,
// when another tab has sent something, and when the connection was lost.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, getToolName, isToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { StrictMode, useCallback, useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";

const API = "agent/v1/ui";
const EXAMPLES = ["Where is order 4711?", "Refund order 4711, the glass was broken.", "Draw the sales of this year."];

const chatId = () => {
  const url = new URL(location.href);
  if (!url.searchParams.has("chat")) {
    url.searchParams.set("chat", crypto.randomUUID());
    history.replaceState(null, "", url);
  }
  return url.searchParams.get("chat");
};

const transport = new DefaultChatTransport({
  api: API,
  // The server has the conversation, so the last message is all that it needs.
  prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
    body: { id, messages: messages.slice(-1), trigger, messageId },
  }),
});

const recorded = async (id) => {
  const response = await fetch(`${API}/${encodeURIComponent(id)}`);
  if (!response.ok) throw new Error((await response.json()).error?.message ?? response.statusText);
  return (await response.json()).messages;
};

function Chat({ id, initial }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState(null);
  const [away, setAway] = useState(false);
  const sent = useRef("");
  const channel = useRef(null);
  const tell = () => channel.current?.postMessage("news");
  const news = async () => {
    await sync();
    tell();
  };
  const chat = useChat({
    id,
    messages: initial,
    transport,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onFinish: news,
    onError: () => setTimeout(news, 250), // also if the stream could not be resumed, which does not finish
  });
  const { messages, setMessages, sendMessage, resumeStream, addToolApprovalResponse, status } = chat;
  const busy = status === "submitted" || status === "streaming";
  const busyNow = useRef(busy);
  busyNow.current = busy;

  // The messages in the record, as soon as the server can be reached.
  const reached = useCallback(async () => {
    for (let wait = 250; ; wait = Math.min(2 * wait, 4000)) {
      try {
        const found = await recorded(id);
        setAway(false);
        return found;
      } catch {
        setAway(true);
        await new Promise((done) => setTimeout(done, wait));
      }
    }
  }, [id]);

  // Show what the record has, and follow the run that is under way. An answer that is streamed here already comes back
  // when it ends. Asked again meanwhile, it looks once more.
  const syncing = useRef(null);
  const again = useRef(false);
  const sync = useCallback(() => {
    again.current = true;
    syncing.current ??= (async () => {
      while (again.current) {
        again.current = false;
        const found = await reached();
        if (busyNow.current) break;
        setMessages(found);
        const words = found.filter((message) => message.role === "user").flatMap((message) => message.parts);
        if (sent.current && !words.some((part) => part.text === sent.current)) setText(sent.current); // it got lost
        sent.current = "";
        await resumeStream();
        again.current ||= found.at(-1)?.role === "user"; // what was left to the stream may have ended before it
      }
      syncing.current = null;
    })();
    return syncing.current;
  }, [reached, setMessages, resumeStream]);

  useEffect(() => {
    channel.current = new BroadcastChannel(`chat ${id}`);
    channel.current.onmessage = () => sync();
    news(); // what was sent before the page was loaded again, other tabs may not know
    const back = () => document.visibilityState === "visible" && sync();
    document.addEventListener("visibilitychange", back);
    return () => {
      channel.current.close();
      document.removeEventListener("visibilitychange", back);
    };
  }, [id, sync]);

  useEffect(() => {
    scrollTo({ top: document.body.scrollHeight });
  }, [messages]);

  const send = async (words, attached) => {
    sent.current = words;
    setText("");
    setFiles(null);
    const answered = sendMessage({ text: words, ...(attached?.length ? { files: attached } : {}) });
    setTimeout(tell, 50);
    await answered;
  };
  const stop = () => fetch(`${API}/${encodeURIComponent(id)}/stop`, { method: "POST" });
  const waiting = messages.at(-1)?.parts.some((part) => part.state === "approval-requested");

  return (
    <>
      <header>
        <div>
          <h1>Order desk</h1>
          <p>An agent with tools, on one page</p>
          <button onClick={() => location.assign(location.pathname)}>New chat</button>
        </div>
      </header>
      <main className="log" data-status={away ? "away" : status}>
        {!messages.length && (
          <div className="empty">
            <p>Ask about an order, or try one of these:</p>
            <ul>{EXAMPLES.map((each) => <li key={each}><button onClick={() => send(each)}>{each}</button></li>)}</ul>
          </div>
        )}
        {messages.map((message, at) => (
          <Message key={`${message.id} ${at}`} message={message} isLast={at === messages.length - 1} busy={busy}
            decide={addToolApprovalResponse} reply={send} />
        ))}
        {status === "submitted" && <p className="note dots">Thinking</p>}
        {away && <p className="note bad" role="alert">The connection is lost. Trying again…</p>}
        {status === "error" && !away && <p className="note bad" role="alert">{chat.error?.message}</p>}
      </main>
      <footer>
        {files?.length > 0 && <div className="chips row">{[...files].map((file) => <span className="file" key={file.name}>{file.name}</span>)}</div>}
        <form className="composer" onSubmit={(event) => { event.preventDefault(); if (text.trim() && !busy) send(text, files); }}>
          <label className="attach">File<input type="file" multiple onChange={(event) => setFiles(event.target.files)} /></label>
          <textarea rows={1} value={text} aria-label="Message" onChange={(event) => setText(event.target.value)}
            placeholder={waiting ? "Decide first" : "Ask about an order"} disabled={waiting}
            onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); event.target.form.requestSubmit(); } }} />
          {busy ? <button type="button" onClick={stop}>Stop</button> : <button className="send" disabled={!text.trim()}>Send</button>}
        </form>
      </footer>
    </>
  );
}

const ENDS = {
  cancelled: () => "Stopped.",
  failed: ({ error }) => error || "The run failed.",
  unanswered: ({ error }) => error || "The agent found no answer.",
  interrupted: () => "Interrupted.",
};

function Message({ message, isLast, busy, decide, reply }) {
  const { status, error } = message.metadata ?? {};
  return (
    <article className={`message ${message.role}`}>
      {message.parts.map((part, at) => <Part key={at} {...{ part, isLast, busy, decide, reply }} />)}
      {ENDS[status] && <p className={`note ${status === "cancelled" ? "" : "bad"}`}>{ENDS[status]({ error })}</p>}
    </article>
  );
}

function Part({ part, isLast, busy, decide, reply }) {
  const about = part.providerMetadata?.closeout ?? {};
  if (about.withdrawn) return null;
  if (part.type === "text") return part.text && <div className="text">{part.text}</div>;
  if (part.type === "reasoning") return <details className="reasoning"><summary>Thoughts</summary><div className="text">{part.text}</div></details>;
  if (part.type === "file") {
    const name = part.filename ?? about.filename ?? "file";
    if (/^image\/(png|jpeg|gif|webp)$/.test(part.mediaType)) return <img className="picture" src={part.url} alt={name} />;
    return <a className="file" href={part.url} download={name}>{name}</a>;
  }
  if (part.type === "data-question") {
    return (
      <section className="card ask">
        <div className="body">
          <p>{part.data.question}</p>
          {isLast && <div className="row">{part.data.options.map((option) => <button key={option} disabled={busy} onClick={() => reply(option)}>{option}</button>)}</div>}
        </div>
      </section>
    );
  }
  if (part.type === "data-wait") return <p className="note">Waiting for {part.data.for}.</p>;
  if (part.type === "data-message") return <p className="note">{part.data.by || "Someone"}: {part.data.text}</p>;
  if (!isToolUIPart(part)) return null;
  if (part.state === "approval-requested") return <Approval part={part} decide={decide} />;
  return getToolName(part) === "ask_user" ? null : <Call part={part} />; // its question is shown
}

function Approval({ part, decide }) {
  const answer = (approved) => decide({ id: part.approval.id, approved });
  return (
    <section className="card ask" aria-label="Approval">
      <div className="head"><span className="name">{getToolName(part)}</span><span className="state">needs your approval</span></div>
      <div className="body">
        {part.approval.descriptor?.reason && <p>{part.approval.descriptor.reason}</p>}
        <dl>{Object.entries(part.input ?? {}).flatMap(([name, value]) => [<dt key={name}>{name}</dt>, <dd key={`${name}=`}>{typeof value === "string" ? value : JSON.stringify(value)}</dd>])}</dl>
        <div className="row"><button onClick={() => answer(false)}>Decline</button><button onClick={() => answer(true)}>Approve</button></div>
      </div>
    </section>
  );
}

const STATES = {
  "output-available": ["done", "good"],
  "output-error": ["failed", "bad"],
  "output-denied": ["declined", "bad"],
};

function Call({ part }) {
  const [state, kind] = STATES[part.state] ?? ["running", "dots"];
  const shown = part.errorText ?? part.output;
  return (
    <details className="card">
      <summary><span className="name">{getToolName(part)}</span><span className={`state ${kind}`}>{state}</span></summary>
      <pre>{JSON.stringify(part.input, null, 2)}</pre>
      {shown != null && <pre>{typeof shown === "string" ? shown : JSON.stringify(shown, null, 2)}</pre>}
    </details>
  );
}

const id = chatId();
recorded(id).catch(() => []).then((initial) => {
  createRoot(document.getElementById("root")).render(<StrictMode><Chat id={id} initial={initial} /></StrictMode>);
});
