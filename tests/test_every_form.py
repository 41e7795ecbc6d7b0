"""Every form of a reply that servers send, on both protocols: agent, stream, session, fork and resume.

The proxy in front of the same servers is in `test_proxy_faults.py`, vendors that want their state back are in
`test_vendor_state.py`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import ModelError
from closeout.models.anthropic import AnthropicClient
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import MISBEHAVIOURS, always, call, once, serve_script
from closeout.testing.misbehaviour import CONNECTION_FAULTS
from closeout.testing.odd_forms import ODD_FORMS
from closeout.testing.rejections import REJECTIONS
from closeout.testing.script import say
from closeout.testing.scripted_server import ScriptedServer
from closeout.testing.vendors import VENDORS

TEXT = "The value of k1 is 42, which is what was asked for."
SCRIPT = [call("lookup", key="k1"), say(TEXT)]
WAYS = [(kind, stream) for kind in ("openai", "anthropic") for stream in (False, True)]
# A text without a call is an answer, whatever it says; a box is not asked for; "hang" costs a deadline.
FORMS = [form for form in MISBEHAVIOURS if form not in ("non_answer", "missing_box", "hang")]
EVERY = pytest.mark.parametrize("form", FORMS)
FREE = {"malformed", "wrong_types", "wrong_dialect", "wrong_parameter", "slow", *ODD_FORMS}
FREE.update(name for name, each in REJECTIONS.items() if each.holds_call)
ON_TEXT = {name for name, form in ODD_FORMS.items() if form.on == "text"}
# The server is in trouble, whatever it is asked: the same request is right as soon as it answers.
OUTAGES = {
    "rate_limited", "overloaded", "html_error", "garbage_body", "empty_body", "dropped", "aborted", "failed_midway",
    "server_error", "error_in_200",
}  # fmt: skip


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look a key up."""
    return f"value of {key}"


def agent(server: ScriptedServer, kind: str, **options: Any) -> Agent:
    retry = RetryPolicy(first_wait=0.0)
    if kind == "anthropic":
        return Agent(AnthropicClient("m", server.url, "k", retry=retry), [lookup], **options)
    return Agent(OpenAIClient("m", server.base_url, "k", retry=retry), [lookup], **options)


def may_cost(form: str, kind: str, *, stream: bool) -> int:
    """The requests that a form may cost: none if the reply, or the error, holds the call."""
    # Anthropic's whole replies hold arguments as an object, which cannot be malformed: they are empty.
    return int(form not in FREE or (form == "malformed" and kind == "anthropic" and not stream))


@EVERY
async def test_a_session_a_resumed_run_and_a_fork_get_the_right_answer(form: str) -> None:
    for kind, stream in WAYS:
        script: list[Any] = [say("41"), SCRIPT[0], ModelError("The server stops.", status=403), say(TEXT), say(TEXT)]
        async with serve_script(script, misbehave=once(form, 3 if form in ON_TEXT else 2)) as server:
            session = agent(server, kind, stream=stream).session("s")
            await session.run("What is k0?")
            stopped = await session.run("What is k1?")
            assert stopped.status == "failed", (kind, stream)
            script.pop(2)
            result = await agent(server, kind, stream=stream).resume(stopped.run_id)
            assert form in [received.fault for received in server.requests]
            extra = len(server.requests) - 4
            assert (result.answer, result.status) == (TEXT, "answered"), (kind, stream)
            assert extra <= may_cost(form, kind, stream=stream), (kind, stream)
            again = await agent(server, kind, stream=stream).fork(result.run_id, at=2)
            assert again.answer == TEXT, (kind, stream)


@EVERY
async def test_what_stays_is_never_half_an_answer_and_no_request_is_repeated_for_ever(form: str) -> None:
    for kind, stream in WAYS:
        async with serve_script(SCRIPT, misbehave=always(form)) as server:
            result = await agent(server, kind, stream=stream).run("What is k1?")
        assert result.answer in (None, TEXT), (kind, stream)
        assert (result.status == "answered") == (result.answer == TEXT), (kind, stream)
        assert result.answer == TEXT or form not in FREE or may_cost(form, kind, stream=stream), (kind, stream)
        most = Counter(server.bodies).most_common(1)[0][1]
        assert most <= (8 if form in OUTAGES else 3), (kind, stream)  # twice before other forms are tried


def test_sixty_forms_have_a_name_and_are_listed_with_their_source() -> None:
    every = [*MISBEHAVIOURS, *VENDORS]
    assert len(every) >= 60
    documented = (Path(__file__).parents[1] / "docs" / "testing.md").read_text("utf-8")
    assert [form for form in every if f"`{form}`" not in documented and f'`"{form}"`' not in documented] == []
    sources = [each.source for each in (*REJECTIONS.values(), *ODD_FORMS.values())]
    assert [source for source in sources if source not in documented] == []
    assert {*CONNECTION_FAULTS} < {*MISBEHAVIOURS}
