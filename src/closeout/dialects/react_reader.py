"""Reads a ReAct reply (`Thought / Action / Final Answer`) for the dialects that write one."""

from __future__ import annotations

import json
import re

from closeout.dialects.protocol import ReadEvent
from closeout.dialects.thinking import split_thinking
from closeout.messages import Defect, Delta, ModelReply, Reading, ToolCall

__all__ = ["ReactReader"]

_ANSWER = re.compile(r"^\s*Final Answer:\s*", re.MULTILINE | re.IGNORECASE)
_ACTION = re.compile(r"^\s*Action:\s*(?:```\w*\s*)?", re.MULTILINE | re.IGNORECASE)
_OBSERVATION = re.compile(r"^\s*Observation:", re.MULTILINE | re.IGNORECASE)
_THOUGHT = re.compile(r"^\s*Thought:\s*", re.IGNORECASE)


class ReactReader:
    """One reply, one action."""

    complete = False

    def feed(self, delta: Delta) -> list[ReadEvent]:
        return [ReadEvent("reasoning" if delta.kind == "reasoning" else "text", delta.text)]

    def close(self, reply: ModelReply) -> Reading:
        thinking, text = split_thinking(reply.text)
        reasoning = "\n".join(part for part in (reply.reasoning, thinking) if part)
        action, answer = _ACTION.search(text), _ANSWER.search(text)
        if action and (answer is None or action.start() < answer.start()):
            thought = _THOUGHT.sub("", text[: action.start()]).strip()
            try:
                value, end = json.JSONDecoder().raw_decode(text, action.end())
                call = ToolCall(value["action"], value.get("action_input") or {})
            except (ValueError, KeyError, TypeError, AttributeError):
                hint = 'The Action must be one JSON object: {"action": …, "action_input": {…}}.'
                return Reading(thought, reasoning, defects=(Defect("broken_action", hint),), raw=text)
            return Reading(thought, reasoning, (call,), raw=text[:end])
        if forged := _OBSERVATION.search(text):
            hint = "You wrote an Observation yourself. Write one Action and stop."
            return Reading(text[: forged.start()], reasoning, defects=(Defect("invented_observation", hint),))
        if not text.strip():
            return Reading("", reasoning, defects=(Defect("empty", "Your last reply was empty."),))
        return Reading(text, reasoning, answer=text[answer.end() :].strip() if answer else text.strip(), raw=text)
