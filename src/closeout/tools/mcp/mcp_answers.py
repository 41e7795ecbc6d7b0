"""Answers what an MCP server asks during one call: by the rule of its entry, by a person, or by the agent's model.

Before the protocol of 2026-07-28 a server sends its question as a request of its own while the call is under way. Since
then the call ends with what it needs, and is made again with the answers and the state that the server wants back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from closeout.errors import CloseoutError, Suspended, ToolError
from closeout.messages import Message, ModelRequest
from closeout.parsing.reasoning import split_thinking
from closeout.tools.mcp.mcp_config import McpServerConfig
from closeout.tools.mcp.mcp_questions import McpQuestion, QuestionRefused, read_form, ruled_answer
from closeout.tools.run_context import RunContext, ServerAnswer

if TYPE_CHECKING:
    from mcp import MCPError, types
    from mcp.client.session import ClientSession

    from closeout.tools.mcp.mcp_tasks import TaskRequests

__all__ = ["CallAnswers", "roots_of"]

# A server may ask this often during one call.
MAX_QUESTIONS = 20
MAX_ROUNDS = 30
MAX_PROMPT = 200_000  # Characters that a server may send to the model at once.
MAX_REPLY = 8_192  # Tokens of a reply to a server.
MAX_STOPS = 4  # Every vendor takes this many stop sequences.
MAX_STATE = 100_000  # A longer state of a server, in characters, is not recorded.
CANCEL_SECONDS = 3.0  # Seconds to wait for a server to cancel a task.
# Seconds between two requests for the state of a task.
POLL_LEAST, POLL_MOST = 0.1, 10.0
# Seconds that a run stays with a task that it may leave, and the most between two looks at it.
STAY_SECONDS, LONGEST_REST = 10.0, 86_400.0
STATE_SECONDS = 0.25  # Seconds before a call is repeated whose server needs time and no input.
# Seconds between two extensions of a call's deadline while an answer is being made.
ALIVE_SECONDS = 5.0
ELICITATION = "elicitation/create"

Answer = TypeVar("Answer")


class CallAnswers:
    """The answers to what a server asks during one call.

    Attributes:
        stopped: Why the call must be given up, once it must: a person is to answer, or the server asks too much.
        over: Set when the call has ended.
        alive: Called with a message while an answer is being made, or a task, to extend the call's deadline.
        task: The task that the call has become.

    Args:
        config: The server.
        context: The call's place in the run.
    """

    def __init__(self, config: McpServerConfig, context: RunContext[Any]) -> None:
        self._config = config
        self._questions = None if context.questions is None else context.questions()
        self._model = context.sample
        self._known: list[ServerAnswer] = []
        self._count = 0
        self._round = 0
        self.stopped: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.alive: Callable[[str], object] = lambda message: None
        self.task: TaskRequests | None = None

    async def begin(self) -> None:
        """Take the answers that the run has already. Raises Suspended if one is missing: then no call is made."""
        if self._questions is not None:
            self._known = await self._questions.recall(by_person=self._config.elicitation == "ask")

    # ---------------------------------------------------------------------------------------- one question

    async def elicit(self, params: Any) -> types.ElicitResult | types.ErrorData:
        """Answer a request of the server's that arrives during the call."""
        from mcp.types import INVALID_PARAMS, INVALID_REQUEST, ErrorData

        try:
            answer = await self._ask(params, None)
            await self._give([answer])
            return _result(answer)
        except QuestionRefused as error:
            return ErrorData(code=INVALID_PARAMS, message=str(error))
        except (Exception, Suspended) as reason:
            if not self.stopped.done():
                self.stopped.set_result(reason)
            # An answer now, such as "cancel", would let the server continue.
            await self.over.wait()
            return ErrorData(code=INVALID_REQUEST, message="The call was given up while its question was open.")

    async def sampled(self, params: Any) -> types.CreateMessageResult | types.ErrorData:
        """Ask the agent's model for the server."""
        from mcp.types import INVALID_REQUEST, ErrorData

        try:
            return await self._sample(params)
        except (QuestionRefused, CloseoutError) as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))

    async def _sample(self, params: Any) -> types.CreateMessageResult:
        from mcp.types import CreateMessageResult, TextContent

        self._count_question()
        if self._model is None:
            raise QuestionRefused("There is no model to ask outside of an agent's call.")
        if params.tools:
            raise QuestionRefused("Sampling with tools is not supported.")
        messages = [] if not params.system_prompt else [Message(role="system", content=params.system_prompt)]
        messages += [Message(role=each.role, content=_text(each.content)) for each in params.messages]
        if sum(len(each.text) for each in messages) > MAX_PROMPT:
            raise QuestionRefused(f"The messages must have at most {MAX_PROMPT:,} characters.")
        request = ModelRequest(
            messages=tuple(messages),
            max_tokens=max(1, min(params.max_tokens, MAX_REPLY)),
            temperature=params.temperature,
            stop=tuple(params.stop_sequences or ())[:MAX_STOPS],
        )
        reply = await self._kept_alive(self._model(request))
        return CreateMessageResult(
            role="assistant",
            content=TextContent(text=split_thinking(reply.text)[1].strip()),
            model=reply.model or "unknown",
            stop_reason="maxTokens" if reply.finish_reason == "length" else "endTurn",
        )

    def _count_question(self) -> None:
        self._count += 1
        if self._count > MAX_QUESTIONS:
            raise ToolError(f"MCP server {self._config.name!r} asked more than {MAX_QUESTIONS} questions in one call.")

    async def _ask(self, params: Any, context: Mapping[str, Any] | None) -> ServerAnswer:
        self._count_question()
        question = McpQuestion.of(self._config.name, params)
        rule = partial(self._by_rule, question)
        given = question.arguments()
        if self._questions is not None:
            return await self._questions.ask(given if context is None else {**given, "context": context}, rule)
        found = await rule()  # outside of a run there is nobody to ask
        accepted, text = (False, "cancel") if found is None else found
        return ServerAnswer(request="", digest="", question=given, accepted=accepted, text=text)

    async def _by_rule(self, question: McpQuestion) -> tuple[bool, str] | None:
        try:
            return await self._kept_alive(ruled_answer(self._config.elicitation, question))
        except Exception as error:
            raise ToolError(
                f"The function that answers the MCP server {self._config.name!r} raised {type(error).__name__}: {error}"
            ) from error

    async def _kept_alive(self, answer: Awaitable[Answer]) -> Answer:
        """Wait for an answer that is being made. That does not count as the server's time."""
        answering = asyncio.ensure_future(answer)
        try:
            while not (await asyncio.wait((answering,), timeout=ALIVE_SECONDS))[0]:
                self.alive("waits for an answer")
            return answering.result()
        finally:
            answering.cancel()

    async def _give(self, answers: list[ServerAnswer]) -> None:
        if self._questions is not None:
            await self._questions.give(answers)

    # ---------------------------------------------------------------------------------------- calls in rounds

    async def in_rounds(
        self,
        session: ClientSession,
        send: Callable[[types.InputResponses | None, str | None], Awaitable[types.Result]],
    ) -> types.CallToolResult:
        """Make a call, and again with answers for as long as the server needs input; or follow the call's task."""
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS, CallToolResult, InputRequiredResult

        if self._questions is not None and (task := self._questions.task()):
            await self._questions.rested()
            return await self._followed(session, task)
        responses, state = await self._resumed()
        is_resumed = responses is not None
        for _ in range(MAX_ROUNDS):
            try:
                result = await send(responses, state)
            except MCPError as error:
                if not is_resumed or error.code != INVALID_PARAMS:
                    raise
                # The state has expired, or was of an earlier process: the call is made from its beginning.
                result, self._round = await send(None, None), 0
            is_resumed = False
            if isinstance(result, CallToolResult):
                return result
            if not isinstance(result, InputRequiredResult):
                task = str(getattr(result, "task_id", ""))
                if self._questions is not None:
                    await self._questions.became(task)
                return await self._followed(session, task)
            responses, state = None, result.request_state
            if result.input_requests:
                responses = await self._answer_all(result.input_requests, state)
            else:
                await asyncio.sleep(STATE_SECONDS)
        raise ToolError(f"MCP server {self._config.name!r} still needs input after {MAX_ROUNDS} rounds of one call.")

    async def _followed(self, session: ClientSession, task: str) -> types.CallToolResult:
        """Ask for the result of a task until it is there."""
        from mcp.types import CallToolResult

        from closeout.tools.mcp.mcp_tasks import TaskRequests

        self.task = TaskRequests(session, task)
        answered: set[str] = set()
        may_leave = self._config.tasks == "leave" and self._questions is not None
        end = asyncio.get_running_loop().time() + STAY_SECONDS
        while True:
            state = await self.task.state()
            if state.status == "completed":
                return CallToolResult.model_validate(state.result)
            if state.status in ("failed", "cancelled"):
                said = (state.error or {}).get("message") or state.status_message or state.status
                raise ToolError(f"The task of MCP server {self._config.name!r} ended: {said}")
            wanted = {key: each for key, each in (state.input_requests or {}).items() if key not in answered}
            if state.status == "input_required" and wanted:
                await self.task.update(await self._answer_all(wanted, None))
                answered.update(wanted)
            self.alive(state.status_message or "works on a task")
            pause = max((state.poll_interval_ms or 1_000) / 1_000, POLL_LEAST)
            if may_leave and (pause > STAY_SECONDS or asyncio.get_running_loop().time() > end):
                assert self._questions is not None
                await self._questions.rest(min(pause, LONGEST_REST))
            await asyncio.sleep(min(pause, POLL_MOST))

    def is_to_end(self) -> bool:
        """Return whether the run that makes the call was cancelled for good: nobody continues it by itself."""
        return self.task is not None and self._questions is not None and self._questions.is_to_end()

    async def give_up_task(self) -> None:
        """Tell the server that nobody waits for the call's task, if it is one."""
        if self.task is not None:
            with suppress(Exception):  # it may hang, or know nothing of the task
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self.task.cancel()

    async def _resumed(self) -> tuple[types.InputResponses | None, str | None]:
        """The answers of the last round before the run was suspended, and the state that belongs to them."""
        rounds = [answer.question.get("context") for answer in self._known]
        last = rounds[-1] if rounds else None
        if not isinstance(last, Mapping):
            return None, None
        self._round = last["round"]
        due = {
            context["key"]: answer
            for answer in self._known
            if (context := answer.question.get("context")) is not None and context["round"] == self._round
        }
        await self._give(list(due.values()))
        return {key: _result(answer) for key, answer in due.items()}, last["state"]

    async def _answer_all(self, requests: Mapping[str, Any], state: str | None) -> types.InputResponses:
        self._round += 1
        answers: dict[str, ServerAnswer] = {}
        others: types.InputResponses = {}
        open_requests: list[Any] = []
        # Without what the whole round needs, the call is made from its beginning.
        is_kept = len(state or "") <= MAX_STATE and all(each.method == ELICITATION for each in requests.values())
        for key, request in requests.items():
            context = {"round": self._round, "key": key, "state": state} if is_kept else None
            try:
                if request.method == ELICITATION and self._config.elicitation != "refuse":
                    answers[key] = await self._ask(request.params, context)
                elif request.method == "sampling/createMessage" and self._config.sampling:
                    others[key] = await self._sample(request.params)
                elif request.method == "roots/list" and self._config.roots is not None:
                    others[key] = roots_of(self._config)
                else:
                    raise ToolError(f"MCP server {self._config.name!r} wants {request.method}, which is not allowed.")
            except QuestionRefused as error:
                raise ToolError(f"MCP server {self._config.name!r} asked what cannot be asked. {error}") from None
            except Suspended as suspended:
                open_requests += suspended.requests
        if open_requests:
            raise Suspended(open_requests)
        await self._give(list(answers.values()))
        return {**others, **{key: _result(answer) for key, answer in answers.items()}}

    async def opened(self, error: MCPError) -> bool:
        """Return True if an error says that addresses must be opened before the call, and all of them were."""
        from mcp.types import URL_ELICITATION_REQUIRED, ElicitationRequiredErrorData

        if error.code != URL_ELICITATION_REQUIRED:
            return False
        wanted = []
        with suppress(ValueError):
            wanted = ElicitationRequiredErrorData.model_validate(error.error.data).elicitations
        answers = [await self._ask(params, None) for params in wanted]
        await self._give(answers)
        return bool(answers) and all(answer.accepted for answer in answers)


def roots_of(config: McpServerConfig) -> types.ListRootsResult:
    """Return the folders that a server may work in."""
    from mcp.types import ListRootsResult, Root

    return ListRootsResult(roots=[Root(uri=uri) for uri in config.roots or ()])


def _text(content: Any) -> str:
    """The text of a message that a server wants to be sent."""
    parts = content if isinstance(content, list) else [content]
    if any(part.type != "text" for part in parts):
        raise QuestionRefused("Only texts can be sent to the model.")
    return "\n".join(part.text for part in parts)


def _result(answer: ServerAnswer) -> types.ElicitResult:
    from mcp.types import ElicitResult

    if not answer.accepted:
        return ElicitResult(action="cancel" if answer.text == "cancel" and not answer.request else "decline")
    form = answer.question.get("form")
    return ElicitResult(action="accept", content=None if form is None else read_form(form, answer.text))
