"""A user played by a model, as a tool of the evaluated agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from closeout.answers.contracts import Text
from closeout.errors import ToolError, UsageError
from closeout.messages import ToolPolicy
from closeout.results.tool_output import ToolOutput
from closeout.tools.run_context import RunContext
from closeout.tools.tool import Tool

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.models.base import BaseClient

__all__ = ["SimulatedUser"]

OVER = "###OVER###"
INSTRUCTIONS = f"""\
You play a user who talks to an assistant. Your part:

{{scenario}}

The messages are the assistant's; write what the user says next, in one short message, and nothing else. Say only what
your part says, and only when it is needed: do not invent facts, and do not help the assistant. When what you want is
done, or cannot be done, write only {OVER}"""
GOODBYE = "The user has ended the conversation."


class SimulatedUser:
    """Plays users with a model. The state of the trial's run holds their conversation with the agent.

    Each thing that a user says is a run in the journal, named after the call, so a trial that is resumed does not ask
    again. Its cost is not the trial's.

    Args:
        model: A model's name or a client.
        instructions: How to play; `{scenario}` is replaced by the user's part. The user ends with `###OVER###`.
        max_messages: Messages after which the user leaves.
        home: Where its runs are kept; as for `Agent`.
        options: Further arguments of its `Agent`, such as `temperature`.

    Raises:
        UsageError: An argument is not valid.
    """

    def __init__(
        self,
        model: str | BaseClient,
        *,
        instructions: str = INSTRUCTIONS,
        max_messages: int = 30,
        home: Any = None,
        **options: Any,
    ) -> None:
        if "{scenario}" not in instructions:
            raise UsageError("The instructions of a simulated user must contain {scenario}.")
        if max_messages < 1:
            raise UsageError(f"max_messages must be at least 1, got {max_messages}.")
        self._model, self._options = model, {**options, "home": home}
        self._instructions = instructions
        self._max_messages = max_messages

    def tool(self, scenario: str, *, opening: str = "", name: str = "say_to_user") -> Tool[..., Any]:
        """Return the tool with which the agent talks to one user.

        Args:
            scenario: Who the user is, what the user wants and knows. The agent does not see it.
            opening: What the user says first, if the task does not say it.
            name: The tool's name.
        """
        from closeout.agent import Agent

        player: Agent[None, str] = Agent(
            self._model,
            instructions=self._instructions.replace("{scenario}", scenario),
            answer=Text(),
            **self._options,
        )

        async def say(message: str, context: RunContext) -> ToolOutput:
            said = [(pair[0], pair[1]) for key, pair in context.state.items() if key.startswith(f"{name}: ")]
            if not said and opening:
                reply = opening
            elif any(reply == OVER for _, reply in said) or len(said) >= self._max_messages:
                return ToolOutput(result=GOODBYE)
            else:
                reply = await self._reply(player, message, said, context, f"{context.run_id}.{name}-{_place(context)}")
            shown = GOODBYE if reply == OVER else reply
            # A message of a session begins with the state of the one before, whose calls have the same handles.
            key = f"{name}: {context.run_id} {_place(context)}"
            return ToolOutput(result=shown, state_update={key: [message, reply]})

        policy = ToolPolicy(repeatable=True, accept_empty=True, on_crash="rerun")
        return Tool(say, name=name, description="Say something to the user, and get the user's reply.", policy=policy)

    async def _reply(
        self, player: Agent[None, str], message: str, said: list[tuple[str, str]], context: RunContext, run_id: str
    ) -> str:
        history = [
            {"role": role, "content": text}
            for pair in said
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        found = await player.run_once(message, run_id=run_id, history=history, origin={"user_of": context.run_id})
        if found.answer is None:
            raise ToolError(f"The user did not answer: {found.error or found.stop_reason}")
        return OVER if OVER in found.answer else found.answer


def _place(context: RunContext) -> str:
    """Return which call of the run this is: "r4"; below it, "r4-program-r1"."""
    path = context.agent.partition("/")[2].replace("/", "-").replace(":", "-")
    return f"{path}-{context.handle}" if path else context.handle
