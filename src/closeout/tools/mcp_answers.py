"""Answers what an MCP server asks during one call: by the rule of its entry, or through the run, by a person.

Before the protocol of 2026-07-28 a server sends its question as a request of its own while the call is under way. Since
then the call ends with what it needs, and is made again with the answers and the state that the server wants back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from closeout.errors import Suspended, ToolError
from closeout.tools.mcp_config import McpServerConfig
from closeout.tools.mcp_questions import McpQuestion, QuestionRefused, read_form, ruled_answer
from closeout.tools.run_context import ServerAnswer, ServerQuestions

if TYPE_CHECKING:
    from mcp import MCPError
    from mcp.types import CallToolResult, ElicitResult, ErrorData, InputRequiredResult, InputResponses

__all__ = ["CallAnswers"]

MAX_QUESTIONS = 20  # of one call
MAX_ROUNDS = 30
MAX_STATE = 100_000  # characters of a server's state that are recorded
STATE_SECONDS = 0.25  # before a call is made again for which a server wants nothing but time
ALIVE_SECONDS = 5.0  # between two extensions of a call's deadline while a function answers


class CallAnswers:
    """The answers to what a server asks during one call.

    Attributes:
        stopped: Why the call must be given up, once it must: a person is to answer, or the server asks too much.
        over: Set when the call has ended.
        alive: Called while a function answers, to extend the call's deadline.

    Args:
        config: The server.
        questions: Asks in the run; None outside of one.
    """

    def __init__(self, config: McpServerConfig, questions: ServerQuestions | None) -> None:
        self._config = config
        self._questions = questions
        self._known: list[ServerAnswer] = []
        self._count = 0
        self._round = 0
        self.stopped: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.alive: Callable[[], object] = lambda: None

    async def begin(self) -> None:
        """Take the answers that the run has already. Raises Suspended if one is missing: then no call is made."""
        if self._questions is not None:
            self._known = await self._questions.recall()

    # ---------------------------------------------------------------------------------------- one question

    async def elicit(self, params: Any) -> ElicitResult | ErrorData:
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
            # An answer now, such as "cancel", would let the server go on.
            await self.over.wait()
            return ErrorData(code=INVALID_REQUEST, message="The call was given up while its question was open.")

    async def _ask(self, params: Any, context: Mapping[str, Any] | None) -> ServerAnswer:
        self._count += 1
        if self._count > MAX_QUESTIONS:
            raise ToolError(f"MCP server {self._config.name!r} asked more than {MAX_QUESTIONS} questions in one call.")
        question = McpQuestion.of(self._config.name, params)
        rule = partial(self._by_rule, question)
        given = question.arguments()
        if self._questions is not None:
            return await self._questions.ask(given if context is None else {**given, "context": context}, rule)
        found = await rule()  # outside of a run there is nobody to ask
        accepted, text = (False, "cancel") if found is None else found
        return ServerAnswer(request="", digest="", question=given, accepted=accepted, text=text)

    async def _by_rule(self, question: McpQuestion) -> tuple[bool, str] | None:
        answering = asyncio.ensure_future(ruled_answer(self._config.elicitation, question))
        try:
            while not (await asyncio.wait((answering,), timeout=ALIVE_SECONDS))[0]:
                self.alive()
            return answering.result()
        except Exception as error:
            raise ToolError(
                f"The function that answers the MCP server {self._config.name!r} raised {type(error).__name__}: {error}"
            ) from error
        finally:
            answering.cancel()

    async def _give(self, answers: list[ServerAnswer]) -> None:
        if self._questions is not None:
            await self._questions.give(answers)

    # ---------------------------------------------------------------------------------------- calls in rounds

    async def in_rounds(
        self, send: Callable[[InputResponses | None, str | None], Awaitable[CallToolResult | InputRequiredResult]]
    ) -> CallToolResult:
        """Make a call, and again with answers for as long as the server needs input."""
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS, InputRequiredResult

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
            if not isinstance(result, InputRequiredResult):
                return result
            responses, state = None, result.request_state
            if result.input_requests:
                responses = await self._answer_all(result.input_requests, state)
            else:
                await asyncio.sleep(STATE_SECONDS)
        raise ToolError(f"MCP server {self._config.name!r} still needs input after {MAX_ROUNDS} rounds of one call.")

    async def _resumed(self) -> tuple[InputResponses | None, str | None]:
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

    async def _answer_all(self, requests: Mapping[str, Any], state: str | None) -> InputResponses:
        self._round += 1
        answers: dict[str, ServerAnswer] = {}
        open_requests: list[Any] = []
        for key, request in requests.items():
            if request.method != "elicitation/create":
                raise ToolError(f"MCP server {self._config.name!r} wants {request.method}, which is not allowed.")
            # Without its state the call is made from its beginning.
            context = None if len(state or "") > MAX_STATE else {"round": self._round, "key": key, "state": state}
            try:
                answers[key] = await self._ask(request.params, context)
            except QuestionRefused as error:
                raise ToolError(f"MCP server {self._config.name!r} asked what cannot be asked. {error}") from None
            except Suspended as suspended:
                open_requests += suspended.requests
        if open_requests:
            raise Suspended(open_requests)
        await self._give(list(answers.values()))
        return {key: _result(answer) for key, answer in answers.items()}

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


def _result(answer: ServerAnswer) -> ElicitResult:
    from mcp.types import ElicitResult

    if not answer.accepted:
        return ElicitResult(action="cancel" if answer.text == "cancel" and not answer.request else "decline")
    form = answer.question.get("form")
    return ElicitResult(action="accept", content=None if form is None else read_form(form, answer.text))
