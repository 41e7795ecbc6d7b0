"""The tool that a model meant: namespaces, separators, spelling; and what it is told when there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.messages import ToolPolicy, ToolSpec
from closeout.repair import resolve_tool_name

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}
URL = {"type": "object", "properties": {"url": {"type": "string"}, "n": {"type": "integer"}}, "required": ["url", "n"]}
TOOLS = (
    ToolSpec("google_search", "", QUERY, "search-server"),
    ToolSpec("scrape_website", "", URL, "web"),
    ToolSpec("delete_file", "", {"type": "object"}, policy=ToolPolicy(destructive=True)),
)


def resolved(name: str, arguments: object = None, server: str | None = None) -> str | None:
    spec = resolve_tool_name(name, TOOLS, arguments, server).spec
    return spec.name if spec else None


def test_an_exact_name_needs_no_repair() -> None:
    by_name = {spec.name: spec for spec in TOOLS}
    assert resolve_tool_name("google_search", by_name) == (TOOLS[0], (), "")
    assert resolve_tool_name("google_search", TOOLS) == (TOOLS[0], (), "")


@pytest.mark.parametrize(
    "name",
    [
        "functions.google_search",
        "functions.google_search:0",
        "default_api:google_search",
        "default_api.search-server.google_search",
        "google-search",
        "GoogleSearch",
        "Google Search",
        "search-server-google_search",
        "search-server/google_search",
        "mcp__search-server__google_search",
        "google_search()",
        "google_search<|channel|>commentary",
        '"google_search"',
    ],
)
def test_namespaces_case_and_separators_come_off(name: str) -> None:
    spec, repairs, _ = resolve_tool_name(name, TOOLS)
    assert spec is TOOLS[0]
    assert [(repair.kind, repair.after) for repair in repairs] == [("tool_name", "google_search")]


def test_a_close_name_counts_only_if_its_schema_takes_the_arguments() -> None:
    assert resolved("google_serach", {"q": "x"}) == "google_search"
    assert resolved("search_google", {"query": "x"}) == "google_search"
    assert resolved("scrape_websites", {"url": "u", "n": "3"}) == "scrape_website"
    assert resolved("scrape_websites", {"path": "u"}) is None


def test_a_destructive_tool_is_never_chosen_by_likeness() -> None:
    found = resolve_tool_name("delete_files", TOOLS, {})
    assert found.spec is None
    assert 'did you mean "delete_file"?' in found.message


def test_the_message_lists_what_exists() -> None:
    assert resolve_tool_name("bing", TOOLS).message == (
        'There is no tool "bing". Available tools: delete_file, google_search, scrape_website.'
    )
    many = [ToolSpec(f"tool_{number:03}") for number in range(50)]
    assert "and 30 more" in resolve_tool_name("bing", many).message
    assert "without tools" in resolve_tool_name("bing", []).message


def test_the_server_decides_between_tools_of_one_name() -> None:
    one, two = ToolSpec("read", server_name="files"), ToolSpec("read", server_name="mail")
    assert resolve_tool_name("read", [one, two], None, "mail").spec is two
    assert resolve_tool_name("mail.read", [one, two]).spec is two
    wrong_server = resolve_tool_name("google_search", TOOLS, {"q": "x"}, "web")
    assert wrong_server.spec is TOOLS[0]
    assert wrong_server.repairs[0].kind == "server_name"


@given(st.text(max_size=300))
def test_no_name_raises(name: str) -> None:
    found = resolve_tool_name(name, TOOLS, {"q": "x"})
    assert found.spec is not None or found.message
