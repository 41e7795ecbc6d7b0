"""Properties of the ReAct parser that hold for every text: lossless, the same however it is cut, linear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.parsing.react import CotAgentOutputParser, joined
from react_samples import SAMPLES, feed, of_kind

PIECES = [
    *("Thought:", "Action:", "Action Input:", "Observation:", "Final Answer:", " Observation: 3", "Observ", "Answer"),
    *("\n", "\n", "\n", " ", "\t", "\r\n", "\ufeff", "```", "```json\n", "~~~", "`", "**", "#", "(", ")"),
    *("{", "}", "[", "]", '"action"', '"action_input"', ": ", ", ", '"search"', '"Final Answer"', '"x"', "'", "\\"),
    *("\\u00e9", "\\ud83d", "\\ude00", "<think>", "</think>", "<tool_call>", "</tool_call>", "None", "null", "12"),
    *('{"a":', "[1,", "-5.", "e+1", "tru", "e,", '"b\\"c"', "}]", '"k":[', "--", "\u00a0", "\u0663"),
    *(
        "`<think>`",
        "`</think>`",
        "`<tool_call>",
        " Action Input: ",
        "#2",
        "none needed",
        "Final Answer",
        "Action: f ",
        "N/A",
    ),
    *("//c\n", "/*", "*/", "search", "foo bar", "思考：", "\ud800", "\x00", "😀"),
    '{"action": "a", "action_input": {"b": [1, 2]}}',
    '{"name": "f", "arguments": "{}"}',
    'Action: {"action": "Final Answer", "action_input": "',
]
texts = st.one_of(
    st.sampled_from(SAMPLES),
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.text(max_size=40),
)


def assert_lossless(text, events):
    at = 0
    for event in events:
        assert event.start == at <= event.end
        at = event.end
    assert at == len(text)


@given(texts, st.data())
def test_any_split_gives_the_same_events_and_loses_nothing(text, data):
    finish_reason = data.draw(st.sampled_from(["stop", "length", None]))
    limits = data.draw(st.sampled_from([{}, {}, {"max_size": 30}, {"max_depth": 3}]))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    whole, _ = feed(text, (), finish_reason, **limits)
    pieces, _ = feed(text, cuts, finish_reason, **limits)
    assert_lossless(text, whole)
    assert_lossless(text, pieces)
    assert joined(pieces) == joined(whole)


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("text", SAMPLES)
def test_one_character_at_a_time_gives_the_same_events(text, finish_reason):
    whole, _ = feed(text, (), finish_reason)
    single, _ = feed(text, range(len(text)), finish_reason)
    assert_lossless(text, single)
    assert joined(single) == joined(whole)


@given(texts)
def test_there_is_one_outcome_and_then_the_end(text):
    events, parser = feed(text)
    assert len(of_kind(events, "action", "final", "malformed")) == 1
    assert [e.kind for e in events].count("end") == 1
    assert events[-1].kind == "end"
    assert parser.complete


HOSTILE = {
    "fences": ("", "```\n"),
    "backticks": ("", "`"),
    "quotes": ('Action: {"action": "a", "action_input": [', '"",'),
    "open quotes": ("Action: ", '"'),
    "braces": ("", "{"),
    "brace lines": ("", "{\n"),
    "brackets in an action": ('Action: {"action": "a", "action_input": [', "[1],"),
    "backslashes": ('Action: {"action": "a", "action_input": "', "\\"),
    "empty thoughts": ("", "Thought:\n"),
    "no actions": ("", "Action: None\n"),
    "calls in prose": ("", '{"action": "a", "action_input": 1} no\n'),
    "tags": ("", "<think></think>"),
    "closing tags": ("", "</think>"),
    "blanks": ("Action: a\nAction Input: x", " "),
    "almost markers": ("Final Answer: ", "\nObs"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_megabyte_of_hostile_text_is_read(kind):
    head, body = HOSTILE[kind]
    text = head + body * (1_000_000 // len(body))
    events, _ = feed(text, range(0, len(text), 4096))
    assert_lossless(text, events)


@pytest.mark.parametrize("kind", ["fences", "quotes", "backslashes", "almost markers", "closing tags"])
def test_work_grows_with_length_only(kind, monkeypatch):
    """Counted, not timed: how many characters the parser's buffer held, summed over all steps."""
    from closeout.parsing import react

    touched = 0
    append = react.Tape.append

    def counted(self, text):
        nonlocal touched
        append(self, text)
        touched += len(self.text)

    monkeypatch.setattr(react.Tape, "append", counted)
    head, body = HOSTILE[kind]
    costs = []
    for size in (20_000, 80_000):
        touched = 0
        text = (head + body * size)[:size]
        feed(text, range(0, size, 64))
        costs.append(touched / size)
    assert costs[1] <= 1.5 * costs[0]


def test_json_is_read_alike_in_pieces_of_every_size():
    """Long JSON in small pieces goes other ways through the scanner than in one; both must agree."""
    row = '{"name": "Überraschung", "n": [1, -2.5e3, {"a": null}], "t": true, "x": "say \\"hi\\" \\u00e9"},\n'
    text = f'Action: {{"action": "store", "action_input": [{row * 20} 1]}}'
    whole = joined(feed(text)[0])
    assert of_kind(whole, "action")[0].input[0]["x"] == 'say "hi" é'
    for size in (1, 2, 3, 5, 7, 16, 64):
        assert joined(feed(text, range(0, len(text), size))[0]) == whole


def test_many_lines_of_json_do_not_hide_the_action_after_them():
    text = "Thought: the rows are\n" + "[1, 2]\n" * 3000 + 'Action: {"action": "a", "action_input": 1}'
    (action,) = of_kind(feed(text)[0], "action")
    assert action.name == "a"


def test_untrusted_text_is_passed_on_without_being_read():
    parser = CotAgentOutputParser()
    parser.feed('Action: {"action": "a", "action_input": 1}')
    (event,) = parser.feed("{" * 1_000_000)
    assert (event.kind, event.end - event.start) == ("untrusted", 1_000_000)
