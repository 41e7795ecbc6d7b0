"""Judge a model's reply by the tools of its request: valid, repairable, or to be asked for again. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from closeout.answers.replies import INVENTED, invents_result
from closeout.codec import encode_json
from closeout.errors import ToolDefinitionError
from closeout.messages import Defect, ModelReply, Reading, Repair, ToolCall, ToolSpec
from closeout.parsing.action_keys import read_object
from closeout.parsing.readers import NativeReader, Reader
from closeout.parsing.salvage import salvage
from closeout.repair import SchemaRules, repair_arguments, resolve_tool_name
from closeout.run.streaming import REPEATING, repeated_tail
from closeout.tools.toolbox import governed

__all__ = ["Governor", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reply is worth.

    Attributes:
        reply: The reply as the client should get it: the model's own, or with repaired calls.
        repairs: What was repaired; empty if the reply is the model's own.
        defect: What cannot be repaired, with the hint for the model; None if nothing.
    """

    reply: ModelReply
    repairs: tuple[Repair, ...] = ()
    defect: Defect | None = None

    @property
    def is_untouched(self) -> bool:
        """Whether the client should get exactly what the model wrote."""
        return not self.repairs and self.defect is None


class Governor:
    """Judges replies to requests that offer these tools.

    Args:
        tools: The function tools.
        unchecked: The names of other tools: their calls are not looked at.
        parallel: Whether a reply may hold several calls.
    """

    def __init__(self, tools: Iterable[ToolSpec], unchecked: Iterable[str] = (), *, parallel: bool = True) -> None:
        self.tools = tuple(governed(tool) for tool in tools)
        self._by_name = {tool.name: tool for tool in self.tools}
        self._unchecked = frozenset(unchecked)
        self._parallel = parallel
        self._rules: dict[str, SchemaRules | None] = {}

    def judge(self, reply: ModelReply, reader: Reader | None = None) -> Verdict:
        """Return what a reply is worth.

        Args:
            reply: The reply, whole.
            reader: Reads the text dialect that the request was written in; None for native calls.
        """
        if not self.tools:
            return Verdict(reply=reply)
        in_text = reader is not None
        reading = (reader or NativeReader(self.tools)).close(reply)
        if reading.calls and reading.defects:  # the last call was cut off
            return Verdict(reply=reply, defect=reading.defects[0])
        if not reading.calls:
            if repeated_tail(reply.text) >= 0 and reply.finish_reason == "length":
                return Verdict(reply=reply, defect=REPEATING)
            reading = self._salvaged(reading, reply) or reading
        if not reading.calls:
            return self._without_calls(reading, reply, in_text=in_text)
        return self._with_calls(reading, reply)

    def _salvaged(self, reading: Reading, reply: ModelReply) -> Reading | None:
        """The reply with the calls that it holds in another form, None if there are none."""
        if any(defect.refuses for defect in reading.defects):
            return None
        found = salvage(reply.text, reply.reasoning, self.tools)
        if found is None or not found.calls:
            return None
        calls = found.calls if self._parallel else found.calls[:1]
        return Reading(found.content, reading.reasoning, tuple(calls), repairs=(*reading.repairs, *found.repairs))

    def _without_calls(self, reading: Reading, reply: ModelReply, *, in_text: bool) -> Verdict:
        if reading.answer is None and reading.defects:
            if reply.text.strip() and not in_text and not reply.tool_calls:
                return Verdict(reply=reply)  # a text that was cut off is the client's to judge
            return Verdict(reply=reply, defect=reading.defects[0])
        if invents_result(reading.answer or ""):
            return Verdict(reply=reply, defect=INVENTED)
        if in_text and reading.answer is not None:
            shown = replace(reply, text=reading.answer, reasoning=reading.reasoning)
            return Verdict(reply=shown, repairs=reading.repairs)
        return Verdict(reply=reply)

    def _with_calls(self, reading: Reading, reply: ModelReply) -> Verdict:
        repairs, calls = list(reading.repairs), list[ToolCall]()
        for number, call in enumerate(reading.calls):
            fitted, made, problem = self._fit(call)
            if problem:
                return Verdict(reply=reply, defect=Defect("invalid_call", problem))
            repairs += made
            calls.append(fitted if fitted.id else replace(fitted, id=_call_id(reply, number)))
        if not repairs and reply.tool_calls:
            return Verdict(reply=reply)
        if not repairs:  # the text dialect's own calls
            repairs.append(Repair("dialect:text", "reply", after=calls[0].name))
        text = "" if reply.tool_calls and not reading.text.strip() else reading.text
        return Verdict(
            reply=replace(
                reply, text=text, reasoning=reading.reasoning, tool_calls=tuple(calls), finish_reason="tool_calls"
            ),
            repairs=tuple(repairs),
        )

    def _fit(self, call: ToolCall) -> tuple[ToolCall, Sequence[Repair], str]:
        """Return the call with the name and the arguments of a tool, what was repaired, or what is wrong."""
        if call.name in self._unchecked and call.name not in self._by_name:
            return call, (), ""
        spec, repairs, message = resolve_tool_name(call.name, self._by_name)
        if spec is None:
            return call, (), message
        rules = self._rules_of(spec)
        if rules is None:
            return replace(call, name=spec.name), repairs, ""
        policy = spec.policy
        found = repair_arguments(
            call.arguments,
            rules,
            policy.aliases,
            defaults=policy.defaults,
            drop_unknown=policy.read_only,
            written=call.text,
        )
        if found.errors:
            return call, (), f"The call of {spec.name} was not made. {found.errors[0]}"
        made = [*repairs, *found.repairs]
        if not made and call.text and read_object(call.text) is None:
            made.append(Repair("empty_arguments", "arguments", call.text, after="{}"))
        if not made:
            return call, (), ""
        text = encode_json(dict(found.arguments)).decode()
        return replace(call, name=spec.name, arguments=found.arguments, text=text), made, ""

    def _rules_of(self, spec: ToolSpec) -> SchemaRules | None:
        """The tool's compiled schema; None if it is not a JSON Schema, which is the client's to answer for."""
        if spec.name not in self._rules:
            try:
                self._rules[spec.name] = SchemaRules.of(spec.parameters)
            except ToolDefinitionError:
                self._rules[spec.name] = None
        return self._rules[spec.name]


def _call_id(reply: ModelReply, number: int) -> str:
    """An id for a call that has none, the same for the same reply."""
    import hashlib

    digest = hashlib.sha256(reply.text.encode("utf-8", "replace")).hexdigest()[:16]
    return f"call_{digest}_{number}"


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text."""
    if call.text:
        return call.text
    if isinstance(call.arguments, str):
        return call.arguments
    return encode_json(dict(call.arguments)).decode()


def arguments_object(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments of a call as an object; empty if they are none."""
    if isinstance(call.arguments, Mapping):
        return call.arguments
    return read_object(call.arguments) or {}
