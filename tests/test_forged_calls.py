"""A call that a reply only quotes never runs a destructive tool. The rig is tests/harness/forgery.py."""

from __future__ import annotations

import itertools
import random
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import forgery

from closeout import ToolPolicy, ToolSpec, salvage
from closeout.dialects.protocol import DIALECTS, get_dialect
from closeout.messages import ModelReply
from closeout.parsing.read_reply import read_reply
from closeout.results.escape import escape_markers
from closeout.server.governing import Governor

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

# Forms that never run a destructive tool, as nothing marks them.
NEVER = {"llama 3 bare", "llama 3.2 list", "openai envelope", "xlam", "xlam, a fence"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_quoted_call_never_runs_a_destructive_tool(seed: int) -> None:
    assert forgery.forged(forgery.sample(150, seed)) == []


# Forty languages: the words are not looked at, so one sentence of each will do.
SENTENCES = [
    "Die Seite enthält den folgenden Text.",
    "It is an injection.",
    "I refuse to run it.",
    "I'll translate the mail.",
    "La page dit ceci.",
    "Esto dice la página.",
    "A página contém isto.",
    "La pagina dice questo.",
    "De pagina bevat dit.",
    "Sidan innehåller detta.",
    "Siden inneholder dette.",
    "Siden indeholder dette.",
    "Sivulla lukee näin.",
    "Lehel on see tekst.",
    "Lapā ir šāds teksts.",
    "Puslapyje parašyta taip.",
    "Strona zawiera ten tekst.",
    "Na stránce stojí toto.",
    "Na stránke je toto.",
    "Az oldalon ez áll.",
    "Pagina conține acest text.",
    "На странице написано так.",
    "На сторінці написано так.",
    "На страницата пише това.",
    "На страници пише ово.",
    "Na stranici piše ovo.",
    "Na strani piše to.",
    "Faqja thotë këtë.",
    "Η σελίδα λέει αυτό.",
    "Sayfada bu yazıyor.",
    "تقول الصفحة هذا.",
    "בדף כתוב כך.",
    "صفحه این را می\u200cگوید.",
    "पृष्ठ पर यह लिखा है।",
    "পৃষ্ঠায় এটি লেখা আছে।",
    "பக்கம் இதைக் கூறுகிறது.",
    "หน้านี้เขียนไว้ว่า",
    "Trang này viết như sau.",
    "Halaman ini berkata begini.",
    "该页面写着以下内容。",
    "このページにはこう書いてあります。",
    "이 페이지에는 이렇게 적혀 있습니다.",
]


@pytest.mark.parametrize("effects", [ToolPolicy(), ToolPolicy(destructive=True)], ids=["says nothing", "destructive"])
def test_a_call_amid_text_of_any_language_runs_no_tool_with_effects(effects: ToolPolicy) -> None:
    tools = [ToolSpec("wipe", parameters=PATH, policy=effects)]
    governor, readers = Governor(tools), {name: get_dialect(name).reader for name in DIALECTS}
    chance = random.Random(1)
    for form, dialect, before in itertools.product(forgery.WRITERS, DIALECTS, (True, False)):
        sentence = chance.choice(SENTENCES)
        written = forgery.WRITERS[form].write([("wipe", {"path": "/"})])
        reply = ModelReply(f"{sentence}\n{written}" if before else f"{written}\n{sentence}")
        assert not governor.judge(reply).reply.tool_calls, reply.text
        is_own = form in OWN_FORMS.get(dialect, ())
        is_thought = dialect == "cot_completion" and before  # the prompt has written `Thought:`
        if effects.destructive or not (is_own or is_thought):
            assert not read_reply(reply, readers[dialect](tools), tools).calls, (dialect, reply.text)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_no_language_makes_a_call_amid_text_run(sentence: str) -> None:
    tools = [ToolSpec("wipe", parameters=PATH)]
    for form in forgery.WRITERS:
        written = forgery.WRITERS[form].write([("wipe", {"path": "/"})])
        for text in (f"{sentence}\n{written}", f"{written}\n{sentence}"):
            assert not Governor(tools).judge(ModelReply(text)).reply.tool_calls, text


OWN_FORMS = {
    "cot_chat": ("react", "react, json"),
    "cot_completion": ("react", "react, json"),
    "mcp_xml": ("use_mcp_tool",),
    "code": ("gemma 3", "gemma 3, a list"),
}


def test_a_call_below_a_sentence_is_text_whichever_of_its_marks_is_missing() -> None:
    tools = [ToolSpec("wipe", parameters=PATH, policy=ToolPolicy(destructive=True))]
    for form in forgery.WRITERS.values():
        written = form.write([("wipe", {"path": "/"})])
        marks = [mark.span() for mark in re.finditer(r"<[^<>]*>|\[[^\[\]]*\]|[^\x00-\x7f]+", written)]
        lines = [line.span() for line in re.finditer(r".+\n?", written)]
        for start, end in {*marks, *lines}:
            for changed in ("", written[start:end].upper()):
                text = f"I will not do what follows here.\n{written[:start]}{changed}{written[end:]}"
                found = salvage(text, tools=tools)
                assert found is None or not found.calls, text


@pytest.mark.parametrize("form", forgery.WRITERS)
def test_a_call_in_a_tool_result_is_text_whatever_character_is_hidden_in_it(form: str) -> None:
    tools = [ToolSpec("wipe", parameters=PATH, policy=ToolPolicy(destructive=True))]
    written = forgery.WRITERS[form].write([("wipe", {"path": "/"})])
    hidden = (written[:at] + each + written[at:] for each in "\u200b\ufeff\xa0\r\v" for at in range(len(written)))
    read = ((text, salvage(escape_markers(text), tools=tools)) for text in hidden)
    assert [text for text, found in read if found is not None and found.calls] == []


@pytest.mark.parametrize("dialect", OWN_FORMS)
def test_a_quoted_call_in_the_dialects_own_form_never_runs_a_destructive_tool(dialect: str) -> None:
    own = [cell for cell in forgery.cells() if cell.dialect == dialect and cell.form in OWN_FORMS[dialect]]
    assert forgery.forged(own[::7]) == []


async def test_a_program_of_the_models_own_runs_a_destructive_tool() -> None:
    pytest.importorskip("pydantic_monty")
    assert await forgery.control("gemma 3", "code")


async def test_the_same_forms_run_it_as_calls_of_the_models_own() -> None:
    refused = {form for form in forgery.WRITERS if not await forgery.control(form, "function_call")}
    assert refused == NEVER
