"""Judge a model's reply by the tools of its request: valid, repairable, or to be requested again. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from closeout.codec import encode_json
from closeout.errors import ToolDefinitionError
from closeout.messages import Defect, ModelReply, Reading, Repair, ToolCall, ToolSpec
from closeout.parsing.action_keys import read_object
from closeout.parsing.forms import Form
from closeout.parsing.read_reply import read_reply
from closeout.parsing.readers import NativeReader, Reader
from closeout.parsing.salvage import AMID_TEXT
from closeout.tools.shipped_policies import governed
from closeout.tools.toolbox import Toolbox

__all__ = ["Governor", "Verdict", "arguments_object", "arguments_text", "new_call_id", "with_new_ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a reply.

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
        """True if the client should get exactly what the model wrote."""
        return not self.repairs and self.defect is None


class Governor:
    """Judges replies to requests that offer these tools.

    Args:
        tools: The function tools.
        unchecked: The names of other tools, whose calls are not checked.
        read_only: The names of function tools without effects. A call amid text runs only of these.
        parallel: Whether a reply may hold several calls.
        forms: Forms of calls as text, beside the built-in ones.
    """

    def __init__(
        self,
        tools: Iterable[ToolSpec],
        unchecked: Iterable[str] = (),
        *,
        read_only: Collection[str] = (),
        parallel: bool = True,
        forms: Sequence[Form] = (),
    ) -> None:
        named = (
            replace(tool, policy=replace(tool.policy, read_only=True)) if tool.name in read_only else tool
            for tool in tools
        )
        self.tools = tuple(map(governed, named))
        self._toolbox = Toolbox.of(self.tools)
        self._unchecked = frozenset(unchecked)
        self._parallel = parallel
        self._forms = forms

    def judge(self, reply: ModelReply, reader: Reader | None = None, *, again: bool = False) -> Verdict:
        """Return the verdict on a reply.

        Args:
            reply: The reply, whole.
            reader: Reads the text dialect that the request was written in; None for native calls.
            again: The request was repeated, so a call amid the text counts as text.
        """
        # The server is in the middle of its own tools: the client sends the reply back, and it continues.
        paused = reply.finish_reason == "pause_turn" and bool(self._unchecked)
        if not self.tools or paused:
            return Verdict(reply=reply)
        in_text = reader is not None
        reader = reader or NativeReader(self.tools, self._forms)
        reading = read_reply(reply, reader, self.tools, parallel=self._parallel, forms=self._forms)
        if again and reading.answer is not None and AMID_TEXT in reading.defects:
            reading = replace(reading, defects=())
        if reading.calls and reading.defects:  # the last call was cut off
            return Verdict(reply=reply, defect=reading.defects[0])
        if not reading.calls:
            return self._without_calls(reading, reply, in_text=in_text)
        return self._with_calls(reading, reply)

    def _without_calls(self, reading: Reading, reply: ModelReply, *, in_text: bool) -> Verdict:
        defect = reading.defects[0] if reading.defects else None
        # The client has set the limit of a text's length, and knows the reason. Not every one knows of a full context.
        is_known = reply.finish_reason == "length" and reading.answer is not None
        if defect is not None and not (defect.code == "truncated" and is_known):
            return Verdict(reply=reply, defect=defect)
        if (in_text or reading.repairs) and reading.answer is not None:
            shown = replace(reply, text=reading.answer, reasoning=reading.reasoning)
            return Verdict(reply=shown, repairs=reading.repairs)
        return Verdict(reply=reply)

    def _with_calls(self, reading: Reading, reply: ModelReply) -> Verdict:
        repairs, calls = list(reading.repairs), list[ToolCall]()
        for call in reading.calls:
            fitted, made, problem = self._fit(call)
            if problem:
                return Verdict(reply=reply, defect=Defect("invalid_call", problem))
            repairs += made
            calls.append(fitted if fitted.id else replace(fitted, id=new_call_id()))
        if not (reply.finished or reply.finish_reason in ("length", "content_filter")):  # clients may drop such calls
            repairs.append(Repair("finish_reason", "reply", reply.finish_reason, after="tool_calls"))
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
        if call.name in self._unchecked and self._toolbox.named(call.name) is None:
            return call, (), ""
        spec, repairs, message = self._toolbox.resolve(call)
        if spec is None:
            return call, (), message
        try:
            found = self._toolbox.repair(spec, call.arguments, call.text)
        except ToolDefinitionError:  # its schema is the mistake of the client
            return replace(call, name=spec.name), repairs, ""
        if found.errors:
            return call, (), f"The call of {spec.name} was not made. {found.errors[0]}"
        made = [*repairs, *found.repairs]
        if not made and call.text and read_object(call.text) is None:
            made.append(Repair("empty_arguments", "arguments", call.text, after="{}"))
        if not made:
            return call, (), ""
        text = encode_json(dict(found.arguments)).decode()
        return replace(call, name=spec.name, arguments=found.arguments, text=text), made, ""


def new_call_id() -> str:
    """Return an id for a call that has none. Every server accepts it: Mistral requires nine letters and digits."""
    return token_hex(5)[:9]


def with_new_ids(reply: ModelReply) -> ModelReply:
    """Return the reply with new ids for its calls."""
    new = {call.id: new_call_id() for call in reply.tool_calls}
    calls = tuple(replace(call, id=new[call.id]) for call in reply.tool_calls)
    added = {new.get(call_id, call_id): more for call_id, more in reply.attached.get("calls", {}).items()}
    return replace(reply, tool_calls=calls, attached={**reply.attached, "calls": added} if added else reply.attached)


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text."""
    if call.text:
        return call.text
    if isinstance(call.arguments, str):
        return call.arguments
    return encode_json(dict(call.arguments)).decode()


def arguments_object(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments of a call as an object; empty if they are not one."""
    if isinstance(call.arguments, Mapping):
        return call.arguments
    return read_object(call.arguments) or {}
