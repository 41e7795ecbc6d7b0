"""`CotAgentOutputParser`: reads `Thought / Action / Final Answer` text while it streams in. Pure; knows no tools.

Linear, lossless, the same for any way the text is cut into pieces. The rules it keeps are in docs/parser.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from closeout.dialects.quoting import CodeQuotes
from closeout.dialects.react_action_scan import ActionScan
from closeout.dialects.react_events import CotEvent, Lane, PlainLane, Tape
from closeout.dialects.react_json_form import Form, Limits
from closeout.dialects.react_markers import HOLD, Marker, Markers, Tag, tag_at
from closeout.dialects.react_prose import Prose, Stop

__all__ = ["CotAgentOutputParser"]

# Finish reasons of replies that did not end by themselves: nothing unfinished in them is closed on the model's behalf.
TRUNCATED = frozenset({"length", "cut", "content_filter", "max_tokens"})
_TAG_OPENS = re.compile("<")
_NEVER = re.compile(r"(?!)")
_TAG_BEGINS = re.compile(r"<(?=[/tTrRsS]|\Z)")
_MOST_ATTEMPTS = 1000  # things of one form that look like an action and are none, in one reply
_NO_ACTION = "Your reply had a thought only. End it with one Action, or with a Final Answer."
_INVENTED = "You wrote an Observation yourself. Write one Action, then stop and wait for its Observation."


class CotAgentOutputParser:
    """Streaming parser of one reply.

    `feed` takes text in pieces of any size and returns the events that are certain by then; `close` returns the rest.
    `markers` adds translations of the markers, for example `{"thought": ["思考"]}`. `reasoning_open` says that the
    prompt itself opened a reasoning tag, so that the reply begins inside it, `thought_open` that it ended in
    `Thought:`. `max_depth` (levels) and `max_size`
    (characters) bound one action; what exceeds them is malformed.
    """

    def __init__(
        self,
        markers: Mapping[str, Sequence[str]] | None = None,
        *,
        reasoning_open: bool = False,
        thought_open: bool = False,
        max_depth: int = 100,
        max_size: int = 16_000_000,
    ) -> None:
        self._markers = Markers(markers) if markers else Markers.english()
        self._limits = Limits(max_depth, max_size)
        self._tape = Tape()
        self._plain: list[str] = []  # text that is the answer if nothing structural comes
        self._prose = self._new_prose()
        self._prose.at_line_start(newline=False)
        self._attempts: Counter[Form] = Counter()
        self._depth = 1 if reasoning_open else 0  # of reasoning tags
        self._code = CodeQuotes()  # of the reasoning that is being read
        self._reasoned: list[str] = []  # and what of it is not walked over yet
        self._action: ActionScan | None = None
        self._answer: Prose | None = None
        self._answer_text: list[str] = []
        self._answer_start = 0
        if thought_open:
            self._prose.role = "thought"
        self._no_action = False  # the last marker was an Action that is none
        self._structured = False  # a marker was seen, so that plain text is no candidate answer
        self._settled = False  # an action, an answer or a defect is certain: what follows is not trusted
        self._closed = False
        self._lane: Lane | None = None  # where the next piece may go straight on

    @property
    def complete(self) -> bool:
        """Whether all that counts was read: what still comes would be untrusted."""
        return self._settled

    def feed(self, text: str) -> list[CotEvent]:
        """Reads on. Raises ValueError after `close`."""
        if not text:
            return []
        lane, tape = self._lane, self._tape
        if lane is not None and lane.takes(text):
            return [tape.pass_on(text, lane.kind, lane.role)]
        if self._closed:
            raise ValueError("The parser is closed. Make a new one for each reply.")
        tape.append(text)
        self._advance(last=False)
        self._lane = self._find_lane() if tape.all_told else None
        return tape.events()

    def _find_lane(self) -> Lane | None:
        if self._settled:
            return PlainLane(_NEVER, "untrusted")
        if self._action is not None:
            return self._action.lane()
        if self._depth:
            return PlainLane(_TAG_OPENS, "reasoning", "", self._reasoned)
        return (self._answer or self._prose).lane()

    def close(self, finish_reason: str | None = "stop") -> list[CotEvent]:
        """Ends the text. `finish_reason` is the server's: after "length" nothing unfinished is completed."""
        if self._closed:
            return []
        self._closed, self._lane = True, None
        truncated = finish_reason in TRUNCATED
        self._advance(last=True, truncated=truncated)
        if not self._settled:
            self._judge(truncated)
        self._tape.put("end", code=finish_reason or "")
        return self._tape.events()

    # -------------------------------------------------------------------------------------------- walking

    def _advance(self, *, last: bool, truncated: bool = False) -> None:
        while True:
            if self._settled:
                self._tape.take("untrusted", len(self._tape.text))
                return
            if self._action is not None:
                more = self._step_action(self._action, last, truncated)
            elif self._depth:
                more = self._reason(last)
            elif self._answer is not None:
                more = self._walk_answer(self._answer, last)
            else:
                more = self._walk(last)
            if not more:
                return

    def _new_prose(self) -> Prose:
        return Prose(self._tape, self._markers, "text", "plain", brackets=True, keep=self._plain)

    def _step_action(self, action: ActionScan, last: bool, truncated: bool) -> bool:
        if not action.step(last=last, truncated=truncated):
            return False
        self._action = None
        if action.outcome == "none":
            self._prose.line_start = False
            if action.resumes_at_line_start:
                self._prose.at_line_start()
            self._plain.append(action.text)
            return self._tape.position < len(self._tape.text)
        self._settled = True
        return True

    def _walk(self, last: bool) -> bool:
        """Thoughts and plain text."""
        prose = self._prose
        stop = prose.walk(last=last)
        if stop is Stop.MORE:
            return False
        if stop is Stop.BRACKET:
            self._begin_action("bare")
        elif stop is Stop.TAG:
            assert prose.tag is not None
            self._meet_tag(prose.tag)
        else:
            assert prose.marker is not None
            self._meet_marker(prose.marker)
        return True

    def _meet_marker(self, marker: Marker) -> None:
        self._structured = True
        if marker.name != "action_input":
            self._no_action = False
        if marker.name == "thought":
            self._prose.role = "thought"
            self._prose.after_marker(marker)
        elif marker.name == "final_answer":
            self._answer_text = []
            self._answer = Prose(self._tape, self._markers, "final_delta", tags="line", keep=self._answer_text)
            self._answer_start = self._tape.offset
            self._answer.after_marker(marker)
        elif marker.name == "observation":
            self._settle_as_defect("invented_observation", _INVENTED)
        elif marker.name == "action":
            self._tape.take("marker", marker.end)
            self._begin_action("action", bold=marker.bold)
        elif self._no_action:  # the input of an action that is none
            self._prose.after_marker(marker)
        else:
            self._tape.take("marker", marker.end)
            self._settle_as_defect("broken_action", "An Action line with a tool's name must stand before the input.")

    def _begin_action(self, form: Form, *, bold: bool = False) -> None:
        self._no_action = form == "action"  # unless it turns out to be one
        self._attempts[form] += 1
        if self._attempts[form] > _MOST_ATTEMPTS:
            if form == "bare":
                self._prose.ignore_brackets()
            elif form == "action":
                self._settle_as_defect("too_many_actions", f"Your reply had over {_MOST_ATTEMPTS} Actions. Write one.")
            return
        self._action = ActionScan(self._tape, self._markers, self._limits, form, bold=bold)

    def _meet_tag(self, tag: Tag) -> None:
        tape = self._tape
        if tag.thinking and tag.closing:
            self._all_was_reasoning(tag)
        elif tag.thinking:
            tape.take("reasoning", tag.end, text="")
            self._depth = 1
        elif tag.closing:
            self._prose.pass_over(tag.end)
        else:
            self._plain.append(tape.text[tape.position : tag.end])  # text after all if no object follows
            tape.take("marker", tag.end)
            self._begin_action("native")

    def _all_was_reasoning(self, tag: Tag) -> None:
        """A closing tag without an opening one: the prompt opened it. All so far was reasoning, not thought."""
        tape = self._tape
        tape.take("reasoning", tag.end, text="")
        tape.put("reasoning", span=(0, tape.offset))
        self._plain.clear()
        self._structured = False
        self._answer = None
        self._prose = self._new_prose()
        self._prose.at_line_start()

    def _reason(self, last: bool) -> bool:
        """Inside reasoning tags, which may be nested. Tags in backticks are text there as well."""
        tape = self._tape
        while True:
            found = _TAG_BEGINS.search(tape.text, tape.position)
            if found is None:
                self._reason_on(len(tape.text))
                return False
            self._reason_on(found.start())
            tag = tag_at(tape.text, found.start(), last=last)
            if tag == HOLD:
                return False
            if not isinstance(tag, Tag) or not tag.thinking:
                self._reason_on(found.start() + 1)
                continue
            quoted = self._is_quoted_in_reasoning(tag, last)
            if quoted is None:
                return False
            if quoted:
                self._reason_on(tag.end)
                continue
            self._depth += -1 if tag.closing else 1
            tape.take("reasoning", tag.end, text=None if self._depth else "")
            if not self._depth:
                self._code = CodeQuotes()
                target = self._answer or self._prose
                target.at_line_start()
                return tape.position < len(tape.text)

    def _reason_on(self, end: int) -> None:
        tape = self._tape
        self._reasoned.append(tape.text[tape.position : end])
        tape.take("reasoning", end)

    def _is_quoted_in_reasoning(self, tag: Tag, last: bool) -> bool | None:
        """None: the next character must tell."""
        before = "".join(self._reasoned)
        self._reasoned.clear()
        self._code.walk(before, 0, len(before), fences=False)
        return self._code.quotes_so_far(self._tape.text, tag.end, closing=tag.closing, last=last)

    def _walk_answer(self, answer: Prose, last: bool) -> bool:
        """The final answer streams; a thought or an observation behind it is no part of it."""
        stop = answer.walk(last=last)
        if stop is Stop.MORE:
            return False
        if stop is Stop.TAG:
            assert answer.tag is not None
            if not answer.tag.thinking:
                answer.pass_over(answer.tag.end)
            elif answer.tag.closing:
                self._all_was_reasoning(answer.tag)
            else:
                self._tape.take("reasoning", answer.tag.end, text="")
                self._depth = 1
            return True
        assert answer.marker is not None
        if answer.marker.name in ("thought", "observation"):
            self._finish_answer(truncated=False)
        else:
            answer.pass_over(answer.marker.end)
        return True

    # -------------------------------------------------------------------------------------------- judging

    def _finish_answer(self, *, truncated: bool) -> None:
        assert self._answer is not None
        text = "".join(self._answer_text).strip()
        span = (self._answer_start, self._tape.offset)
        if text:
            self._tape.put("final", text=text, role="answer", span=span, code="truncated" if truncated else "")
            self._settled = True
        elif truncated:
            self._settle_as_defect("truncated", "Your reply was cut off at the length limit. Answer more shortly.")
        else:
            self._settle_as_defect("empty", "The Final Answer was empty. Give it.")

    def _settle_as_defect(self, code: str, hint: str) -> None:
        self._tape.put("malformed", code=code, hint=hint, span=(self._tape.offset, self._tape.offset))
        self._settled = True

    def _judge(self, truncated: bool) -> None:
        """The text is over and held no action."""
        if self._answer is not None:
            self._finish_answer(truncated=truncated)
            return
        text = "".join(self._plain).strip()
        span = (0, self._tape.offset)
        if truncated and (self._structured or not text):
            self._settle_as_defect("truncated", "Your reply was cut off at the length limit. Write it again, shorter.")
        elif self._structured:
            self._settle_as_defect("no_action", _NO_ACTION)
        elif not text:
            self._settle_as_defect("empty", "Your reply was empty. Write a Thought, then an Action or a Final Answer.")
        else:
            self._tape.put("final", text=text, role="plain", span=span, code="truncated" if truncated else "")
            self._settled = True
