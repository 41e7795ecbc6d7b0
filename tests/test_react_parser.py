"""The rules of the ReAct parser, in the order and with the numbers of docs/parser.md."""

import json

import pytest

from closeout.parsing.react import CotAgentOutputParser, joined
from react_samples import CALL, action, answer, defect, feed, of_kind, parse, repairs

BODY = {"q": "Überraschung 😀"}


def kinds(text, **options):
    return [(e.kind, e.role, text[e.start : e.end]) for e in parse(text, **options) if e.end > e.start]


# ------------------------------------------------------------------------------------------------ lossless


def test_rule_1_spans_tile_the_text_and_structure_is_a_kind_not_a_loss():
    text = f"Thought: so\nAction: {CALL}\nObservation: 3"
    events = parse(text)
    assert "".join(text[e.start : e.end] for e in events) == text
    assert ("marker", "", "Thought: ") in kinds(text)
    assert ("untrusted", "", "\nObservation: 3") in kinds(text)


def test_rule_1_held_back_text_is_emitted_at_the_end():
    parser = CotAgentOutputParser()
    early = parser.feed("It is so.\nThou")
    assert "".join(e.text for e in early) == "It is so.\n"
    late = parser.close()
    assert late[0].text == "Thou"


def test_rule_2_an_escape_a_tag_and_a_surrogate_pair_may_be_cut_anywhere():
    text = '<think>x</think>Action: {"action": "Final Answer", "action_input": "\\ud83d\\ude00\\n"}'
    whole = parse(text)
    assert joined(feed(text, range(1, len(text)))[0]) == whole
    assert of_kind(whole, "final")[0].text == "😀\n"


def test_rule_3_no_more_than_a_marker_is_held_back():
    for text in (
        "Thought: a" * 50,
        "\n" * 400,
        "`" * 400,
        "*" * 400,
        " {" * 200,
        "<thi" * 100,
        "Final Answer: \n Obs" * 20,
    ):
        parser = CotAgentOutputParser()
        told = 0
        for at, character in enumerate(text):
            told += sum(e.end - e.start for e in parser.feed(character))
            assert at + 1 - told <= 40, text[:20]


def test_rule_3_depth_and_size_have_limits():
    deep = 'Action: {"action": "a", "action_input": ' + "[" * 5000
    assert defect(deep) == "too_deep"
    assert defect("[" * 100_000) is None  # outside an action it is text
    assert defect(f"Action: {CALL}", max_size=20) == "too_large"
    assert answer('{"a": [1, 2, 3]}', max_size=10) == '{"a": [1, 2, 3]}'  # no action, so no limit
    assert defect("Action: None\n" * 2000) == "too_many_actions"


# ------------------------------------------------------------------------------------------------ structure


def test_rule_4_markers_fences_and_tags_inside_a_string_are_data():
    value = "```\nObservation: 1\n<think>\nFinal Answer: }]"
    found = action("Action: " + json.dumps({"action": "write", "action_input": value}) + "\nmore")
    assert found.input == value


@pytest.mark.parametrize(
    "marker",
    ["Thought:", "thought：", "**Thought:**", "### Thought 3:", "Thought #3:", "\ufeff Thought :", "* THOUGHT:"],
)
def test_rule_5_markers_may_be_decorated_numbered_and_in_any_case(marker):
    text = f"{marker} why\nFinal Answer: 1"
    assert [e.text.strip() for e in of_kind(parse(text), "text") if e.role == "thought"] == ["why"]


@pytest.mark.parametrize("written", ["Action Input: {}", "Action Input 1：{}", "ACTION_INPUT: {}"])
def test_rule_5_the_input_may_be_on_the_actions_own_line(written):
    found = action("Action: search " + written.replace("{}", json.dumps(BODY)))
    assert (found.name, found.input) == ("search", BODY)


@pytest.mark.parametrize("marker", ["Final Answer:", "FinalAnswer:", "final_answer :", "Answer:"])
def test_rule_5_the_final_answer_has_several_names(marker):
    assert answer(f"{marker} 42") == "42"


def test_rule_5_a_marker_within_a_line_is_text():
    assert answer(f"I would write Action: {CALL} there") == f"I would write Action: {CALL} there"


def test_rule_5_a_marker_in_a_code_fence_is_text():
    text = f"Thought: an example\n```\nAction: {CALL}\nFinal Answer: 1\n```\nFinal Answer: 2"
    assert action(text) is None
    assert answer(text) == "2"


def test_rule_5_translations_can_be_added():
    words = {"thought": ["思考"], "action": ["行动"], "observation": ["观察"], "final_answer": ["最终答案"]}
    assert action(f"思考：我\n行动：{CALL}", markers=words).input == BODY
    assert answer("思考: 好\n最终答案：四十二\n观察：x", markers=words) == "四十二"
    with pytest.raises(ValueError, match="no markers"):
        CotAgentOutputParser(markers={"thoughts": ["x"]})


@pytest.mark.parametrize(
    "text",
    [
        f"Action: {CALL}",
        f"Action:\n\n{CALL}",
        f"Action: ```json\n{CALL}\n```",
        f"Thought: so\n{CALL}\n",
        '<tool_call>{"name": "search", "arguments": {"q": "Überraschung 😀"}}</tool_call>',
        'Action: <tool_call>\n{"name": "search", "arguments": {"q": "Überraschung 😀"}}',
    ],
)
def test_rule_6_where_json_becomes_an_action(text):
    assert repairs(text) == []
    found = action(text)
    assert (found.name, found.input) == ("search", BODY)


@pytest.mark.parametrize(
    "text",
    [
        f"Thought: I could write {CALL} here",
        f"Thought: so\n{CALL} is the form",
        f"Thought: so\n```json\n{CALL}\n```",
        'Thought: so\n{"name": "Bob", "age": 3}',
        'Thought: so\n{"action": "buy"}',
        "Thought: <tool_call> is a tag",
    ],
)
def test_rule_6_json_that_is_only_quoted_stays_text(text):
    assert action(text) is None
    assert answer(text + "\nFinal Answer: 1") == "1"


def test_rule_6_a_stray_bracket_captures_nothing():
    text = f'Thought: {{ and [\n{{\n["x\n[1\n{{"a": \nAction: {CALL}'
    assert action(text).input == BODY


@pytest.mark.parametrize(
    "fence",
    ["```json\n{}\n```", "```{}```", "~~~~ any info\n{}\n~~~~", "   ```\n  {}\n   ```", "`````json {}`````"],
)
def test_rule_7_fences_of_every_kind(fence):
    text = "Action: " + fence.replace("{}", CALL)
    assert action(text).input == BODY
    assert repairs(text) == []


def test_rule_7_a_fence_left_open_around_a_complete_object_is_named():
    assert repairs(f"Action:\n```json\n{CALL}\n") == ["fence_unclosed"]
    assert repairs(f"Action:\n```json\n{CALL}\nObservation: 3") == ["fence_unclosed"]


def test_rule_7_a_longer_fence_holds_shorter_ones():
    assert answer("Thought: x\n````\n```\nFinal Answer: 1\n```\n````\nFinal Answer: 2") == "2"


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        (f"<think>one<think>two</think>Action: {CALL}</think>Final Answer: 1", f"one<think>two</think>Action: {CALL}"),
        ("<THINK>x</THINK >\nFinal Answer: 1", "x"),
        ("so it is\nFinal Answer: 0\n</think>\nFinal Answer: 1", ""),
    ],
)
def test_rule_8_reasoning_is_reported_and_never_parsed(text, reasoning):
    events = parse(text)
    assert "".join(e.text for e in of_kind(events, "reasoning")) == reasoning
    assert of_kind(events, "action") == []
    assert of_kind(events, "final")[-1].text == "1"


def test_rule_8_a_tag_in_backticks_is_text():
    assert answer("The `<think>` tag opens it.") == "The `<think>` tag opens it."
    assert answer("Thought: I end it with `</think>` then\nFinal Answer: 1") == "1"
    assert answer("I call `search`</think>\nFinal Answer: 1") == "1"
    assert action(f"Thought: one writes `<tool_call>{CALL}</tool_call>`\nFinal Answer: 1") is None


@pytest.mark.parametrize(
    "text",
    [
        "They write `<think>…</think>` first.",
        "They write `text <think> more </think> text` first.",
        "Write ``<think>`` and `</think>`.",
        "`a`, then `<think>`.",
    ],
)
@pytest.mark.parametrize(
    "before", ["", "<think>hm</think>", "Final Answer: ", "Thought: `<think>` it is\nFinal Answer: "]
)
def test_rule_8_an_answer_that_explains_the_tags_is_whole(before, text):
    assert answer(before + text) == text


@pytest.mark.parametrize(
    "inner", ["the `<think>` tag", "the `</think>` tag", "`<think>…</think>`", "don`t", "`a` <think>b</think>"]
)
def test_rule_8_a_tag_in_backticks_neither_nests_nor_ends_reasoning(inner):
    events = parse(f"<think>{inner}</think>It is `42`")
    assert answer(f"<think>{inner}</think>It is `42`") == "It is `42`"
    assert "".join(e.text for e in of_kind(events, "reasoning")) == inner


def test_rule_8_without_an_opening_tag_all_before_turns_out_to_be_reasoning():
    text = "Let me see.\nThought: hm\n</think>\nThe answer is 4."
    turned = next(e for e in parse(text) if e.kind == "reasoning" and e.span)
    assert text[slice(*turned.span)].endswith("</think>")
    assert answer(text) == "The answer is 4."


def test_rule_8_without_a_closing_tag_the_rest_is_reasoning():
    assert defect(f"<think>never closed\nAction: {CALL}") == "empty"


def test_rule_8_the_prompt_may_have_opened_the_tag():
    text = f"Action: {CALL}\n</think>\nFinal Answer: 1"
    assert answer(text, reasoning_open=True) == "1"
    assert action(text, reasoning_open=True) is None


# ------------------------------------------------------------------------------------------------ normalising


@pytest.mark.parametrize(
    "text",
    [
        '{"action_input": {"x": 1}, "id": 7, "action": "f"}',
        '{"tool": "f", "tool_input": {"x": 1}}',
        '{"name": "f", "arguments": {"x": 1}}',
        '{"function_name": "f", "parameters": {"x": 1}}',
        '{"name": "not this", "action": "f", "args": {"x": 1}}',
        '[{"action": "f", "action_input": {"x": 1}}]',
        '{"tool_call": {"name": "f", "arguments": {"x": 1}}}',
        '{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}',
        '{"tool_calls": [{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}]}',
    ],
)
def test_rule_9_keys_in_priority_wrappers_and_double_encoding(text):
    found = action(f"Action: {text}")
    assert (found.name, found.input) == ("f", {"x": 1})


@pytest.mark.parametrize("text", ['{"action": "f"}', '{"action": "f", "action_input": null}'])
def test_rule_9_a_missing_or_null_input_is_an_empty_object(text):
    assert action(f"Action: {text}").input == {}


@pytest.mark.parametrize("value", ["text", 7, 1.5, True, [1, "a"], {"a": {"b": []}}, ""])
def test_rule_9_any_json_type_is_an_input(value):
    assert action("Action: " + json.dumps({"action": "f", "action_input": value})).input == value


@pytest.mark.parametrize("name", ["Final Answer", "final_answer", "FINAL-ANSWER", " final.answer ", "FinalAnswer"])
def test_rule_10_one_test_for_the_final_answer(name):
    assert answer(json.dumps({"action": name, "action_input": "42"})) == "42"
    assert answer(f"Action: {name}\nAction Input: 42") == "42"


def test_rule_10_the_answer_may_be_on_an_action_line():
    assert answer("Action: Final Answer: 42") == "42"
    assert answer("Thought: so\n**Action:** Answer: 42") == "42"


def test_rule_12_a_name_and_its_object_on_one_line_are_an_action_without_repair():
    found = action('Action: f {"x": 1}')
    assert (found.name, found.input, found.repairs) == ("f", {"x": 1}, ())


@pytest.mark.parametrize(
    ("text", "value", "names"),
    [
        (
            "{'action': 'f', 'action_input': {'x': True, 'y': None}}",
            {"x": True, "y": None},
            {"single_quotes", "python_literal"},
        ),
        ('{"action": "f", "action_input": [1, 2,],}', [1, 2], {"trailing_comma"}),
        (
            '{"action"："f"，"action_input"：{"城市"："北京：东，西"，"天"：［1，2］}}',
            {"城市": "北京：东，西", "天": [1, 2]},
            {"full_width"},
        ),
        ('｛“action”：“f”，“action_input”：“他说\\"好\\"”｝', '他说"好"', {"smart_quotes", "full_width"}),
        ("f\nAction Input: {“城市”：“北京”}", {"城市": "北京"}, {"smart_quotes", "full_width"}),
        ('{"action": "f", /* what */ "action_input": 1 // why\n}', 1, {"comment"}),
        ('{"action": "f", "action_input": "a\nb"}', "a\nb", {"raw_newline"}),
        ('"{"action": "f", "action_input": 1}"', 1, {"outer_quotes"}),
        ('f({"x": 1})', {"x": 1}, {"call_form"}),
        ('f ({"x": 1})', {"x": 1}, {"call_form"}),
        ('f: {"x": 1}', {"x": 1}, {"call_form"}),
        ('```json\n// the call\n{"action": "f", "action_input": 1}\n```', 1, {"comment"}),
        ('f\nAction Input: "{\\"x\\": 1}"', {"x": 1}, {"double_encoded"}),
    ],
)
def test_rule_11_what_is_repaired_is_named(text, value, names):
    found = action(f"Action: {text}")
    assert (found.name, found.input) == ("f", value)
    assert {repair.kind for repair in found.repairs} == names


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        ('{"action": "f", "action_input": {"x": 1}', "length", "truncated"),
        ('{"action": "f", "action_input": {"x": "cut', "length", "truncated"),
        ("f\nAction Input: cut o", "length", "truncated"),
        ('{"action": "f", "action_input": NaN}', "stop", "broken_action"),
        ('{"action": "f", "action": "g", "action_input": 1}', "stop", "duplicate_key"),
        ('{"action": "f", "action_input": {}, "final_answer": "42"}', "stop", "action_and_answer"),
        ('{"action": "f", "action_input": {unquoted: 1}}', "stop", "broken_action"),
        ('{"action"："f"，"action"："g"，"action_input"：1}', "stop", "duplicate_key"),
        ('{"action"："f"，"action_input"：{"a"：1，"a"：2}}', "stop", "broken_action"),
        ('{"action"："f"，"action_input"：{"q"："好" "不好"}}', "stop", "broken_action"),
        ('{"action"："f"，"action_input"：{"q"：他说“好”}}', "stop", "broken_action"),
        ('{"action": "f", "action_input": {"q": “好" }}', "stop", "broken_action"),
    ],
)
def test_rule_11_what_is_never_repaired(text, reason, code):
    assert action(f"Action: {text}", reason) is None
    assert defect(f"Action: {text}", reason) == code


def test_rule_11_a_missing_bracket_is_closed_only_where_the_model_stopped_by_itself():
    text = 'Action: {"action": "f", "action_input": {"x": 1}'
    assert repairs(text) == repairs(text + "\nObservation: 3") == ["missing_bracket"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"x": 1}', {"x": 1}),
        ("Paris in May", "Paris in May"),
        ("two\nlines", "two\nlines"),
        ('"quoted"', "quoted"),
        ('"a" and "b"', '"a" and "b"'),
        ("'single'", "single"),
        ("```python\nprint(1)\n```", "print(1)"),
        ('```json\n{"x": 1}\n```', {"x": 1}),
        ("[Paris] weather", "[Paris] weather"),
        ("42", 42),
        ("", {}),
        ("None", {}),
    ],
)
def test_rule_12_the_text_form_gives_the_same_event(written, value):
    found = action(f"Thought: so\nAction: f\nAction Input: {written}\nObservation: x")
    assert (found.name, found.input) == ("f", value)


@pytest.mark.parametrize("name", ["None", "N/A", "", "none.", "`None`", "No action needed.", "none required"])
def test_rule_13_no_action(name):
    assert action(f"Action: {name}\nFinal Answer: 1") is None
    assert answer(f"Action: {name}\nFinal Answer: 1") == "1"
    assert answer(json.dumps({"action": name, "action_input": {}}) + "\nFinal Answer: 1") == "1"


def test_rule_13_the_input_of_no_action_is_none_either():
    assert answer("Action: None\nAction Input: {}\nFinal Answer: 1") == "1"
    assert answer("**Action:** N/A\n**Action Input:** N/A\nThought: so\nFinal Answer: 1") == "1"
    assert defect("Action Input: {}\nFinal Answer: 1") == "broken_action"
    assert action("Action: nonesuch\nAction Input: {}").name == "nonesuch"


def test_rule_13_of_two_objects_in_one_fence_the_first_counts():
    second = CALL.replace("search", "other")
    assert action(f"Action:\n```json\n{CALL}\n{second}\n```").name == "search"
    assert action(f"Action: [{CALL}, {second}]").name == "search"


# ------------------------------------------------------------------------------------------------ safety


def test_rule_14_the_first_complete_action_ends_trust():
    rest = f"\nFinal Answer: 1\nAction: {CALL.replace('search', 'delete')}"
    events = parse(f"Action: {CALL}{rest}")
    assert [e.name for e in of_kind(events, "action")] == ["search"]
    assert of_kind(events, "final", "malformed") == []
    assert [e.text for e in of_kind(events, "untrusted")] == [rest]


def test_rule_14_the_parser_says_when_nothing_more_counts():
    parser = CotAgentOutputParser()
    parser.feed(f"Action: {CALL[:-1]}")
    assert not parser.complete
    parser.feed("}")
    assert parser.complete


@pytest.mark.parametrize("observation", ["\nObservation: 9", " Observation: 9", "Observation: 9"])
def test_rule_15_an_observation_of_the_models_own_is_never_one(observation):
    assert of_kind(parse(f"Action: {CALL}{observation}"), "untrusted")[0].text == observation
    assert action("Action: get_time\nObservation: 9").input == {}
    assert action("Action: f\nAction Input: x Observation: 9").input == "x"
    assert action("Action: f Observation: 9").name == "f"
    assert defect("Action: Observation: 9") == "invented_observation"


def test_rule_15_nothing_after_an_invented_observation_is_an_answer():
    text = "Thought: I know\nObservation: it is 9\nFinal Answer: 9"
    assert defect(text) == "invented_observation"
    assert answer(text) is None
    assert answer("Final Answer: 8\nObservation: 9\nFinal Answer: 9") == "8"


def test_rule_16_json_after_an_answer_is_answer_text():
    assert answer(f"Final Answer: use\n{CALL}") == f"use\n{CALL}"
    assert answer(f"Final Answer: {CALL}") == CALL
    assert action(f"Final Answer: 1\nAction: {CALL}") is None


def test_rule_17_plain_text_is_a_candidate_and_nothing_is_malformed():
    assert parse("It is 42.")[-2].role == "plain"
    assert defect("") == defect(" \n ") == "empty"
    assert defect("Final Answer:  \n") == "empty"
    assert defect("Thought: I wonder.") == "no_action"


@pytest.mark.parametrize(
    "text", ['{"action": "f", "action_input": {"x": "cut', 'Action: {"action": "f" "x"}', "Action: f(1, 2)"]
)
def test_rule_17_a_broken_action_is_never_silently_an_answer(text):
    found = of_kind(parse(text), "final", "malformed")
    assert [e.kind for e in found] == ["malformed"]
    assert 10 < len(found[0].hint) < 200


def test_rule_18_the_beginning_of_a_stop_marker_is_cut_from_the_value():
    events = parse("Final Answer: 42\nObserv")
    assert of_kind(events, "final")[0].text == "42"
    assert [e.code for e in of_kind(events, "marker")][-1] == "stop_prefix"
    assert action("Action: f\nAction Input: x\nObservation").input == "x"
    assert answer("Final Answer: O") == "O"


def test_rule_19_the_final_answer_streams_decoded():
    parser = CotAgentOutputParser()
    parser.feed('Action: {"action": "Final Answer", "action_input": "one\\n')
    told = [e.text for e in parser.feed("two \\u00e9 three") if e.kind == "final_delta"]
    assert "".join(told) == "two é three"
    parser = CotAgentOutputParser()
    parser.feed("Final Answer: ")
    assert [e.text for e in parser.feed("It is")] == ["It is"]


def test_tool_names_and_arguments_are_streamed_while_they_are_written():
    parser = CotAgentOutputParser()
    assert [e.name for e in parser.feed('Action: {"action": "search"') if e.kind == "action_start"] == ["search"]
    told = [e.text for e in parser.feed(', "action_input": {"q": "half of') if e.kind == "argument_delta"]
    assert told == ['{"q": "half of']


def test_a_closed_parser_takes_no_more():
    parser = CotAgentOutputParser()
    assert parser.close()[-1].kind == "end"
    assert parser.close() == []
    with pytest.raises(ValueError, match="closed"):
        parser.feed("x")
