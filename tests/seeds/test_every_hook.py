"""Every hook of `closeout.compat.HOOKS` is called in every dialect and every way to run, and may fail."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal

import pytest

import closeout
from closeout import Agent, AnswerGenerator, Boxed, Capabilities, ToolExecutor, ToolManager, UsageError, tool
from closeout.compat import AWAITED, CALL, HOOKS, NOT_CALLED, QUESTION, REPLY, REQUEST, RESULT, RUN, VOCABULARY
from closeout.dialects.protocol import DIALECTS
from closeout.errors import ServerFailed
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say

WAYS = ("run", "stream", "session", "map", "resume", "sub-agent")
RUNNERS = (closeout.FunctionCallAgentRunner, closeout.CotChatAgentRunner, closeout.CotCompletionAgentRunner)
ONE_TEXT = ("cot_completion", closeout.CotChatAgentRunner, closeout.CotCompletionAgentRunner)
# What these make has no default in its place.
NEEDED = (
    closeout.BaseAgentRunner,
    closeout.CotAgentRunner,
    closeout.CotChatAgentRunner,
    closeout.CotAgentOutputParser,
    closeout.BaseClient,
)

Change = Callable[[str], None]  # called with the name of each hook before what it does


def hooks_of(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in HOOKS.get(base.__name__, ())]


def hooked(base: type, before: Change) -> Any:
    """A subclass whose hooks call a function first, and then do what those of the base class do."""

    def method(name: str) -> Any:
        def own(self: Any, *arguments: Any, **options: Any) -> Any:
            before(name)
            return getattr(super(made, self), name)(*arguments, **options)

        return own

    made = type(f"Own{base.__name__}", (base,), {name: method(name) for name in hooks_of(base)})
    return made


class Script:
    """Fails at first, finds no answer in the first attempt, and one in the second, after a call."""

    failed = learned = False

    def __call__(self, view: RequestView) -> Turn | Exception:
        if not self.failed:
            self.failed = True
            return ServerFailed("busy")
        if "is 42" in view.text:
            return answer(r"\boxed{42}")
        if self.learned:
            return call("scrape_website", url="a")
        self.learned = "Another attempt" in view.text
        return say("Failure type: none." if self.learned else "It is hard to say.")


@tool(name="scrape_website", read_only=True)
def scrape(url: str) -> str:
    """Read a page."""
    return f"{url} is 42"


class World:
    """An agent in which every hook is overridden, or those of one class."""

    def __init__(self, home: Path | Literal[False], kind: Any, before: Change, only: type = object) -> None:
        self.kinds: list[type] = []  # the subclasses

        def own(base: type) -> Any:
            self.kinds.append(hooked(base, before) if issubclass(base, only) else base)
            return self.kinds[-1]

        dialect = kind.dialect if isinstance(kind, type) else kind
        page = tool(name="scrape_website", read_only=True, approval="always")(scrape.function) if home else scrape
        model = own(ScriptedClient)(
            Script(),
            capabilities=Capabilities(completions=True, native_tools=dialect == "function_call", known=True),
        )
        model.retry = RetryPolicy(first_wait=0)
        self.home = home
        self.listeners = [own(closeout.TaskLog)(), own(closeout.StreamHandler)(None)]
        options: dict[str, Any] = {
            "answer": Boxed(),
            "home": home,
            "max_turns": 6,
            "context_compress_limit": 1,
            "output_formatter": own(closeout.OutputFormatter)(),
            "tool_executor": own(closeout.ToolExecutor),
            "answer_generator": own(closeout.AnswerGenerator),
            "telemetry": own(closeout.TelemetryCollector)(),
        }
        if dialect in ("cot_chat", "cot_completion"):
            options["output_parser"] = own(closeout.CotAgentOutputParser)
        tools = own(ToolManager)([page])
        self.runner = own(kind)(model, tools, "Be brief.", **options) if isinstance(kind, type) else None
        self.agent: Agent[Any] = (
            Agent(model, tools, dialect=kind, **options) if self.runner is None else self.runner.agent
        )

    async def ask(self, way: str) -> Any:
        if way == "run" and self.runner is not None:
            async for _ in self.runner.run("What is a?", listeners=self.listeners):
                pass
            return self.runner.result
        return await asked(self.agent, way, self.home, self.listeners)


async def asked(agent: Agent[Any], way: str, home: Path | Literal[False], listeners: Sequence[Any] = ()) -> Any:
    if way == "run":
        return await agent.run("What is a?", listeners=listeners)
    if way == "stream":
        stream = agent.stream("What is a?", listeners=listeners)
        async for _ in stream:
            pass
        return stream.result
    if way == "session":
        return await agent.session("s").run("What is a?", listeners=listeners)
    if way == "map":
        (result,) = [result async for result in agent.map(["What is a?"], listeners=listeners)]
        return result
    if way == "resume":
        waiting = await agent.run("What is a?")
        assert waiting.status == "waiting", waiting.error
        return await agent.resume(waiting.run_id, decisions={waiting.waiting[0].id: True}, listeners=listeners)
    model = ScriptedClient([call("helper", task="What is a?"), answer("42")])
    return await Agent(model, [agent.as_tool("helper", "Help.")], home=home).run("What is a?", listeners=listeners)


@pytest.fixture(autouse=True)
def demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_MODE", "1")


@pytest.mark.parametrize("kind", [*DIALECTS, *RUNNERS])
async def test_every_overridden_method_is_called(kind: Any, tmp_path: Path) -> None:
    if kind == "code":
        pytest.importorskip("pydantic_monty")
    for way in WAYS:
        seen: set[str] = set()
        world = World(tmp_path if way == "resume" else False, kind, seen.add)
        result = await world.ask(way)
        assert result.answer == "42", (way, result.error)
        # A conversation that is one text has no results to add to it, and only a runner itself has questions.
        without = {"update_message_history"} if kind in ONE_TEXT else set()
        without |= {"_init_react_state"} if isinstance(kind, type) and way != "run" else set()
        assert {name for each in world.kinds for name in hooks_of(each)} - seen == without, way


async def test_what_overrides_return_is_what_happens_in_every_way(tmp_path: Path) -> None:
    class Formatter(closeout.OutputFormatter):
        def _extract_boxed_content(self, text: str) -> str:
            return super()._extract_boxed_content(text).upper()

        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            summary, boxed, log = super().format_final_summary_and_log(final_answer_text, client)
            return f"{summary}\nThe end.", boxed, log

    class Executor(ToolExecutor):
        def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return {"url": f"{arguments['site']}!"} if "site" in arguments else arguments

        def post_process_tool_call_result(self, tool_name: str, tool_call_result: dict[str, Any]) -> dict[str, Any]:
            return {**tool_call_result, "result": f"read: {tool_call_result['result']}"}

        def format_tool_result_for_llm(self, tool_result: dict[str, Any]) -> dict[str, Any]:
            part = super().format_tool_result_for_llm(tool_result)
            return {**part, "text": f"shown: {part['text']}"}

    class Generator(AnswerGenerator):
        async def handle_llm_call(self, system_prompt: str, message_history: Any, *rest: Any, **options: Any) -> Any:
            history = [*message_history, {"role": "user", "content": "Mind the box."}]
            return await super().handle_llm_call(system_prompt, history, *rest, **options)

    for way in WAYS:
        home: Any = tmp_path if way == "resume" else False
        page = tool(name="scrape_website", read_only=True, approval="always")(scrape.function) if home else scrape
        model = ScriptedClient([call("scrape_website", site="a"), answer("abc")])
        parts: dict[str, Any] = {"tool_executor": Executor, "answer_generator": Generator}
        agent = Agent(model, [page], answer=Boxed(), output_formatter=Formatter(), home=home, **parts)
        result = await asked(agent, way, home)
        assert [request.messages[-1].text for request in model.requests] == ["Mind the box."] * 2, way
        assert model.requests[1].messages[-2].text == "shown: read: a! is 42", way
        if way == "sub-agent":
            assert "ABC" in str(result.tool_outputs[-1].result)
        else:
            assert result.answer == "ABC", way
            assert result.final_summary.endswith("The end."), way


@pytest.mark.parametrize("owner", HOOKS)
async def test_an_override_that_raises_is_named_and_costs_no_more_than_it_must(
    owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    base = getattr(closeout, owner)
    kind = next((each for each in RUNNERS if issubclass(each, base)), "cot_chat" if "Cot" in owner else None)
    for name, called_for in HOOKS[owner].items():

        def fail(called: str, name: str = name) -> None:
            if called == name:
                raise KeyError("gone")

        caplog.clear()
        world = World(False, kind or "function_call", fail, base)
        if called_for == QUESTION:
            with pytest.raises(KeyError):
                await world.ask("run")
            continue
        result = await world.ask("run")
        if called_for == RUN or (called_for in (REQUEST, REPLY) and base in NEEDED):
            assert (result.status, "KeyError: 'gone'" in result.error) == ("failed", True), name
        elif called_for in (CALL, RESULT) and result.answer is None:
            assert result.status == "unanswered", (name, result.error)
            assert all("gone" in output.telemetry.error_message for output in result.tool_outputs), name
        else:
            assert result.answer == "42", (name, result.error)
        said = [result.error, *result.warnings, str(result.telemetry.metrics), result.final_summary]
        if base is closeout.StreamHandler:  # its methods run beside the run, and may outlast it
            said.append(caplog.text)
        assert any("gone" in text for text in said), name


def use(owner: str, kind: Any) -> None:
    """Pass a subclass to an agent. Runners and logs are checked when they are defined."""
    if owner == "BaseClient":
        Agent(kind([]), home=False)
    elif owner in ("OutputFormatter", "TelemetryCollector"):
        Agent("local", **{"telemetry" if "Te" in owner else "output_formatter": kind()}, home=False)
    elif owner in ("ToolExecutor", "AnswerGenerator", "CotAgentOutputParser"):
        part = {"ToolExecutor": "tool_executor", "AnswerGenerator": "answer_generator"}
        Agent("local", **{part.get(owner, "output_parser"): kind}, home=False)


def test_an_async_override_that_no_run_awaits_is_refused_at_once() -> None:
    for owner, names in HOOKS.items():
        base: Any = ScriptedClient if owner == "BaseClient" else getattr(closeout, owner)
        for name in names:
            if name in AWAITED or iscoroutinefunction(getattr(base, name)):
                continue

            async def own(self: Any, *arguments: Any) -> None: ...

            with pytest.raises(UsageError, match=rf"^Mine\.{name} must be a plain function, got an async one\.$"):
                use(owner, type("Mine", (base,), {name: own}))


async def test_a_plain_override_of_an_async_method_is_called() -> None:
    class Generator(AnswerGenerator):
        def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            return super().handle_llm_call(*arguments, **options)  # not awaited here

        def generate_and_finalize_answer(self, **options: Any) -> Any:
            return "summary", "mine", None, "usage", options["message_history"]

    class Executor(ToolExecutor):
        def execute_single_tool_call(self, *arguments: Any) -> Any:
            return {"result": "from a plain function"}, 1, []

    class Client(ScriptedClient):
        def create_message(self, *arguments: Any, **options: Any) -> Any:
            return super().create_message(*arguments, **options)

    class Manager(ToolManager):
        def execute_tool_call(self, server_name: str, tool_name: str, arguments: Any) -> Any:
            return {"result": "from a plain manager"}

    class OfAnotherSystem:
        def get_all_tool_definitions(self) -> list[dict[str, Any]]:
            return [{"name": "srv", "tools": [{"name": "scrape_website", "schema": {"type": "object"}}]}]

        def execute_tool_call(self, **call: Any) -> dict[str, Any]:
            return {"result": "from another system"}

    seen: list[Any] = []

    class Handler(closeout.StreamHandler):
        def __init__(self) -> None:  # the base class needs no call
            self.sent = seen

        def tool_call(self, tool_name: str, payload: Any, *more: Any) -> Any:
            self.sent.append(payload)

    for tools, options, shown in (
        ([scrape], {"tool_executor": Executor, "answer_generator": Generator}, "from a plain function"),
        (Manager([scrape]), {}, "from a plain manager"),
        (OfAnotherSystem(), {}, "from another system"),
    ):
        seen.clear()
        model = Client([call("scrape_website", url="a"), answer("mine")])
        result = await Agent(model, tools, home=False, **options).run("?", listeners=[Handler()])  # type: ignore[arg-type]
        assert (result.answer, result.warnings) == ("mine", ()), shown
        assert model.requests[1].messages[-1].text == shown
        assert seen == [{"url": "a"}, {"result": shown}]


async def test_an_error_names_the_method_of_the_users_that_raised_it() -> None:
    class Runner(closeout.CotCompletionAgentRunner):
        def _organize_historic_prompt(self, current_session_messages: Any = None) -> str:
            raise KeyError("gone")

    class Adapted:
        async def create_message(self, **request: Any) -> Any:
            return "a response", request["message_history"]

        def process_llm_response(self, response: Any, history: Any, agent_type: str = "main") -> Any:
            raise KeyError("gone")

        def extract_tool_calls_info(self, response: Any, text: str) -> list[Any]:
            return []

    class Executor(ToolExecutor):
        def is_google_search_empty_result(self, tool_name: str, tool_result: Any) -> bool:
            raise KeyError("gone")  # called by a method of the base class

    class Generator(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            return await self.send()

        async def send(self) -> Any:
            raise KeyError("gone")

    class Log(closeout.TaskLog):
        def log_step(self, *arguments: Any) -> Any:
            raise KeyError("gone")

    def model() -> ScriptedClient:
        return ScriptedClient([call("scrape_website", url="a"), answer("42")])

    for agent, listeners, name in (
        (Runner(model(), [scrape], home=False).agent, [], "Runner._organize_historic_prompt"),
        (Agent(Adapted(), config={"llm": {"max_retries": 0}}, home=False), [], "Adapted.process_llm_response"),
        (Agent(model(), [scrape], tool_executor=Executor, home=False), [], "Executor.is_google_search_empty_result"),
        (Agent(model(), [scrape], answer_generator=Generator, home=False), [], "Generator.send"),
        (Agent(model(), [scrape], home=False), [Log()], "Log.log_step"),
    ):
        result = await agent.run("?", listeners=listeners)
        assert any(f"{name} raised" in text for text in (result.error, *result.warnings)), (name, result.error)


async def test_a_mistake_in_a_client_ends_the_run_at_its_first_request_and_names_the_method() -> None:
    class Mine:
        calls = 0

        async def complete(self, *arguments: Any, **options: Any) -> Any:
            self.calls += 1
            raise AttributeError("no such attribute")

        async def create_message(self, *arguments: Any, **options: Any) -> Any:
            self.calls += 1
            raise TypeError("no such argument")

        def process_llm_response(self, *arguments: Any, **options: Any) -> Any:
            self.calls += 1
            raise NameError("no such name")

        def extract_tool_calls_info(self, response: Any, text: str) -> Any: ...

    async def create_message(self: Any, question: str) -> Any: ...  # takes none of what a run passes

    async def fail_twice(self: Any, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls < 3:
            raise ValueError("The server is busy.")
        return await super(type(self), self).complete(*arguments, **options)

    class Sends(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            return await super().handle_llm_call(*arguments, **options)

    def made(**methods: Any) -> Any:
        own: Any = type("Mine", (ScriptedClient,), {"calls": 0, "retry": RetryPolicy(first_wait=0), **methods})
        return own([answer("42")] * 3)

    for model, name, calls in (
        (made(create_message=Mine.create_message), "create_message", 1),
        (made(create_message=create_message), "create_message", 0),
        (made(process_llm_response=Mine.process_llm_response), "process_llm_response", 1),
        (made(complete=Mine.complete), "complete", 1),
        (Mine(), "create_message", 1),
    ):
        for options in ({}, {"answer_generator": Sends}):
            model.calls = 0
            result = await Agent(model, home=False, **options).run("?")  # type: ignore[arg-type]
            assert (result.status, model.calls) == ("failed", calls), result.error
            assert f"Mine.{name} raised it." in result.error
    model = made(complete=Mine.complete)
    result = await Agent(closeout.Fallback([model, ScriptedClient([answer("42")])]), home=False).run("?")
    assert (result.status, model.calls) == ("failed", 1)
    assert "Mine.complete raised it." in result.error
    model = made(complete=fail_twice)
    assert ((await Agent(model, home=False).run("?")).answer, model.calls) == ("42", 3)


async def test_a_listener_that_is_not_made_whole_costs_the_run_nothing() -> None:
    class Unmade(closeout.TaskLog):
        def __init__(self) -> None: ...

    result = await Agent(ScriptedClient([answer("42")]), home=False).run("?", listeners=[Unmade()])
    assert result.answer == "42"
    assert "Unmade.__call__ raised AttributeError" in result.warnings[0]


async def test_an_override_that_returns_another_shape_is_named_with_the_shape() -> None:
    none = lambda *arguments, **options: None  # noqa: E731
    for base, name, shape in (
        (AnswerGenerator, "handle_llm_call", r"\(response_text, should_break, tool_calls_info, message_history\)"),
        (AnswerGenerator, "generate_and_finalize_answer", r"\(final_summary, .*, message_history\)"),
        (ToolExecutor, "is_duplicate_query", r"\(is_duplicate, previous_count\)"),
        (ToolExecutor, "execute_single_tool_call", r"\(tool_result, duration_ms, tool_calls_data\)"),
        (closeout.OutputFormatter, "_extract_boxed_content", "a string"),
        (ScriptedClient, "process_llm_response", r"\(text, should_break, message_history\)"),
        (closeout.CotChatAgentRunner, "_organize_instruction_prompt", "a string"),
        (closeout.CotCompletionAgentRunner, "_format_assistant_message", "a string"),
        (closeout.CotCompletionAgentRunner, "_organize_prompt_messages", "a list of PromptMessages"),
        (closeout.CotChatAgentRunner, "_handle_invoke_action", r"\(observation, what is known of the call\)"),
        (ToolExecutor, "fix_tool_call_arguments", "a dict"),
        (closeout.OutputFormatter, "format_final_summary_and_log", r"\(summary_text, boxed_result, log_string\)"),
    ):
        mine: Any = type("Mine", (base,), {name: none})
        script: Any = [call("scrape_website", url="a"), answer("42")]
        model = mine(script) if base is ScriptedClient else ScriptedClient(script)
        if issubclass(base, closeout.BaseAgentRunner):
            agent: Agent[Any] = mine(model, [scrape], home=False).agent
        else:
            parts = {AnswerGenerator: "answer_generator", ToolExecutor: "tool_executor"}
            options = {parts[base]: mine} if base in parts else {}
            if base is closeout.OutputFormatter:
                options = {"output_formatter": mine()}
            agent = Agent(model, [scrape], answer=Boxed(), home=False, **options)
        result = await agent.run("?")
        said = "\n".join((result.error, *result.warnings, *(str(message) for message in result.messages)))
        assert re.search(rf"Mine\.{name} must return {shape}, got None", said), said


async def test_a_runner_and_an_executor_may_both_make_the_calls() -> None:
    seen: list[str] = []
    runner = hooked(closeout.CotChatAgentRunner, seen.append)
    executor = hooked(closeout.ToolExecutor, seen.append)
    for tools in (ToolManager([scrape]), [scrape]):
        model = ScriptedClient([call("scrape_website", url="a"), answer("42")])
        made = runner(model, tools, tool_executor=executor, answer=Boxed(), home=False)
        seen.clear()
        async for _ in made.run("What is a?"):
            pass
        assert made.result.answer == "42"
        assert seen.index("_handle_invoke_action") < seen.index("execute_single_tool_call")
    with pytest.raises(UsageError, match="must be a class"):
        _ = runner(model, [scrape], tool_executor=lambda **options: None).agent
    with pytest.raises(UsageError, match="is not called with agent="):
        _ = runner(agent=Agent(model, [scrape], home=False)).agent


def test_a_method_that_no_run_calls_is_said_with_what_to_write_instead() -> None:
    for owner, names in NOT_CALLED.items():
        base: Any = ScriptedClient if owner == "BaseClient" else getattr(closeout, owner)
        for name, instead in names.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made = type("Mine", (base,), {name: lambda self: None})
                if owner == "BaseClient":
                    Agent(made([]), home=False)
                if owner == "ToolManager":
                    Agent(ScriptedClient([]), made(), home=False)
                if owner == "CotAgentOutputParser":
                    Agent(ScriptedClient([]), output_parser=made, dialect="cot_chat", home=False)
                if owner == "Orchestrator":
                    made(llm_client=ScriptedClient([]))
            assert [str(each.message) for each in caught] == [f"Mine.{name} is never called. {instead}"]


def test_a_client_in_a_list_of_models_says_which_methods_are_never_called() -> None:
    own: Any = type("Mine", (ScriptedClient,), {"create_message": lambda self: None})
    with pytest.warns(UserWarning, match=r"^Mine\.create_message is never called in a list of models\. Override comp"):
        Agent([own([]), ScriptedClient([])], home=False)


def test_the_index_names_methods_that_exist() -> None:
    for owner, names in HOOKS.items():
        assert all(callable(getattr(getattr(closeout, owner), name)) for name in names), owner
        assert any(owner in names for names in VOCABULARY.values()), owner
