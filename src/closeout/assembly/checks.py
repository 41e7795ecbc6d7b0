"""Check what a user passes to an Agent or a run before anything starts. Every error names the fix.

Settings are checked in `config`, tools in `tools`, model names in `models.connect`, servers in `tools.mcp.mcp_config`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolDefinitionError, UsageError
from closeout.file_values import MAX_FILES, File
from closeout.homes import DatabaseHome
from closeout.spelling import suggestion

if TYPE_CHECKING:
    from closeout.journal.subscribers import Listener
    from closeout.tools.flow import Flow

__all__ = [
    "check_callable",
    "check_files",
    "check_flow",
    "check_history",
    "check_home",
    "check_instructions",
    "check_limit",
    "check_list",
    "check_listeners",
    "check_part",
    "check_run_id",
    "check_state",
    "check_task",
    "check_tasks",
    "check_text",
    "check_time",
    "check_user",
    "refuse_parameters",
    "refuse_unfamiliar",
    "refuse_unknown",
]

MAX_USER = 512  # characters
ROLES = ("system", "developer", "user", "assistant", "tool")
# The keys of messages in vendors' SDKs; an unknown key is a misspelling.
MESSAGE_KEYS = (
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "refusal", "annotations",
    "attached", "audio", "function_call", "id", "type", "status", "cache_control",
)  # fmt: skip
# Names that other frameworks use for the parameters of an Agent.
FAMILIAR = {
    "instructions": ("system_prompt", "system", "system_message", "prompt", "instruction", "role_description"),
    "answer": (
        "output_type",
        "result_type",
        "response_format",
        "response_model",
        "output_schema",
        "output",
        "text_format",
    ),
    "model": ("llm", "client", "model_name", "llm_client", "model_id"),
    "tools": ("functions", "tool_list", "toolset", "toolsets"),
    "mcp_servers": ("mcp", "mcp_server", "mcp_config"),
    "max_turns": ("max_steps", "max_iterations", "max_iter", "recursion_limit", "max_loops", "turns"),
    "max_tokens": ("max_output_tokens", "max_completion_tokens", "max_new_tokens"),
    "max_seconds": ("timeout", "max_time", "max_execution_time", "time_limit", "deadline"),
    "max_cost": ("max_budget", "cost_limit", "max_price"),
    "base_url": ("url", "api_base", "endpoint", "base_uri", "openai_api_base"),
    "api_key": ("key", "token", "openai_api_key"),
    "stream": ("streaming",),
    "config": ("settings", "cfg", "configuration"),
    "check": ("final_answer_checks", "output_validators", "output_validator", "output_guardrails"),
    "deps_type": ("context_type", "context_schema"),
    "code_mode": ("use_code",),
}
# Settings that belong elsewhere.
ELSEWHERE = {
    "top_p": "Pass config={'llm': {'top_p': …}}.",
    "model_settings": "Pass temperature= and max_tokens=, or config={'llm': {…}}.",
    "extra_body": "Pass config={'llm': {'extra_body': {…}}}.",
    "history": "Pass history= to run(…).",
    "messages": "Pass history= to run(…).",
    "callbacks": "Pass listeners=, here or to run(…).",
    "memory": "Use agent.session(…), or pass history= to run(…).",
    "sub_agents": "Pass tools=[other.as_tool(name, description)].",
    "deps": "Pass deps= to run(…), and deps_type= here.",
    **dict.fromkeys(
        ("fallback_models", "fallbacks", "fallback"),
        "Pass model=['openai:a', 'anthropic:b'] or Fallback(…); see docs/fallback.md.",
    ),
    "hooks": "Pass listeners= to run(…) to watch, or tool_executor=, check=, context= or strategy= to decide; "
    "see docs/extending.md.",
    "stream_handler": "Pass listeners=[MyStreamHandler(queue)] to run(…).",
    "task_log": "Pass listeners=[MyTaskLog()] to run(…). The log of a run is also result.task_log.",
    "orchestrator": "The loop calls what you pass: strategy=, dialect=, context=, tool_executor=, answer_generator=.",
    **dict.fromkeys(
        ("verbose", "verbosity_level", "debug", "instrument"),
        "Pass listeners=[print] to run(…), or look at the run with `closeout view`.",
    ),
    **dict.fromkeys(
        ("input_guardrails", "guardrails"),
        "Check the task before run(…), or beside it and cancel it; pass check= for answers: see docs/coming-from.md.",
    ),
    "tool_choice": "Pass strategy=RequireCall() to demand a call first.",
    "tool_use_behavior": "Declare the tool with @tool(gives_answer=True): its result ends the run.",
    "end_strategy": "Declare a tool with @tool(gives_answer=True): its result ends the run.",
    "handoff_description": "Pass handoffs=[Handoff(agent, description='…')] to the other agent.",
    "description": "Pass it where the agent is used: agent.as_tool(name, description), Handoff(…, description=…).",
    "managed_agents": "Pass tools=[other.as_tool(name, description)].",
    "usage_limits": "Pass max_turns=, max_cost=, max_seconds= or budget={'this task': '15 requests'}.",
    **dict.fromkeys(
        ("retries", "output_retries", "tool_retries", "max_retries"),
        "Declare a tool with @tool(retries=…); pass Check(function, times=…) for answers, "
        "config={'llm': {'max_retries': …}} for requests.",
    ),
    **dict.fromkeys(
        ("checkpointer", "store", "persistence"),
        "Runs are recorded in home=; use agent.resume(…) and agent.session(…).",
    ),
    **dict.fromkeys(
        ("interrupt_before", "interrupt_after", "interrupt_on"), "Declare the tool with @tool(approval='always')."
    ),
    **dict.fromkeys(
        ("prepare_tools", "is_enabled"),
        "Use agent.with_tools(names) for a run, or @tool(needs_state='name') within one.",
    ),
    **dict.fromkeys(
        ("history_processors", "pre_model_hook", "middleware", "capabilities"),
        "Pass context=, strategy=, dialect= or tool_executor=; see docs/extending.md.",
    ),
    **dict.fromkeys(("state_schema", "initial_state"), "Pass state= to run(…)."),
    **dict.fromkeys(
        ("thinking", "reasoning_effort", "seed", "stop", "parallel_tool_calls"),
        "Pass config={'llm': {'extra_body': {…}}}.",
    ),
}
# Names that other frameworks use for the arguments of a run, and the way to do it here.
RUN_FAMILIAR = {
    "message_history": "Pass history=.",
    "messages": "Pass history=.",
    "context": "Pass deps=.",
    "session": "Use agent.session(id).run(…).",
    "session_id": "Use agent.session(id).run(…).",
    "thread_id": "Use agent.session(id).run(…).",
    "conversation_id": "Use agent.session(id).run(…).",
    "previous_response_id": "Use agent.session(id).run(…).",
    "reset": "Use agent.session(id).run(…).",
    "hooks": "Pass listeners=.",
    "callbacks": "Pass listeners=.",
    "event_stream_handler": "Pass listeners=.",
    "usage_limits": "Pass max_turns=, max_cost=, max_seconds= or budget={'this task': '15 requests'}.",
    "usage": "Pass budget={'this task': '15 requests'} to all runs that share a limit; result.usage values add up.",
    "max_steps": "Pass max_turns=.",
    "recursion_limit": "Pass max_turns=.",
    "timeout": "Pass max_seconds=.",
    "output_type": "Use agent.with_answer(type).run(…).",
    "response_format": "Use agent.with_answer(type).run(…).",
    "model": "Use agent.with_model(model).run(…).",
    "images": "Pass files=.",
    "additional_args": "Pass deps= for tools, files= for the model.",
    "metadata": "Pass origin=.",
    "instructions": "It is set on the Agent; a function of the context may write it for each run.",
}

# Names that other frameworks use for the methods of an Agent.
METHODS = {
    **dict.fromkeys(("invoke", "ainvoke", "kickoff", "chat", "ask", "execute"), "Use run(…) or run_sync(…)."),
    **dict.fromkeys(("run_stream", "astream", "run_streamed", "iter", "stream_events"), "Use stream(…)."),
    **dict.fromkeys(("tool", "tool_plain", "add_tool"), "Pass tools=[…], functions with @tool."),
    **dict.fromkeys(("output_validator", "result_validator"), "Pass check=."),
    **dict.fromkeys(("batch", "abatch", "kickoff_for_each"), "Use run_many(…) or map(…)."),
}

# The kind of an argument's object, its methods, and what to pass.
PARTS = {
    "context": ("a ContextPolicy", ("decide",), "an instance with a decide(state) method"),
    "output_formatter": (
        "an OutputFormatter",
        ("format_tool_result_for_user", "format_final_summary_and_log"),
        "an instance: MyFormatter()",
    ),
    "telemetry": ("a TelemetryCollector", ("record",), "an instance: TelemetryCollector()"),
    "webhook": ("a Webhook", ("events", "send"), "webhook=Webhook(url, secret)"),
}


def check_list(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Return the items of a list. A string is refused: it would pass for a list of its letters."""
    try:
        if not isinstance(value, (str, bytes)):
            return tuple(value)
    except TypeError:
        pass
    raise UsageError(f"{name} must be a list, got {value!r:.80}. Pass {name}={example}.")


def refuse_unknown(unknown: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise UsageError for arguments that a function does not have, with the name to use."""
    if not unknown:
        return
    from inspect import signature

    known = [name for name in signature(function).parameters if name != "unknown"]
    name = next(iter(unknown))
    own = next((own for own, others in FAMILIAR.items() if name in others), "")
    near = (
        "" if own or name in ELSEWHERE else next(iter(difflib.get_close_matches(name, (*known, *ELSEWHERE), n=1)), "")
    )
    own = own or (near if near in known else "")
    hint = ELSEWHERE.get(name) or ELSEWHERE.get(near) or (f"Use {own}=." if own else f"It has: {', '.join(known)}.")
    raise UsageError(f"Agent has no parameter {name!r}. {hint}")


def refuse_unfamiliar(given: Iterable[str]) -> None:
    """Raise UsageError for an argument of a run that another framework calls so, with the way to do it here."""
    if name := next((name for name in given if name in RUN_FAMILIAR), None):
        raise UsageError(f"A run has no argument {name!r}. {RUN_FAMILIAR[name]}")


def refuse_parameters(given: Iterable[str]) -> None:
    """Raise ToolDefinitionError for a schema of a sub-agent's task: a function describes it."""
    if name := next((name for name in given if name in ("parameters", "input_type", "input_builder")), None):
        raise ToolDefinitionError(
            f"as_tool has no argument {name!r}. "
            "Pass task=function: its parameters are those of the tool, its text is the task."
        )


def check_flow(value: Any) -> Flow | None:
    """Return the flow rules of an agent, from a `Flow`, its arguments as a mapping, or None.

    Raises:
        UsageError: It is something else, or a policy cannot be imported.
    """
    if value is None:
        return None
    from closeout.tools.flow import Flow

    if isinstance(value, Flow):
        return value
    if not isinstance(value, Mapping):
        raise UsageError(f"flow must be a Flow, got {value!r:.80}. Pass flow=Flow(trusted=['my_tool']).")
    from closeout.assembly.named import named_object

    given, known = dict(value), Flow.__dataclass_fields__
    if unknown := next((str(name) for name in given if name not in known), None):
        hint = suggestion(unknown, known, f"It takes: {', '.join(known)}.")
        raise UsageError(f"flow has no rule {unknown!r}. {hint}")
    try:
        policies = [named_object(each) if isinstance(each, str) else each for each in given.pop("policies", ())]
        return Flow(**given, policies=policies)
    except TypeError as error:
        raise UsageError(f"flow is not valid: {error}. It takes the arguments of Flow, such as trusted.") from None


def check_text(name: str, value: Any) -> str:
    """Return a text, empty for None."""
    if not isinstance(value, str | None):
        raise UsageError(f"{name} must be a string, got {value!r:.80}. Join several parts into one string.")
    return value or ""


def check_home(value: Any) -> Any:
    """Return a home. None and True mean the default one, False means none."""
    if not isinstance(value, str | os.PathLike | DatabaseHome | bool | None):
        raise UsageError(
            f"home must be a path, got {value!r:.80}. Pass a folder, postgresql://…, or False to keep runs in memory."
        )
    return value


def check_part(name: str, value: Any) -> Any:
    """Return an object of one of the kinds in `PARTS`, or None. A class is refused."""
    kind, methods, example = PARTS[name]
    if value is not None and (isinstance(value, type) or not any(hasattr(value, method) for method in methods)):
        raise UsageError(f"{name} must be {kind}, got {value!r:.80}. Pass {example}.")
    if missing := [method for method in methods if value is not None and not hasattr(value, method)]:
        raise UsageError(f"{name} must be {kind}, and {type(value).__name__} has no {' and no '.join(missing)}.")
    return value


def check_strategy(value: Any) -> Any:
    """Return a strategy, or None."""
    from closeout.run.strategy import Strategy

    if value is None or (isinstance(value, Strategy) and not isinstance(value, type)):
        return value
    raise UsageError(
        f"strategy must be a Strategy such as Majority(3), got {value!r:.80}. It has name, version, ask()."
    )


def check_callable(name: str, base: str, value: Any) -> Any:
    """Return a class or a factory, or None."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} must be a subclass of {base}, got {value!r:.80}. Pass the class: {name}=My{base}.")
    return value


def check_instructions(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that writes the instructions. It takes the `RunContext` as its only argument."""
    from inspect import signature

    try:
        signature(write).bind(None)
    except TypeError as error:
        raise UsageError(
            f"The function of the instructions is called with the RunContext: {error}. "
            "Write it as def instructions(context): …"
        ) from None
    except ValueError:  # a function of C says nothing
        pass
    return write


def check_task(value: Any) -> str:
    """Return the text of a task."""
    if not isinstance(value, str):
        raise UsageError(f"The task must be a string, got {value!r:.80}. Pass an earlier conversation as history=.")
    if not value.strip():
        raise UsageError("The task is empty. Say what the agent should find out or do.")
    return value


def check_tasks(value: Any) -> Any:
    """Return tasks to iterate over. A string is refused: it would pass for a list of its letters."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable | AsyncIterable):
        raise UsageError(f"tasks must be a list of tasks, got {value!r:.80}. Pass ['first task', 'second task'].")
    return value


def check_limit(value: Any) -> int:
    """Return how many runs may be executed at the same time."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"limit must be a whole number from 1 on, got {value!r:.80}. Pass limit=20.")
    return value


def check_priority(value: Any) -> int:
    """Return the priority of a run."""
    from closeout.fleet.working import MAX_PRIORITY

    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PRIORITY:
        raise UsageError(
            f"priority must be a whole number from 0 to {MAX_PRIORITY}, got {value!r:.80}. Pass priority=5."
        )
    return value


def check_time(name: str, value: Any) -> datetime | None:
    """Return a time with a time zone, or None."""
    if value is None or (isinstance(value, datetime) and value.utcoffset() is not None):
        return value
    example = "datetime.now(UTC) + timedelta(hours=1)"
    raise UsageError(f"{name} must be a datetime with a time zone, got {value!r:.80}. Pass {example}.")


def check_run_id(value: Any) -> str:
    """Return the id of a new run; empty: a new one is made."""
    if not isinstance(value, str) or not value.isprintable():
        raise UsageError(f"run_id must be a printable text, got {value!r:.80}.")
    return value


def check_user(value: Any) -> str:
    """Return the name of the person for whom a run is."""
    if not isinstance(value, str) or len(value) > MAX_USER or not value.isprintable():
        raise UsageError(f"user must be a printable text of at most {MAX_USER} characters, got {value!r:.80}.")
    return value


def check_files(files: Any) -> Sequence[str | Path | File]:
    """Return the files of a task: paths, and files as values."""
    if isinstance(files, str | Path | File) or not isinstance(files, Sequence):
        raise UsageError(f"files must be a list, got {files!r:.80}. For one file, pass files=['report.pdf'].")
    for each in files:
        if not isinstance(each, str | os.PathLike | File):
            raise UsageError(f"files must hold paths or File objects, got {each!r:.80}. Pass File(name, content).")
    return files


def check_work_files(files: Any) -> tuple[File, ...]:
    """Return files as they are, in a tuple.

    Raises:
        UsageError: Something in them is no `File`, or they are too many.
    """
    if isinstance(files, str | Path | File) or not isinstance(files, Sequence):
        raise UsageError(f"work_files must be a list of File, got {files!r:.80}. Pass work_files=result.files.")
    for each in files:
        if not isinstance(each, File):
            raise UsageError(f"work_files must hold File objects, got {each!r:.80}. Pass File.from_path(…).")
    if len({file.name.casefold() for file in files}) < len(files):
        raise UsageError("Two of work_files have the same name.")
    if len(files) > MAX_FILES:
        raise UsageError(f"{len(files)} work_files are too many for a run, which keeps {MAX_FILES}.")
    return tuple(files)


def check_history(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the messages before the task. A server would refuse any others, if at all."""
    messages: tuple[Any, ...] = check_list("history", value, '[{"role": "user", "content": "…"}]')
    called: set[str] = set()
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            raise UsageError(
                f"history must hold messages, got {message!r:.80}. Write each as "
                '{"role": "user", "content": "…"}, or with "assistant".'
            )
        if unknown := next((key for key in message if key not in MESSAGE_KEYS), None):
            hint = suggestion(str(unknown), MESSAGE_KEYS, f"A message has {', '.join(MESSAGE_KEYS[:4])}.")
            raise UsageError(f"A message of history has the unknown key {unknown!r}: {message!r:.80}. {hint}")
        if message.get("content") is None and not message.get("tool_calls"):
            raise UsageError(f"A message of history has no content: {message!r:.80}. Write it under 'content'.")
        if not isinstance(message.get("content"), str | list | tuple | None):
            raise UsageError(f"The content of a message must be a string or a list of parts, got {message!r:.80}.")
        called.update(str(call["id"]) for call in message.get("tool_calls") or () if "id" in call)
        if role == "tool" and message.get("tool_call_id") not in called:
            raise UsageError(
                f"Message {number} of history is the result of a call that is in no message before it: "
                f"{message!r:.80}. Add the assistant's message with the call, or leave the result out."
            )
    return messages


def check_state(value: Any) -> Mapping[str, Any]:
    """Return the state that a run begins with, as JSON values."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"state must be a mapping of names to JSON values, got {value!r:.80}.")
    from closeout.results.normal import EncodingError, normalise

    try:
        found: Mapping[str, Any] = normalise(value, strict=True)
    except EncodingError as error:
        raise UsageError(f"state must be JSON values, since it is recorded: {error}") from None
    return found


def check_middleware(value: Any) -> tuple[Any, ...]:
    """Return middleware: instances, and classes or functions that make one for an `AgentPlace`."""
    from closeout.run.middleware.chain import Middleware

    found = check_list("middleware", value, "[MyMiddleware()]")
    for each in found:
        if not isinstance(each, Middleware) and not callable(each):
            raise UsageError(
                f"middleware must hold Middleware objects, or what makes one, got {each!r:.80}. Pass an instance of a "
                "subclass of closeout.Middleware."
            )
    return found


def check_listeners(value: Any) -> tuple[Listener, ...]:
    """Return listeners. A class or a coroutine function is refused: it could be called, and would do nothing."""
    found = check_list("listeners", value, "[print]")
    if not found:
        return ()
    from inspect import iscoroutinefunction

    for listener in found:
        if isinstance(listener, type) or not (callable(listener) or hasattr(listener, "for_run")):
            raise UsageError(
                f"A listener must be callable, got {listener!r:.80}. "
                "Pass a function, or an instance of a listener: JsonLogListener()."
            )
        if iscoroutinefunction(listener) or iscoroutinefunction(getattr(listener, "__call__", None)):  # noqa: B004
            raise UsageError(
                f"A listener must be a plain function, got the async {listener!r:.80}. "
                "Pass asyncio.Queue().put_nowait for example, or use agent.stream(…)."
            )
    return found
