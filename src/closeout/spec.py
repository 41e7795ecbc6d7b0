"""The settings of an agent as one record: who it is, how it runs, where its runs are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from closeout.answers.formatter import OutputFormatter
    from closeout.answers.reading import AnswerContract
    from closeout.answers.user_checks import Check
    from closeout.compat.answer_generator import MakeGenerator
    from closeout.compat.tool_executor import MakeExecutor
    from closeout.context.policy import ContextPolicy
    from closeout.dialects.cot import MakeParser
    from closeout.dialects.protocol import Dialect
    from closeout.journal.subscribers import Listener
    from closeout.parsing.forms import Form
    from closeout.results.encoding import Encoding
    from closeout.results.telemetry import TelemetryCollector
    from closeout.results.tool_output import ToolOutput
    from closeout.run.strategy import Strategy
    from closeout.tools.approval_rules import ApprovalRule
    from closeout.tools.flow import Flow
    from closeout.tools.secrets import Secrets
    from closeout.tools.skills import Skills

__all__ = ["SPEC_FIELDS", "AgentSpec"]

NONE = cast("Any", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """What an agent is made of. Its fields are arguments of `Agent`, where they are described.

    `Agent` fills it with what it is given, and the Assembler settles it: checks the values, adds those of the settings,
    and makes objects of names. The types are those of the settled values.
    """

    # Who the agent is.
    name: str = "agent"
    model: Any = None
    tools: Any = ()
    mcp_servers: Any = ()
    handoffs: Sequence[Any] = ()
    instructions: str | Callable[..., Any] | None = None
    answer: AnswerContract[Any] | None = None
    check: tuple[Check, ...] = ()
    deps_type: Any = None
    secrets: Secrets = NONE
    skills: Skills = NONE
    flow: Flow | None = None
    approved: tuple[ApprovalRule, ...] = ()
    middleware: tuple[Any, ...] = ()
    version: str = ""

    # How it runs.
    base_url: str | None = None
    api_key: str | None = None
    dialect: str | Dialect | None = None
    stream: bool = False
    code_mode: bool = False
    context: ContextPolicy | None = None
    strategy: Strategy | None = None
    output_formatter: OutputFormatter | None = None
    tool_executor: MakeExecutor | None = None
    answer_generator: MakeGenerator | None = None
    output_parser: MakeParser | None = None
    format_observation: Callable[[ToolOutput], str] | None = None
    forms: tuple[Form, ...] = ()
    encodings: tuple[Encoding, ...] = ()
    on_change: Literal["keep", "take", "refuse"] = "keep"

    # Where its runs are kept, and who receives what happens in them.
    home: Any = None
    telemetry: TelemetryCollector | None = None
    listeners: tuple[Listener, ...] = ()
    webhook: Any = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> AgentSpec:
        """Return the spec with those of some arguments that are fields of it."""
        return cls(**{name: value for name, value in given.items() if name in SPEC_FIELDS})


SPEC_FIELDS = frozenset(each.name for each in fields(AgentSpec))
