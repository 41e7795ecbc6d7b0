"""Secrets: the model writes a name, the tool gets the value, and the value is nowhere else."""

from __future__ import annotations

import base64
import json
import logging
import quopri
import sqlite3
import sys
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout import Agent, Event, File, RunContext, Secret, ToolFinished, ToolOutput, ToolPolicy, tool
from closeout.errors import ConfigError, ToolError, UsageError
from closeout.journal.store import close_stores
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.secrets import Secrets
from closeout.tools.tool import ModelTool

VALUE = 'tök"en/9f&86 d0+81'
SAFE = "tok-9f86d081884c"


def everything_written(home: Path) -> bytes:
    """All bytes below a home, after SQLite wrote its log into its files."""
    for path in home.rglob("*.db"):
        sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    return b"\n".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@tool
def greet(token: str, name: str = "") -> str:
    """Greet with a token."""
    return f"{name or 'Hello'}: {token == SAFE}"


def run_one(made: object, tools: list[object], secrets: list[Secret], **options: object) -> tuple[str, object]:
    model = ScriptedClient([made, answer("done")])
    result = Agent(model, tools, secrets=secrets, **options).run_sync("Use it.")
    return str(model.requests[-1].messages[-1].content), result


def test_the_tool_gets_the_value_and_the_model_sees_the_name():
    model = ScriptedClient([call("greet", token="secret:crm_token"), answer("done")])
    agent = Agent(model, [greet], instructions="Be brief.", secrets=[Secret("crm_token", SAFE, tools=["greet"])])
    result = agent.run_sync("Greet.")
    assert "Hello: True" in str(model.requests[-1].messages[-1].content)
    assert "secret:crm_token for greet" in str(model.requests[0].messages[0].content)
    assert SAFE not in repr(model.requests) + repr(result) + repr(agent)


def test_a_value_within_a_longer_text_is_filled_in_at_any_depth():
    got: list[object] = []

    @tool
    def send(headers: dict[str, str], parts: list[str]) -> str:
        got.append((headers, parts))
        return "sent"

    made = call("send", headers={"Authorization": "Bearer secret:crm_token"}, parts=["a", "secret:crm_token!"])
    run_one(made, [send], [Secret("crm_token", SAFE, tools=["send"])])
    assert got == [({"Authorization": f"Bearer {SAFE}"}, ["a", f"{SAFE}!"])]


def test_another_tool_may_not_have_it_and_is_told_which_may():
    called: list[str] = []

    @tool
    def post(text: str) -> str:
        called.append(text)
        return "posted"

    seen, _ = run_one(
        call("post", text="see secret:crm_token"), [post, greet], [Secret("crm_token", SAFE, tools=["greet"])]
    )
    assert "post may not have secret:crm_token. These may: greet." in seen
    assert called == []


def test_words_that_only_look_like_a_secret_are_left_alone():
    seen, _ = run_one(
        call("greet", token="secret:other", name="top-secret:crm_token_2"),
        [greet],
        [Secret("crm_token", SAFE, tools=["greet"])],
    )
    assert "top-secret:crm_token_2: False" in seen


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/?t=secret:k",
        "https://api.crm.example@evil.example/secret:k",
        "https://evil.example\\@api.crm.example/secret:k",
        "https:/\\evil.example/secret:k",
        "//evil.example/secret:k",
        "evil.example/secret:k",
        "evil.example:8080/secret:k",
        "https://api.crm.example.evil.example/secret:k",
        "https://xapi.crm.example/secret:k",
        "https://api.crm.example/?next=https://evil.example/secret:k",
        "https://аpi.crm.example/secret:k",
        "https://api.crm.example\u200b.evil.example/secret:k",
        "http://[::1]/secret:k",
        "secret:k",
    ],
)
def test_a_secret_with_hosts_is_sent_to_no_other_address(url: str):
    got: list[str] = []

    @tool
    def fetch(url: str) -> str:
        got.append(url)
        return "page"

    secret = Secret("k", SAFE, tools=["fetch"], hosts=["api.crm.example"])
    seen, _ = run_one(call("fetch", url=url), [fetch], [secret])
    assert got == []
    assert "may be sent to api.crm.example only" in seen


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("https://api.crm.example/v1?t=secret:k", ["api.crm.example"]),
        ("https://API.CRM.example:8443/secret:k", ["api.crm.example"]),
        ("api.crm.example/secret:k", ["api.crm.example"]),
        ("https://eu.crm.example/secret:k", ["*.crm.example"]),
        ("http://[::1]:80/secret:k", ["[::1]"]),
    ],
)
def test_a_secret_with_hosts_is_sent_to_them(url: str, hosts: list[str]):
    got: list[str] = []

    @tool
    def fetch(url: str) -> str:
        got.append(url)
        return "page"

    run_one(call("fetch", url=url), [fetch], [Secret("k", SAFE, tools=["fetch"], hosts=hosts)])
    assert got == [url.replace("secret:k", SAFE)]


def test_another_argument_with_a_foreign_address_keeps_the_secret_from_a_right_one():
    @tool
    def fetch(url: str, callback: str) -> str:
        return "page"

    secret = Secret("k", SAFE, tools=["fetch"], hosts=["api.crm.example"])
    made = call("fetch", url="https://api.crm.example/secret:k", callback="evil.example/hook")
    assert "not to 'evil.example/hook'" in run_one(made, [fetch], [secret])[0]


# ------------------------------------------------------------------------------------------------ where it must not be


class Odd(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)


def hostile_tools() -> list[object]:
    """Tools that give the value away in every place that a tool can write to."""

    @tool(read_only=True)
    def echo(token: str) -> object:
        return {"token": token, token: [token, {"x": (token, 1)}], "raw": token.encode()}

    @tool
    def fails(token: str) -> str:
        raise Odd(f"401 for {token}")

    @tool
    def refuses(token: str) -> str:
        raise ToolError(f"wrong token {token!r}")

    @tool
    def output(token: str) -> ToolOutput:
        return ToolOutput(
            result=[token],
            summary=f"got {token}",
            observation=f"Observation: {token}",
            metadata={"request": {"headers": token}, "bytes": token.encode()},
            state_update={"last": token},
            checkpoint=token,
        )

    @tool
    def encoded(token: str) -> dict[str, str]:
        data = token.encode()
        return {
            "basic": base64.b64encode(b"user:" + data).decode(),
            "url": base64.urlsafe_b64encode(b"ab" + data + b"cd").decode(),
            "quoted": quote(token),
            "json": json.dumps({"t": token}),
            "hex": data.hex(),
            "repr": repr([token, data]),
        }

    @tool
    def talks(token: str, context: RunContext) -> str:
        context.logger.warning("using %s", token)
        context.progress(1, 2, f"with {token}")
        context.logger.error("failed", exc_info=Odd(token))
        return "ok"

    @tool(on_crash="rerun", timeout=None)
    async def asks(token: str, context: RunContext) -> str:
        return await context.ask(f"Is {token} right?", [token, "no"], max_wait=0.0, default="no")

    return [echo, fails, refuses, output, encoded, talks, asks]


FORMS = [VALUE, json.dumps(VALUE)[1:-1], repr(VALUE)[1:-1], quote(VALUE), VALUE.encode().hex()]
FORMS += [
    base64.b64encode(b"user:" + VALUE.encode()).decode()[8:-4],
    base64.b64encode(b"ab" + VALUE.encode()).decode()[4:-4],
]


def assert_nowhere(text: str) -> None:
    for form in FORMS:
        assert form not in text, form


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml", "code"])
def test_the_value_is_in_no_file_prompt_event_log_or_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dialect: str
):
    caplog.set_level(logging.DEBUG)
    tools, events = hostile_tools(), []
    names = [each.spec.name for each in tools]
    if dialect == "code":
        tried = "try:\n    print({}(token='secret:k'))\nexcept Exception as error:\n    print(error)"
        made = ["```python\n" + "\n".join(map(tried.format, names)) + "\n```"]
    else:
        made = [call(name, token="secret:k") for name in names]
    model = ScriptedClient([*made, answer("done")])
    secret = Secret("k", VALUE, tools=names)
    agent = Agent(model, tools, dialect=dialect, secrets=[secret], home=tmp_path)
    result = agent.run_sync("Use them all.", listeners=[events.append])
    assert result.answer == "done"
    shown = repr(model.requests)
    assert shown.count("secret:k") > len(names)
    assert_nowhere(shown)
    assert_nowhere(repr(events) + repr(result) + result.task_log.to_json() + caplog.text)
    written = everything_written(tmp_path)
    assert b"secret:k" in written
    assert_nowhere(written.decode("utf-8", "replace"))
    assert_nowhere(json.dumps(json.loads(json.dumps(repr(written)))))


@given(st.text(min_size=8, max_size=40), st.text(max_size=9), st.text(max_size=9))
def test_a_value_is_hidden_in_every_way_to_write_it(value: str, before: str, after: str):
    if "secret:" in value or not value.isprintable() or len(set(value)) < 4:
        return
    secrets = Secrets([Secret("k", value, tools=["t"])])
    whole = before + value + after
    data = whole.encode()
    for text in (whole, json.dumps(whole), json.dumps(whole, ensure_ascii=False), quote(whole), data.hex()):
        assert "secret:k" in secrets.hide(text)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert "secret:k" in secrets.hide(encode(data).decode())


# ------------------------------------------------------------------------------------------------ values of a run


@dataclass
class User:
    token: str


def test_a_function_returns_the_value_for_the_user_of_the_run():
    got: list[str] = []

    @tool
    def balance(token: str, context: RunContext[User]) -> str:
        got.append(token)
        return f"{token} has 5"

    async def token_of(context: RunContext[User]) -> str:
        return context.deps.token

    secret = Secret("user_token", token_of, tools=["balance"])
    for user in ("ann-12345678", "bob-12345678"):
        model = ScriptedClient([call("balance", token="secret:user_token"), answer("5")])
        Agent(model, [balance], deps_type=User, secrets=[secret]).run_sync("How much?", deps=User(user))
        assert "secret:user_token has 5" in str(model.requests[-1].messages[-1].content)
        assert user not in repr(model.requests)
    assert got == ["ann-12345678", "bob-12345678"]


def test_a_function_that_fails_fails_the_call():
    def token_of(context: RunContext) -> str:
        raise ConnectionError("vault is down")

    seen, result = run_one(call("greet", token="secret:k"), [greet], [Secret("k", token_of, tools=["greet"])])
    assert "vault is down" in seen
    assert result.answer == "done"


async def test_an_approval_shows_the_name_and_a_resumed_run_uses_the_value(tmp_path: Path):
    @tool(approval="always")
    def pay(token: str) -> str:
        return f"paid with {token == SAFE}"

    script = [call("pay", token="secret:k"), answer("done")]
    secrets = [Secret("k", SAFE, tools=["pay"])]
    agent = Agent(ScriptedClient(script), [pay], secrets=secrets, home=tmp_path)
    waiting = await agent.run("Pay.")
    assert waiting.waiting[0].arguments == {"token": "secret:k"}
    model = ScriptedClient(script[1:])
    again = Agent(model, [pay], secrets=secrets, home=tmp_path)
    await again.resume(waiting.run_id, decisions={waiting.waiting[0].id: True})
    assert "paid with True" in str(model.requests[-1].messages[-1].content)
    assert SAFE.encode() not in everything_written(tmp_path)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Secret("a b", SAFE, tools=["x"]), "letters, digits and _ only"),
        (lambda: Secret("k", SAFE), "needs the names of the tools"),
        (lambda: Secret("k", SAFE, tools="greet"), "needs the names of the tools"),
        (lambda: Secret("k", "short", tools=["x"]), "8 characters or more"),
        (lambda: Secret("k", SAFE, tools=["x"], hosts="x.example"), "must be a list of hosts"),
        (lambda: Secret("k", SAFE, tools=["x"], hosts=["a.example:80"]), "'a.example:80' is no host"),
        (
            lambda: Agent(ScriptedClient([]), [greet], secrets=[Secret("k", SAFE, tools=["gret"])]),
            "names the tool 'gret'",
        ),
        (lambda: Agent(ScriptedClient([]), [greet], secrets=[SAFE]), "must be Secret objects"),
        (lambda: Agent(ScriptedClient([]), [greet], secrets=[Secret("k", SAFE, tools=["greet"])] * 2), "Two secrets"),
    ],
)
def test_mistakes_are_named_before_anything_runs(make: object, says: str):
    with pytest.raises(UsageError, match=says):
        make()


def test_the_value_comes_from_the_environment_or_the_settings(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="set the environment variable CRM_TOKEN"):
        Secret("crm_token", tools=["greet"])
    monkeypatch.setenv("CRM_TOKEN", SAFE)
    config = {
        "tools": {
            "secrets": {"crm_token": {"tools": ["greet"]}, "other": {"value": "${CRM_TOKEN}", "tools": ["greet"]}}
        }
    }
    for name in ("crm_token", "other"):
        model = ScriptedClient([call("greet", token=f"secret:{name}"), answer("done")])
        agent = Agent(model, [greet], config=config)
        agent.run_sync("Greet.")
        assert "Hello: True" in str(model.requests[-1].messages[-1].content)
        assert SAFE not in repr(agent.config)


def test_an_agent_or_a_program_may_have_none_since_it_records_what_it_is_given():
    below = Agent(ScriptedClient([answer("x")]), [greet]).as_tool("helper", "Help.")
    with pytest.raises(UsageError, match="may not be given to helper"):
        Agent(ScriptedClient([]), [below], secrets=[Secret("k", SAFE, tools=["helper"])])
    with pytest.raises(UsageError, match="may not be given to run_program"):
        Agent(ScriptedClient([]), [greet], code_mode=True, secrets=[Secret("k", SAFE, tools=["run_program"])])


def test_a_sub_agent_uses_its_own_secrets():
    inner = ScriptedClient([call("greet", token="secret:k"), answer("inner done")])
    below = Agent(inner, [greet], secrets=[Secret("k", SAFE, tools=["greet"])]).as_tool("helper", "Help.")
    model = ScriptedClient([call("helper", task="Greet."), answer("done")])
    Agent(model, [below]).run_sync("Greet.")
    assert "Hello: True" in str(inner.requests[-1].messages[-1].content)
    assert SAFE not in repr(inner.requests) + repr(model.requests)


@pytest.mark.parametrize("value", [SAFE, lambda context: SAFE], ids=["constant", "function"])
@pytest.mark.parametrize("leaks", ["helper", "handed", "main"])
async def test_no_agent_of_a_run_reveals_the_secret_of_another(tmp_path: Path, leaks: str, value: object):
    caught: list[object] = []
    seen: list[str] = []

    @tool
    def use(token: str) -> str:
        seen.append(token)
        return "used"

    @tool(on_crash="rerun")
    def look(context: RunContext) -> str:
        context.logger.info(f"log {SAFE}")
        context.progress(1, 2, f"progress {SAFE}")
        return f"found {SAFE}"

    made = call("use", token="secret:k")
    secrets = [Secret("k", value, tools=["use"])]
    other = ScriptedClient([made, answer("used")] if leaks == "main" else [call("look"), answer("done")])
    if leaks == "main":  # calls a sub-agent that has the secret, and then the tool that reveals it
        below = Agent(other, [use], secrets=secrets).as_tool("helper", "Help.")
        model = ScriptedClient([call("helper", task="Use it."), call("look"), answer("done")])
        agent = Agent(model, [below, look], home=tmp_path)
    elif leaks == "helper":
        below = Agent(other, [look]).as_tool("helper", "Help.")
        model = ScriptedClient([made, call("helper", task="Look."), answer("done")])
        agent = Agent(model, [below, use], secrets=secrets, home=tmp_path)
    else:
        model = ScriptedClient([made, call("transfer_to_other")])
        agent = Agent(model, [use], handoffs=[Agent(other, [look], name="other")], secrets=secrets, home=tmp_path)
    result = await agent.run("Look.", listeners=[caught.append])
    assert (result.answer, seen) == ("done", [SAFE])
    assert "found secret:k" in repr(other.requests) + repr(model.requests)
    assert SAFE not in repr(other.requests) + repr(model.requests) + repr(caught) + repr(result)
    close_stores()
    assert SAFE.encode() not in everything_written(tmp_path)


async def test_an_agent_that_continues_a_session_hides_the_secrets_of_the_one_before_it(tmp_path: Path):
    @tool(on_crash="rerun")
    def look() -> str:
        return f"found {SAFE}"

    other = Agent(ScriptedClient([answer("yes"), call("look"), answer("done")]), [look], name="other")
    first = Agent(
        ScriptedClient([call("transfer_to_other")]),
        [greet],
        handoffs=[other],
        secrets=[Secret("k", SAFE, tools=["greet"])],
        home=tmp_path,
    )
    session = first.session("talk")
    assert (await session.run("Hand over.")).answer == "yes"
    assert (await session.run("Look.")).answer == "done"
    assert SAFE not in repr(session.messages)
    close_stores()
    assert SAFE.encode() not in everything_written(tmp_path)


def test_a_page_that_a_model_reads_for_a_tool_has_the_name_of_a_secret():
    def make(ask: object) -> object:
        async def read(topic: str) -> str:
            return "".join([reply async for reply in ask([f"The page says {SAFE}."])])

        return read

    model = ScriptedClient([call("read", topic="x"), "a summary", answer("done")])
    agent = Agent(
        model, [ModelTool(make, policy=ToolPolicy(read_only=True)), greet], secrets=[Secret("k", SAFE, tools=["greet"])]
    )
    assert agent.run_sync("Read.").answer == "done"
    assert "The page says secret:k." in str(model.requests[1].messages[-1].content)


def test_a_value_has_the_name_by_which_the_agent_knows_it_and_is_hidden_as_a_whole():
    longer = Secrets([Secret("theirs", f"{SAFE}-and-more", tools=["greet"]), Secret("shared", SAFE, tools=["greet"])])
    own = Secrets([Secret("mine", SAFE, tools=["greet"])]).beside([longer])
    assert own.hide(f"{SAFE} {SAFE}-and-more") == "secret:mine secret:theirs"


async def test_a_run_that_continues_after_any_of_its_events_uses_the_value(tmp_path: Path):
    got: list[str] = []

    @tool(on_crash="rerun", repeatable=True)
    def use(token: str) -> str:
        got.append(token)
        return f"used {token}"

    script = [call("use", token="secret:k"), call("use", token="secret:k again"), answer("done")]
    events: list[object] = []

    def agent() -> Agent:
        return Agent(ScriptedClient(script), [use], secrets=[Secret("k", SAFE, tools=["use"])], home=tmp_path)

    whole = await agent().run("Use it twice.", listeners=[lambda each: isinstance(each, Event) and events.append(each)])
    last_call = max(index for index, event in enumerate(events) if isinstance(event, ToolFinished))
    for number in range(1, last_call):
        assert (await agent().fork(whole.run_id, at=f"e{number}")).answer == "done"
    assert len(got) > 8
    assert set(got) == {SAFE, f"{SAFE} again"}
    assert SAFE.encode() not in everything_written(tmp_path)


async def test_a_server_gets_the_value_also_when_tools_are_searched_for(tmp_path: Path):
    server = {"command": sys.executable, "args": [str(Path(__file__).parent / "mcp_servers" / "everything.py")]}
    secret = Secret("k", SAFE, tools=["everything/say"])
    for config, made in (
        ({}, call("say", text="the secret:k")),
        ({"tools": {"search": "on"}}, call("call_tool", name="say", arguments={"text": "the secret:k"})),
    ):
        model = ScriptedClient([made, answer("done")])
        agent = Agent(model, mcp_servers={"everything": server}, secrets=[secret], config=config, home=tmp_path)
        await agent.run("Say it.")
        assert "the secret:k" in str(model.requests[-1].messages[-1].content)
    none = {"command": sys.executable, "args": [str(Path(__file__).parent / "mcp_servers" / "busy.py")]}
    wrong = Agent(model, mcp_servers={"everything": none}, secrets=[Secret("k", SAFE, tools=["everything/shout"])])
    assert "'everything/shout', which does not exist" in str((await wrong.run("Say it.")).failure)
    assert SAFE.encode() not in everything_written(tmp_path)


def test_a_value_is_hidden_in_the_files_that_a_tool_returns(tmp_path: Path):
    @tool
    def save(token: str) -> list[File]:
        return [File("a.txt", f"{token}\n"), File("b.bin", b"\xff\0" + token.encode()), File("c.txt", "fine")]

    secrets = [Secret("crm_token", SAFE, tools=["save"])]
    _, result = run_one(call("save", token="secret:crm_token"), [save], secrets, home=tmp_path)
    assert [file.data for file in result.files] == [b"secret:crm_token\n", b"\xff\0secret:crm_token", b"fine"]
    close_stores()
    assert SAFE.encode() not in everything_written(tmp_path)


SPELLINGS = {
    "json of php": r"tok\/9\u0026x-\u00e9 42\u003cz",
    "lower-case percent": "tok%2f9%26x-%c3%a9%2042%3cz",
    "percent twice": "tok%252F9%2526x-%25C3%25A9%252042%253Cz",
    "html numbers": "tok&#47;9&#38;x-&#xE9; 42&#x3c;z",
    "html names": "tok/9&amp;x-&eacute; 42&lt;z",
    "json in json": json.dumps(json.dumps("tok/9&x-é 42<z")),
    "mime": base64.encodebytes(b"-" * 50 + "tok/9&x-é 42<z".encode()).decode(),
    "hex with colons": "tok/9&x-é 42<z".encode().hex(":").upper(),
    "bytes of a C program": ", ".join(f"0x{byte:02x}" for byte in "tok/9&x-é 42<z".encode()),
    "bytes of JSON": json.dumps(list("tok/9&x-é 42<z".encode())),
    "a form in a form": quote_plus(quote_plus("tok/9&x-é 42<z")),
    "Latin-1 percent": quote("tok/9&x-é 42<z".encode("latin-1")),
    "octal": r"tok/9&x-\303\251 42<z",
    "braces of JavaScript": r"tok/9&x-\u{e9} 42<z",
    "quoted-printable": quopri.encodestring(b"-" * 66 + "tok/9&x-é 42<z".encode()).decode(),
    "a folded header": "tok/9&\r\n x-é 42<z",
    "capitals": "TOK/9&X-É 42<Z",
    "decomposed": unicodedata.normalize("NFD", "tok/9&x-é 42<z"),
    "UTF-16 with zeros": "\0".join("tok/9&x-é 42<z"),
    "Base64 of UTF-16": base64.b64encode("tok/9&x-é 42<z".encode("utf-16-le")).decode(),
    "Base64 of JSON": base64.b64encode(json.dumps({"t": "tok/9&x-é 42<z"}).encode()).decode(),
}


def test_any_spelling_of_a_value_is_hidden_in_texts_numbers_and_names_of_files():
    secrets = Secrets([Secret("crm", "tok/9&x-é 42<z", tools=["find"]), Secret("pin", "8675309123", tools=["find"])])
    for form, text in SPELLINGS.items():
        assert "secret:crm" in secrets.hide(f"before {text} after"), form
    assert secrets.hide({"n": [8675309123, 3, 1.5, True]}) == {"n": ["secret:pin", 3, 1.5, True]}
    assert secrets.hide(["8,675,309,123", "8.675309123e9"]) == ["secret:pin", "secret:pine9"]
    for quotes, text in ('it\'s "a" b', ("it''s", "it'\"'\"'s", r"it'\''s")), ('say "ho" ho', ('say ""ho"" ho',)):
        quoted = Secrets([Secret("q", quotes, tools=["find"])])
        assert all("secret:q" in quoted.hide(each if '"ho' in each else f'{each} ""a"" b') for each in text), quotes

    @tool(read_only=True)
    def find(token: str) -> ToolOutput:
        """Find."""
        return ToolOutput(result="see the file", files=[File(f"export-{token}.csv", b"a,b")])

    model = ScriptedClient([call("find", token="secret:pin"), answer("ok")])
    pin = Secret("pin", "8675309123", tools=["find"])
    (file,) = Agent(model, [find], secrets=[pin], home=False).run_sync("x").files
    assert file.name == "export-secret_pin.csv"
    spent = time.process_time()
    secrets.hide("\\" * 200_000 + "&amp;" * 50_000 + "%25" * 50_000)
    assert time.process_time() - spent < 3
