"""The tool that a model meant: case, separators, namespaces; and the message when there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.messages import ToolPolicy, ToolSpec
from closeout.repair import resolve_tool_name

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}
URL = {"type": "object", "properties": {"url": {"type": "string"}, "n": {"type": "integer"}}, "required": ["url", "n"]}
TOOLS = (
    ToolSpec("google_search", "", QUERY, server_name="search-server"),
    ToolSpec("scrape_website", "", URL, server_name="web"),
    ToolSpec("delete_file", "", {"type": "object"}, policy=ToolPolicy(destructive=True)),
)


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


@pytest.mark.parametrize(
    "name",
    [
        "google_serach",
        "googlesearhc",
        "scrape_webiste",
        "search_google",
        "scrape_websites",
        "google_research",
        "google",
    ],
)
def test_a_misspelt_name_is_asked_about_and_never_repaired(name: str) -> None:
    found = resolve_tool_name(name, TOOLS)
    assert found.spec is None
    assert found.message.startswith(f'No tool is named "{name}"')


def test_the_question_names_the_likely_tool() -> None:
    assert 'did you mean "google_search"?' in resolve_tool_name("google_serach", TOOLS).message


NEVER = [
    ("unlock_door", "lock_door"),
    ("export_data", "import_data"),
    ("disable_user", "enable_user"),
    ("read_mail", "send_mail"),
    ("turn_off", "turn_on"),
    ("turnoff", "turnon"),
    ("mute", "unmute"),
    ("decrypt", "encrypt"),
    ("upload", "download"),
    ("list_v1", "list_v2"),
    ("get_user_by_id", "get_user_by_ip"),
    ("current_date", "current_time"),
    ("undelete_file", "delete_file"),
    ("start_job", "restart_job"),
    ("close_issue", "clone_issue"),
    ("ascending_sort", "descending_sort"),
    ("get_latitude", "get_altitude"),
    ("get_nitrate", "get_nitrite"),
    ("kilobytes", "kibibytes"),
    ("get_user", "get_users"),
    ("getuser", "setuser"),
    ("percentage", "percentile"),
    ("run_v1.5", "run_v15"),
    ("delete_files(all)", "delete_files"),
    ("widget_frobs", "widget_frob"),
    ("send_to_all", "send_total"),
]


@pytest.mark.parametrize(("written", "name"), [*NEVER, *((b, a) for a, b in NEVER if "(" not in a)])
def test_a_name_of_another_meaning_never_runs_even_the_only_tool(written: str, name: str) -> None:
    tool = ToolSpec(name, "", {"type": "object", "properties": {}})
    assert resolve_tool_name(written, [tool]).spec is None
    assert resolve_tool_name(f"functions.{written}", [tool, TOOLS[0]]).spec is None


@pytest.mark.parametrize("policy", [ToolPolicy(destructive=True), ToolPolicy(effects_known=False)])
def test_a_tool_that_may_destroy_is_found_by_case_and_namespace_but_never_by_a_slip(policy: ToolPolicy) -> None:
    tools = [ToolSpec("delete_account", "", {"type": "object"}, server_name="prod", policy=policy)]
    for name in ("deleteAccount", "functions.delete-account", "prod.delete_account", "mcp__prod__delete_account"):
        assert resolve_tool_name(name, tools).spec is tools[0]
    for name in ("delete_acocunt", "staging.delete_account"):
        found = resolve_tool_name(name, tools)
        assert found.spec is None
        assert 'did you mean "delete_account"?' in found.message


def test_another_server_that_exists_is_not_a_namespace_to_drop() -> None:
    tools = [
        ToolSpec("drop", server_name="prod", policy=ToolPolicy(destructive=True)),
        ToolSpec("list", server_name="staging"),
    ]
    assert resolve_tool_name("drop", tools, "staging").spec is None
    assert resolve_tool_name("staging.drop", tools).spec is None
    assert resolve_tool_name("prod.list", tools).spec is None
    assert resolve_tool_name("drop", tools, "Prod").spec is tools[0]


def test_two_tools_that_may_be_meant_are_neither() -> None:
    tools = [ToolSpec("read_marker"), ToolSpec("readMarker")]
    assert resolve_tool_name("read-marker", tools).spec is None


def test_the_message_lists_what_exists() -> None:
    assert resolve_tool_name("bing", TOOLS).message == (
        'No tool is named "bing". Available tools: delete_file, google_search, scrape_website.'
    )
    many = [ToolSpec(f"tool_{number:03}") for number in range(50)]
    assert "and 30 more" in resolve_tool_name("bing", many).message
    assert "without tools" in resolve_tool_name("bing", []).message


def test_the_server_decides_between_tools_of_one_name() -> None:
    one, two = ToolSpec("read", server_name="files"), ToolSpec("read", server_name="mail")
    assert resolve_tool_name("read", [one, two], "mail").spec is two
    assert resolve_tool_name("mail.read", [one, two]).spec is two
    wrong_server = resolve_tool_name("google_search", TOOLS, "web")
    assert wrong_server.spec is TOOLS[0]
    assert wrong_server.repairs[0].kind == "server_name"


@given(st.text(max_size=300))
def test_no_name_raises(name: str) -> None:
    found = resolve_tool_name(name, TOOLS)
    assert found.spec is not None or found.message
