"""`ToolManager` over local tools and what a user may write for servers: names, definitions, calls, refusals."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from closeout.errors import ConfigError, ToolDefinitionError, ToolError, UsageError
from closeout.messages import ToolSpec
from closeout.tools.manager import ToolManager
from closeout.tools.mcp.mcp_config import read_servers
from closeout.tools.mcp.mcp_result import McpResult
from closeout.tools.tool import Tool, tool


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look up."""
    return f"value of {key}"


@tool
async def broken() -> None:
    """Break."""
    raise KeyError("gone")


@tool
def refusing() -> None:
    """Refuse."""
    raise ToolError("not today")


@tool
def google_search(q: str) -> dict[str, Any]:
    """Search."""
    return {"organic": []}


# ------------------------------------------------------------------------------------------------ local tools


async def test_local_tools_are_listed_sorted_and_called() -> None:
    async with ToolManager([refusing, lookup, broken]) as manager:
        assert [spec.name for spec in manager.specs()] == ["broken", "lookup", "refusing"]
        assert manager.specs() is manager.specs()
        assert await manager.call(lookup.spec, {"key": "a"}) == "value of a"
        with pytest.raises(KeyError):  # what a local tool raises is for the one who governs the call
            await manager.call(broken.spec, {})
        with pytest.raises(ToolError, match="Unknown tool: nothing"):
            await manager.call(ToolSpec("nothing"), {})


async def test_definitions_have_the_documented_shape() -> None:
    assert await ToolManager([lookup]).get_all_tool_definitions() == [
        {
            "name": "local",
            "tools": [{"name": "lookup", "description": "Look up.", "schema": dict(lookup.spec.parameters)}],
        }
    ]
    assert await ToolManager().get_all_tool_definitions() == []


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("lookup", {"key": "a"}, {"result": "value of a"}),
        ("lookup", {"kee": "a"}, {"error": "Error executing tool lookup: The arguments of lookup do not fit. "
                                           "key: Field required; kee: Extra inputs are not permitted"}),
        ("refusing", {}, {"error": "Error executing tool refusing: not today"}),
        ("broken", {}, {"error": "Error executing tool broken: KeyError: 'gone'"}),
        ("nothing", {}, {"error": "Unknown tool: nothing on server local. "
                                  "There are: local/broken, local/lookup, local/refusing."}),
    ],
)  # fmt: skip
async def test_execute_tool_call_tells_everything_in_its_answer(
    name: str, arguments: dict[str, Any], outcome: dict[str, Any]
) -> None:
    manager = ToolManager([refusing, lookup, broken])
    answer = await manager.execute_tool_call("local", name, arguments)
    assert answer == {"server_name": "local", "tool_name": name, **outcome}


async def test_cancellation_is_the_one_thing_that_passes() -> None:
    @tool
    async def forever() -> None:
        """Wait."""
        await asyncio.Event().wait()

    call = asyncio.create_task(ToolManager([forever]).execute_tool_call("", "forever", {}))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_the_blacklist_keeps_tools_out() -> None:
    for entry in ("lookup", "local/lookup", ("local", "lookup")):
        assert [spec.name for spec in ToolManager([lookup, broken], blacklist=[entry]).specs()] == ["broken"]


@pytest.mark.parametrize("entry", ["lokup", "other/lookup", "local/lokup", "LOOKUP"])
def test_a_name_on_the_blacklist_that_matches_nothing_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match=rf"tools\.blacklist names '{entry}'"):
        ToolManager([lookup, broken], blacklist=[entry])


@pytest.mark.parametrize("entry", ["lookup", "notes/write_note"])
def test_an_approval_rule_without_its_server_is_refused_at_once(entry: str) -> None:
    with pytest.raises(UsageError, match=r"no MCP server"):
        ToolManager([lookup], approval={entry: "always"})


@pytest.mark.parametrize(
    "policy",
    [{"approval": {"notes/wipe_note": "always"}}, {"blacklist": ["notes/wipe_note"]}, {"blacklist": ["wipe_note"]}],
)
async def test_a_policy_for_a_tool_that_a_server_does_not_list_is_refused_before_any_call(policy: Any) -> None:
    server = Path(__file__).parent / "mcp_servers" / "notes.py"
    manager = ToolManager((), {"notes": {"command": sys.executable, "args": [str(server)]}}, **policy)
    with pytest.raises(UsageError, match=r"wipe_note.*write_note"):
        await manager.open()
    await manager.aclose()


def test_well_known_tools_get_their_shipped_policy() -> None:
    (spec,) = ToolManager([google_search]).specs()
    assert spec.policy.duplicate_key == ("q",)
    assert spec.policy.empty_at == ("organic",)
    assert "query" in spec.policy.aliases["q"]


def test_two_tools_of_one_name_are_named_both() -> None:
    def other() -> None:
        """Another."""

    with pytest.raises(ToolDefinitionError, match=r"named 'lookup'.*test_manager\.lookup.*test_two_tools.*other"):
        ToolManager([lookup, Tool(other, name="lookup")])


def test_a_value_that_is_not_a_tool_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match=r"is not a tool. Put @tool"):
        ToolManager([print])  # type: ignore[list-item]


# ------------------------------------------------------------------------------------------------ servers as written


@pytest.mark.parametrize(
    ("entry", "name", "transport", "command", "args"),
    [
        (
            "python tools/search_server.py --x 'a b'",
            "search_server",
            "stdio",
            "python",
            ("tools/search_server.py", "--x", "a b"),
        ),
        ("server.py --x", "server", "stdio", sys.executable, ("server.py", "--x")),
        ("npx -y @scope/server-files /tmp", "server-files", "stdio", "npx", ("-y", "@scope/server-files", "/tmp")),
        ("uvx mcp-server-time", "mcp-server-time", "stdio", "uvx", ("mcp-server-time",)),
        ("https://user:key@mcp.example.org/mcp?k=1", "mcp.example.org", "http", "", ()),
        ("http://127.0.0.1:8000/sse", "127.0.0.1-8000", "sse", "", ()),
        ({"url": "http://127.0.0.1:8000/sse", "type": "http"}, "127.0.0.1-8000", "http", "", ()),
        ({"name": "my search", "command": "node", "args": ["a.js"]}, "my-search", "stdio", "node", ("a.js",)),
        ({"command": ["node", "a.js"]}, "a", "stdio", "node", ("a.js",)),
    ],
)
def test_servers_are_read_from_what_a_user_writes(
    entry: Any, name: str, transport: str, command: str, args: tuple[str, ...]
) -> None:
    (config,) = read_servers([entry])
    assert (config.name, config.transport, config.command, config.args) == (name, transport, command, args)


def test_the_usual_json_and_single_entries_are_read() -> None:
    configs = read_servers(
        {"files": {"command": "node", "args": ["f.js"], "env": {"A": 1}}, "web": "https://example.org/mcp"}
    )
    assert [(config.name, config.transport) for config in configs] == [("files", "stdio"), ("web", "http")]
    assert configs[0].env == {"A": "1"}
    assert (
        read_servers({"mcpServers": {"files": {"command": "node", "args": ["f.js"], "env": {"A": 1}}}}) == configs[:1]
    )
    assert read_servers(configs) == configs
    assert read_servers("node a.js")[0].name == read_servers({"command": "node a.js"})[0].name == "a"
    assert [config.name for config in read_servers(["node a.js", "node b/a.js", "node a.js"])] == ["a", "a-2", "a-3"]


def test_an_address_is_shown_without_its_secrets() -> None:
    (config,) = read_servers("https://user:key@mcp.example.org/mcp?token=s3cret")
    assert config.address == "https://mcp.example.org/mcp"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"name": "search"}, "'search' has neither a command nor a URL"),
        ({"name": "search", "command": ""}, "'search' has neither"),
        ({"name": "search", "command": "a", "url": "http://b"}, "'search' has both"),
        ({"name": "search", "comand": "a"}, "'search': 'comand' is not a known key. Did you mean 'command'"),
        ({"name": "search", "url": "example.org"}, "'search': 'example.org' is not a URL"),
        ({"name": "search", "url": "http://b", "transport": "carrier pigeon"}, "'carrier pigeon' is not a transport"),
        ({"name": "search", "command": "a", "timeout": 0}, "timeout must be a number of seconds above 0"),
        ("python 'unclosed", "cannot be split"),
        (42, "must be text or a mapping"),
    ],
)
def test_a_wrong_entry_is_named(entry: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ToolManager(mcp_servers=[entry])


# ------------------------------------------------------------------------------------------------ results


def test_a_result_shows_its_parts_and_keeps_them_whole() -> None:
    text = {"type": "text", "text": "seen"}
    image = {"type": "image", "data": "QUJDRA==", "mimeType": "image/png"}
    blob = {"type": "resource", "resource": {"uri": "file:///a", "blob": "QUJD", "mimeType": "x/y"}}
    link = {"type": "resource_link", "uri": "file:///b", "name": "b", "_meta": {"hidden": 1}}
    result = McpResult((text, image, blob, link))
    assert result.value == [
        {"type": "text", "text": "seen"},
        {"type": "image", "mime_type": "image/png", "bytes": 4},
        {"type": "resource", "uri": "file:///a", "mime_type": "x/y", "bytes": 3},
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
    ]
    assert result.images == ({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJDRA=="}},)
    assert result.to_json()["content"] == [text, image, blob, link]
    assert not result.is_plain
    output = result.output()
    names = ({}, {"file": "image.png"}, {"file": "a"}, {})
    assert output.result == [{**part, **name} for part, name in zip(result.value, names, strict=True)]
    assert [file.data for file in output.files] == [b"ABCD", b"ABC"]
    assert output.metadata["content"] == [text, image, blob, link]
    assert "QUJDRA" not in output.model_dump_json()


def test_structured_content_is_shown_once() -> None:
    repeated = {"type": "text", "text": '{"a": 1}'}
    assert McpResult((repeated,), {"a": 1}).value == {"a": 1}
    assert McpResult(({"type": "text", "text": "[1, 2]"},), {"result": [1, 2]}).value == [1, 2]
    assert McpResult((), None).value == ""
    exact = {"type": "text", "text": '{"paid": [12345678901234567.89, 1e400, 0.5]}'}
    whole = McpResult((exact,), json.loads(exact["text"]))
    assert whole.value == {"paid": ["12345678901234567.89", "1e400", 0.5]}, "as a Decimal of a Python tool"
    assert McpResult(({"type": "image", "data": "QQ=="},), {"a": 1}).value == {
        "result": {"a": 1},
        "content": [{"type": "image", "mime_type": None, "bytes": 1}],
    }


# ------------------------------------------------------------------------------------------------ other clients' files

DESKTOP = {
    "globalShortcut": "Ctrl+Space",
    "mcpServers": {
        "files": {
            "command": "npx",
            "args": ["-y", "@example/server-filesystem", "${HOME_FOLDER}/docs"],
            "env": {"TOKEN": "${TOKEN:-none}", "EMPTY": None},
            "autoApprove": ["read"],
            "disabled": False,
        },
        "off": {"command": "npx", "disabled": True},
        "remote": {"type": "streamable-http", "url": "https://mcp.example.org/x", "headers": {"K": "Bearer ${KEY}"}},
        "gemini": {"httpUrl": "https://g.example.org/sse", "timeout": 600000, "trust": False},
        "windsurf": {"serverUrl": "https://w.example.org/mcp"},
    },
}
EDITOR = """{
  // written by an editor
  "inputs": [{"type": "promptString", "id": "key"}],
  "servers": {
    "search": {"type": "stdio", "command": "python", "args": ["${workspaceFolder}/server.py"], "dev": {"watch": "*"}},
    "far": {"type": "sse", "url": "https://far.example.org/events",},
  },
}"""


def test_the_configuration_of_another_client_works_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME_FOLDER", "/home/ann")
    monkeypatch.setenv("KEY", "k-1")
    files, remote, gemini, windsurf = read_servers(DESKTOP)
    assert files.args == ("-y", "@example/server-filesystem", "/home/ann/docs")
    assert files.env == {"TOKEN": "none"}
    assert (remote.transport, remote.url, remote.headers) == ("http", "https://mcp.example.org/x", {"K": "Bearer k-1"})
    assert (gemini.transport, gemini.timeout) == ("http", 600.0)
    assert windsurf.url == "https://w.example.org/mcp"
    assert [config.name for config in read_servers([DESKTOP, "python own.py"])][-1] == "own"
    assert "k-1" not in repr(remote)


@pytest.mark.parametrize("name", ["mcp.json", "settings.jsonc"])
def test_a_files_path_is_read_with_its_comments(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(EDITOR, "utf-8")
    search, far = read_servers(str(file))
    assert search.args == (f"{Path.cwd()}/server.py",)
    assert (far.name, far.transport) == ("far", "sse")
    file.write_text(json.dumps({"editor.fontSize": 12, "mcp": {"servers": {"a": {"command": "b"}}}}), "utf-8")
    assert [config.command for config in read_servers([str(file)])] == ["b"]


def test_variables_come_from_an_env_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# keys\nexport A=1\nB = 'two'\n\n", "utf-8")
    (config,) = read_servers({"servers": {"s": {"command": "x", "envFile": str(file), "env": {"A": "own"}}}})
    assert config.env == {"A": "own", "B": "two"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"servers": {"s": {"command": "x", "args": ["${input:key}"]}}}, "asks for the input 'key'"),
        ({"servers": {"s": {"url": "https://x/${NO_SUCH_VARIABLE}"}}}, "no variable NO_SUCH_VARIABLE"),
        ({"servers": {"s": {"command": "x", "comand": "y"}}}, "Did you mean 'command'"),
        ({"servers": {"s": {"command": "x", "envFile": "no-such-file"}}}, "envFile no-such-file cannot be read"),
        ("no-such-file.json", "cannot be read"),
    ],
)
def test_what_cannot_be_taken_over_is_named(entry: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_servers(entry)


def test_a_file_without_servers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match="neither 'mcpServers' nor 'servers'"):
        read_servers(str(file))
    file.write_text("[1]", "utf-8")
    with pytest.raises(ConfigError, match="not a JSON object"):
        read_servers(str(file))
