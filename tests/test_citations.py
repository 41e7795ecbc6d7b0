"""Quotes in answers: literal ones count, however they are typeset; changed, merged and invented ones do not."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

import closeout
from cli_process import here
from closeout import Agent, Check, Cited, Quote, Report, cited, tool
from closeout.answers.citations import citations_of, quotes_in
from closeout.answers.sources import Evidence
from closeout.errors import ToolError
from closeout.messages import ModelReply
from closeout.testing import ScriptedClient, answer, call, say, serve_script

# Paragraphs of Wikipedia from HotpotQA and MuSiQue; data/README.md names the sources.
PASSAGES = Path(closeout.__file__).parent / "evaluate" / "benchmarks" / "data" / "multihop_passages.jsonl"
NUMBER = re.compile(r"(?<![\w.,-])\d{2,4}(?![\w.,-])")


def pages() -> list[str]:
    return [json.loads(line)["text"] for line in PASSAGES.read_text("utf-8").splitlines()]


def source(text: object, handle: str = "r1", arguments: str = "{}") -> dict[str, Evidence]:
    return {handle: Evidence(handle, "read", arguments, 0.0, text)}


def is_right(quote: str, sources: dict[str, Evidence], handle: str = "") -> bool:
    (citation,) = citations_of([Quote(text=quote, handle=handle)], sources)
    assert (citation.source is None) == bool(citation.problem)
    return not citation.problem


def spans(random_of: random.Random, found: list[str]) -> Iterator[tuple[str, str]]:
    """Pages with a run of eight to twenty of their words."""
    while True:
        page = random_of.choice(found)
        words = page.split()
        if len(words) > 40:
            start = random_of.randrange(len(words) - 20)
            yield page, " ".join(words[start : start + random_of.randrange(8, 20)])


def hyphenated(text: str) -> str:
    """Break a line inside a long word, as PDFs do."""
    return re.sub(r"\b([a-z]{3})([a-z]{4,})", r"\1-\n\2", text, count=3)


TYPESET: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "line breaks": lambda text: text.replace(" ", "\n  ", 7),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "entities": lambda text: escape(text).replace(" ", "&nbsp;"),
    "markup": lambda text: re.sub(r"(\w+) (\w+)", r"<b>\1</b> <a href='/x'>\2</a>", text, count=5),
    "half a word in bold": lambda text: re.sub(r"\b(\w\w)(\w\w+)", r"<b>\1</b>\2", text, count=3),
    "blocks": lambda text: "<p>" + text.replace(". ", ".</p><p>") + "</p>",
    "hyphens of a PDF": hyphenated,
    "soft hyphens": lambda text: re.sub(r"\b(\w{3})(\w{3})", "\\1\u00ad\\2", text),
    "typographic quotes": lambda text: text.replace('"', "“").replace("'", "’").replace("-", "–"),
    "full width": lambda text: "".join(
        chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and c not in "<>&*`[]()" else c for c in text
    ),
    "Markdown": lambda text: re.sub(r"(\w+) (\w+)", r"**\1** [\2](https://example.org/a)", text, count=3),
}


def test_a_thousand_literal_quotes_count_however_source_or_quote_are_typeset() -> None:
    chance = random.Random(7)
    kinds = list(TYPESET.items())
    for number, (page, quote) in zip(range(1_000), spans(chance, pages()), strict=False):
        name, typeset = kinds[number % len(kinds)]
        assert is_right(quote, source(typeset(page))), (name, quote)
        assert is_right(typeset(quote), source({"text": [page]})), (name, quote)


def changed_number(quote: str) -> str:
    return NUMBER.sub(lambda found: str(int(found[0]) + 1), quote, count=1)


FAULTS: dict[str, Callable[[str, str, random.Random], str]] = {
    "another number": lambda quote, page, chance: changed_number(quote),
    "a negation more": lambda quote, page, chance: re.sub(r"\b(is|was|were|are|has|had) ", r"\1 not ", quote, count=1),
    "a negation less": lambda quote, page, chance: re.sub(r"\b(not|never|no) ", "", quote, count=1),
    "an ellipsis": lambda quote, page, chance: " ".join((words := quote.split())[:3]) + " … " + " ".join(words[5:]),
    "dots": lambda quote, page, chance: " ".join((words := quote.split())[:3]) + " ... " + " ".join(words[5:]),
    "a word less": lambda quote, page, chance: " ".join(quote.split()[:3] + quote.split()[4:]),
    "two words exchanged": lambda quote, page, chance: " ".join(
        [*(words := quote.split())[:2], words[3], words[2], *words[4:]]
    ),
    "half a word": lambda quote, page, chance: quote[2:] if quote[:3].isalpha() else quote + "zzz",
    "two places merged": lambda quote, page, chance: quote + " " + " ".join(page.split()[:6]),
    "another name": lambda quote, page, chance: re.sub(r"\b[A-Z][a-z]{3,}\b", "Zanzibar", quote, count=1),
}


def test_a_thousand_changed_quotes_do_not_count() -> None:
    chance = random.Random(11)
    kinds = list(FAULTS.items())
    found, planted = pages(), dict.fromkeys(FAULTS, 0)
    for page, quote in spans(chance, found):
        name, fault = kinds[sum(planted.values()) % len(kinds)]
        wrong = fault(quote, page, chance)
        if wrong == quote or wrong in page:  # the fault needs a number or a negation
            kinds.append(kinds.pop(0))
            continue
        assert not is_right(wrong, source(page)), (name, wrong)
        planted[name] += 1
        if sum(planted.values()) == 1_000:
            break
    assert all(planted.values())


@pytest.mark.parametrize(
    ("quote", "text"),
    [
        ("5 million people", "It has 1.5 million people."),
        ("5 degrees", "At -5 degrees it freezes."),
        ("costs 1", "It costs 1,200 francs."),
        ("grew by 2", "It grew by 2.5 per cent."),
        ("able to swim", "They were unable to swim."),
        ("", "Anything."),
        ("…", "Anything."),
    ],
)
def test_a_quote_that_cuts_a_word_or_a_number_does_not_count(quote: str, text: str) -> None:
    assert not is_right(quote, source(text))


def test_the_place_of_a_quote_is_found_in_the_text_as_it_was_read() -> None:
    chance = random.Random(13)
    kinds = list(TYPESET.items())
    for number, (page, quote) in zip(range(240), spans(chance, pages()), strict=False):
        name, typeset = kinds[number % len(kinds)]
        (evidence,) = source({"text": typeset(page)}).values()
        place = evidence.passage(quote)
        assert place is not None
        read = evidence.texts[place.text][1][place.start : place.end]
        assert is_right(quote, source(f"[{read}" if read.count("](") > read.count("[") else read)), (name, quote, read)
        assert len(read) < 8 * len(quote), (name, quote, read)  # and hardly more than that
    for page, quote, read in (
        ("e\u0301te\u0301 un ｶﾞ ab", "été un ガ", "e\u0301te\u0301 un ｶﾞ"),
        ("한국 가 나", "가 나", "가 나"),
        ("  the  [long lock](https://x.org/a) opened", "lock opened", "lock](https://x.org/a) opened"),
    ):
        (evidence,) = source(page).values()
        place = evidence.passage(quote)
        assert place is not None
        assert page[place.start : place.end] == read


def test_chinese_quotes_count_across_line_breaks_and_full_width_signs() -> None:
    sources = source("大运河全长约１７９４公里，\n开凿于\n公元前486年。")
    assert is_right("全长约1794公里，开凿于公元前486年", sources)
    assert not is_right("全长约1974公里", sources)


def test_a_quote_counts_only_in_the_result_that_it_names() -> None:
    sources = {**source("The lock opened in 1832."), **source("The bridge fell in 1907.", "r2")}
    assert is_right("The bridge fell in 1907", sources, "r2")
    (citation,) = citations_of([Quote(text="The bridge fell in 1907", handle="r1")], sources)
    assert citation.problem == '"The bridge fell in 1907" is not in result r1, but in r2.'
    (citation,) = citations_of([Quote(text="The bridge fell in 1908")], sources)
    assert citation.problem.endswith('word for word. The nearest passage is "The bridge fell in 1907.".')
    (citation,) = citations_of([Quote(text="The bridge", handle="r9")], sources)
    assert "from r9: there is none" in citation.problem


def test_words_that_the_model_wrote_into_a_call_are_no_evidence_from_it() -> None:
    echo = source({"query": "Swans are black.", "hits": []}, arguments='{"query": "Are swans black? Swans are black."}')
    assert not is_right("Swans are black", echo)


def test_quotes_are_read_from_text_in_several_forms_and_in_linear_time() -> None:
    text = (
        'It opened in 1832 [r3: "opened on 30 May"], late [“very late”]。运河 [r1:reader/r2：「大运河」] and [1] "x".'
    )
    assert [(quote.handle, quote.text) for quote in quotes_in(text)] == [
        ("r3", "opened on 30 May"),
        ("", "very late"),
        ("r1:reader/r2", "大运河"),
    ]
    assert quotes_in('["' * 200_000) == []


@tool(read_only=True)
def read(page: str) -> str:
    """Read a page."""
    if page == "broken":
        raise ToolError("The lock was closed for repairs.")
    return {"canal": "The canal opened in 1832. It is not long.", "bridge": "The bridge fell in 1907."}[page]


def report(quote: str) -> str:
    return json.dumps({"title": "Canal", "claims": [{"text": "Old.", "quotes": [{"text": quote, "handle": "r1"}]}]})


def test_a_report_with_a_wrong_quote_is_asked_for_again_with_the_nearest_passage() -> None:
    replies = [say(report("The canal opened in 1833")), say(report("The canal opened in 1832"))]
    model = ScriptedClient([call("read", page="canal"), *replies])
    result = Agent(model, [read], answer=Report, check=cited()).run_sync("When?")
    assert result.value is not None
    assert result.value.claims[0].quotes[0].text == "The canal opened in 1832"
    assert 'The nearest passage is "The canal opened in 1832.".' in model.requests[-1].messages[-1].text
    (citation,) = result.citations
    assert (citation.source.tool, citation.source.arguments) == ("read", '{"page":"canal"}')


def test_what_stays_unsupported_is_refused_or_marked() -> None:
    def agent(check: Any) -> Agent:
        script = [call("read", page="canal"), *[say('It is long [r1: "It is long"].')] * 4]
        return Agent(ScriptedClient(script), [read], check=check)

    assert agent(Check(cited(), times=1, then="unanswered")).run_sync("Long?").status == "unanswered"
    for check, replies in ((Check(cited(), times=1, then="accept"), 2), (cited(), 3)):
        marked = agent(check).run_sync("Long?")
        assert (marked.status, marked.usage.requests) == ("answered", 1 + replies)
        assert [bool(citation.problem) for citation in marked.citations] == [True]


def test_a_quote_of_the_question_of_an_error_or_of_another_run_does_not_count() -> None:
    Agent(ScriptedClient([call("read", page="bridge"), answer("Fell.")]), [read]).run_sync("The bridge?")
    for quote in ("Is the canal blue", "The lock was closed for repairs", "The bridge fell in 1907"):
        model = ScriptedClient(
            [call("read", page="canal"), call("read", page="broken"), *[say(f'So ["{quote}"].')] * 4]
        )
        result = Agent(model, [read], check=Check(cited(), then="unanswered")).run_sync("Is the canal blue?")
        assert result.status == "unanswered", quote


def test_the_sources_of_sub_agents_and_programs_count_and_their_own_words_do_not() -> None:
    reader = Agent(ScriptedClient([call("read", page="canal"), answer("It is endless.")]), [read])
    script = [call("reader", task="Read."), say('["It is endless"]'), say('[r1: "The canal opened in 1832"]')]
    result = Agent(ScriptedClient(script), [reader.as_tool("reader", "Reads.")], check=cited()).run_sync("When?")
    assert [citation.source.handle for citation in result.citations if citation.source] == ["r1:reader/r1"]

    program = '```python\nprint(read("canal"))\n```'
    final = "```python\nfinal_answer({'value': 1832, 'quotes': [{'text': 'opened in 1832', 'handle': 'r1'}]})\n```"
    model = ScriptedClient([say(program), say(final)])
    counted = Agent(model, [read], dialect="code", answer=Cited[int], check=cited()).run_sync("When?")
    assert counted.value is not None
    assert counted.value.value == 1832
    assert [citation.source.handle for citation in counted.citations if citation.source] == ["r1:program/r1"]


def test_cite_prints_every_quote_with_its_source() -> None:
    made = Agent(
        ScriptedClient([call("read", page="canal"), say(report("The canal opened in 1832"))]), [read], answer=Report
    )
    run_id = made.run_sync("When?").run_id
    shown = here("runs", "cite", run_id)
    assert shown.code == 0
    assert '[1] "The canal opened in 1832"\n    r1: read {"page":"canal"} · read 20' in shown.out
    (found,) = json.loads(here("runs", "cite", run_id, "--json").out)
    assert found["source"]["sha256"] == hashlib.sha256(read.function("canal").encode()).hexdigest()

    made = Agent(ScriptedClient([say('Long [r1: "very long"].')]), [read])
    wrong = here("runs", "cite", made.run_sync("Long?").run_id)
    assert wrong.code == 1
    assert "NOT FOUND" in wrong.out
    assert "has no quotes" in here("runs", "cite", Agent(ScriptedClient([say("Long.")])).run_sync("Long?").run_id).out


async def test_pages_that_a_provider_cites_are_kept_and_shown_by_the_same_type(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "The canal opened in 1832."
    url, title = "https://example.org/canal", "Canal"
    page = {"url": url, "title": title}
    annotation = {"start_index": 0, "end_index": len(said), **page}
    grounded = {
        "groundingChunks": [{"web": {"uri": url, "title": title}}],
        "groundingSupports": [{"segment": {"endIndex": 25, "text": said}, "groundingChunkIndices": [0, 7]}],
    }
    openai = {"annotations": [{"type": "url_citation", "url_citation": annotation}]}
    block = {
        "type": "text",
        "text": said,
        "citations": [{"type": "web_search_result_location", "cited_text": said} | page],
    }
    replies = {
        "openai:m": {"message": openai},
        "openai:flat": {"message": {"annotations": [{"type": "url_citation", **annotation}] * 2}},
        "openai:gemini": {"message": {"extra_content": {"google": {"grounding_metadata": grounded}}}},
        "anthropic:m": {"content": [block]},
    }
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    for model, attached in replies.items():
        reply = ModelReply("" if model.startswith("anthropic") else said, attached=attached)
        for stream in (False, True):
            async with serve_script([reply]) as server:
                base_url = server.base_url.removesuffix("/v1") if model.startswith("anthropic") else server.base_url
                agent = Agent(model, base_url=base_url, api_key="k", stream=stream)
                result = await agent.run("When?")
            (citation,) = result.citations
            assert citation.by_provider, model
            assert (citation.quote.text, citation.address, citation.title) == (said, url, title), (model, stream)
            assert citation.source is None
