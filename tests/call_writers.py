"""Writes tool calls as the vendors' chat templates do: one writer a form. For tests of the readers.

A writer takes [(name, arguments), …] and gives the model's text. `plain`: parameters are text between tags, so that
only a tool's schema tells the string "3" from the number 3.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Writer:
    """`family` as a server or model is named; `several`: more than one call fits into a reply."""

    family: str
    write: Callable[[Calls], str]
    plain: bool = False
    several: bool = True
    bare: bool = False  # no mark shows that this is a call
    channels: bool = False  # what is thought and said has marks of its own


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def named(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return dumped({"name": name, key: arguments})


def text_of(value: Any) -> str:
    """A value as templates put it between tags: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else dumped(value)


def semicolons(calls: Calls) -> str:
    return "; ".join(named(name, arguments, "parameters") for name, arguments in calls)


def json_list(calls: Calls, key: str = "arguments") -> str:
    return "[" + ", ".join(named(name, arguments, key) for name, arguments in calls) + "]"


def each(pattern: str, between: str = "") -> Callable[[Calls], str]:
    """One piece of text a call: `{name}`, `{json}` (the arguments) and `{call}` (name and arguments) are filled in."""

    def write(calls: Calls) -> str:
        return between.join(
            pattern.replace("{name}", name)
            .replace("{index}", str(index))
            .replace("{json}", dumped(arguments))
            .replace("{call}", named(name, arguments))
            for index, (name, arguments) in enumerate(calls)
        )

    return write


def tagged(call: str, parameter: str, close: str, before: str = "", after: str = "") -> Callable[[Calls], str]:
    """A wrapper, in it for each call its opening, one element a parameter, its closing."""

    def element(key: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        return parameter.replace("{key}", key).replace("{kind}", kind).replace("{value}", text_of(value))

    def write(calls: Calls) -> str:
        return (
            before
            + "".join(
                call.replace("{name}", name) + "".join(element(*item) for item in arguments.items()) + close
                for name, arguments in calls
            )
            + after
        )

    return write


def python_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def python_list(calls: Calls) -> str:
    return "[" + ", ".join(python_call(*call) for call in calls) + "]"


def braces(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{braces(inner, quote)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(braces(inner, quote) for inner in value) + "]"
    return dumped(value)


def k3(calls: Calls) -> str:
    def argument(key: str, value: Any) -> str:
        kind = "string" if isinstance(value, str) else "number"
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text_of(value)}<|close|>argument<|sep|>'

    inner = "".join(
        f'<|open|>call tool="{name}" index="{index}"<|sep|>'
        + "".join(argument(*item) for item in arguments.items())
        + "<|close|>call<|sep|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|open|>tools<|sep|>{inner}<|close|>tools<|sep|>"


def envelope(calls: Calls) -> str:
    members = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": dumped(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return dumped({"role": "assistant", "content": None, "tool_calls": members})


def nested_minimax(calls: Calls) -> str:
    mark = "]<]minimax[>["

    def element(name: str, value: Any) -> str:
        if isinstance(value, dict):
            inner = "".join(element(key, member) for key, member in value.items())
        elif isinstance(value, list):
            inner = "".join(element("item", member) for member in value)
        else:
            inner = text_of(value)
        return f"{mark}<{name}>{inner}{mark}</{name}>"

    invoked = "".join(
        f'{mark}<invoke name="{name}">' + "".join(element(*item) for item in arguments.items()) + f"{mark}</invoke>\n"
        for name, arguments in calls
    )
    return f"{mark}<tool_call>\n{invoked}{mark}</tool_call>"


_GLM = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
_GEMMA_QUOTE = '<|"|>'
_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>"


def invoke(prefix: str, before: str, after: str, kind: str = "") -> Callable[[Calls], str]:
    return tagged(
        f'<{prefix}invoke name="{{name}}">\n',
        f'<{prefix}parameter name="{{key}}"{kind}>{{value}}</{prefix}parameter>\n',
        f"</{prefix}invoke>\n",
        before,
        after,
    )


def wrapped(before: str, inner: Callable[[Calls], str], after: str) -> Callable[[Calls], str]:
    return lambda calls: before + inner(calls) + after


WRITERS: dict[str, Writer] = {
    "hermes": Writer("hermes", each("<tool_call>\n{call}\n</tool_call>", "\n")),
    "hermes, compact": Writer("hermes", each("<tool_call>{call}</tool_call>")),
    "hermes, a list": Writer("hermes", wrapped("<tool_call>\n", json_list, "\n</tool_call>")),
    "qwen3_coder": Writer(
        "qwen3_coder",
        tagged(
            "<tool_call>\n<function={name}>\n",
            "<parameter={key}>\n{value}\n</parameter>\n",
            "</function>\n</tool_call>\n",
        ),
        plain=True,
    ),
    "seed_oss": Writer(
        "seed_oss",
        tagged(
            "<seed:tool_call>\n<function={name}>\n",
            "<parameter={key}>{value}</parameter>\n",
            "</function>\n</seed:tool_call>\n",
        ),
        plain=True,
    ),
    "llama 3 tag": Writer(
        "llama3_json", lambda calls: "<|python_tag|>" + "; ".join(named(*c, "parameters") for c in calls)
    ),
    "llama 3 bare": Writer("llama3_json", lambda calls: "; ".join(named(*c, "parameters") for c in calls), bare=True),
    "llama 3 function": Writer("llama3_json", each("<function={name}>{json}</function>")),
    "llama 3.2 list": Writer("pythonic", python_list, bare=True),
    "llama 4": Writer("llama4_pythonic", wrapped("<|python_start|>", python_list, "<|python_end|>")),
    "mistral list": Writer("mistral", wrapped("[TOOL_CALLS] ", json_list, "")),
    "mistral list, no blank": Writer("mistral", wrapped("[TOOL_CALLS]", json_list, "</s>")),
    "mistral v11": Writer("mistral", each("[TOOL_CALLS]{name}{json}")),
    "mistral v13": Writer("mistral", each("[TOOL_CALLS]{name}[ARGS]{json}")),
    "mistral with ids": Writer("mistral", each("[TOOL_CALLS]{name}[CALL_ID]abcd1234{index}[ARGS]{json}")),
    "deepseek v3": Writer("deepseek_v3", wrapped("<｜tool▁calls▁begin｜>", each(_V3, "\n"), "<｜tool▁calls▁end｜>")),
    "deepseek r1": Writer("deepseek_r1", each(_V3, "\n")),
    "deepseek v3, blanks": Writer(
        "deepseek_v3",
        wrapped("<|tool calls begin|>", each(_V3.replace("｜", "|").replace("▁", " "), "\n"), "<|tool calls end|>"),
    ),
    "deepseek v3.1": Writer(
        "deepseek_v31",
        wrapped(
            "<｜tool▁calls▁begin｜>",
            each("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>"),
            "<｜tool▁calls▁end｜>",
        ),
    ),
    "deepseek v3.2": Writer(
        "deepseek_v32",
        invoke("｜DSML｜", "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", ' string="{kind}"'),
    ),
    "kimi_k2": Writer(
        "kimi_k2",
        wrapped(
            "<|tool_calls_section_begin|>",
            each("<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json}<|tool_call_end|>"),
            "<|tool_calls_section_end|>",
        ),
    ),
    "kimi_k3": Writer("kimi_k3", k3, channels=True),
    "glm45": Writer("glm45", tagged("<tool_call>{name}\n", _GLM, "</tool_call>\n"), plain=True),
    "glm47": Writer(
        "glm47",
        tagged("<tool_call>{name}", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>", "</tool_call>"),
        plain=True,
    ),
    "minimax m1": Writer("minimax_m1", wrapped("<tool_calls>\n", each("{call}", "\n"), "\n</tool_calls>")),
    "minimax m2": Writer("minimax_m2", invoke("", "<minimax:tool_call>\n", "</minimax:tool_call>"), plain=True),
    "minimax m3": Writer("minimax_m3", nested_minimax, plain=True),
    "granite 3": Writer("granite", wrapped("<|tool_call|>", json_list, "")),
    "granite 3, a tag": Writer("granite", wrapped("<tool_call>", json_list, "")),
    "granite 20b": Writer("granite-20b-fc", each("<function_call> {call}", "\n")),
    "phi 4 mini": Writer("phi4_mini_json", wrapped("functools", json_list, "")),
    "phi 4 mini, tokens": Writer("phi4_mini_json", wrapped("<|tool_call|>", json_list, "<|/tool_call|>")),
    "gemma 3": Writer(
        "gemma",
        lambda calls: "```tool_code\n" + "\n".join(python_call(*call) for call in calls) + "\n```",
    ),
    "gemma 3, a list": Writer("gemma", lambda calls: f"```tool_code\n{python_list(calls)}\n```"),
    "gemma 4": Writer(
        "gemma4",
        lambda calls: "".join(
            f"<|tool_call>call:{n}{braces(a, chr(60) + '|' + chr(34) + '|>')}<tool_call|>" for n, a in calls
        ),
    ),
    "functiongemma": Writer(
        "functiongemma",
        lambda calls: "".join(
            f"<start_function_call>call:{n}{braces(a, '<escape>')}<end_function_call>" for n, a in calls
        ),
    ),
    "olmo 3": Writer(
        "olmo3",
        lambda calls: "<function_calls>\n" + "\n".join(python_call(*call) for call in calls) + "\n</function_calls>",
    ),
    "lfm2": Writer("lfm2", wrapped("<|tool_call_start|>", python_list, "<|tool_call_end|>")),
    "lfm2, json": Writer("lfm2", wrapped("<|tool_call_start|>", json_list, "<|tool_call_end|>")),
    "openai envelope": Writer("openai_envelope", envelope, bare=True),
    "xlam": Writer("xlam", json_list, bare=True),
    "xlam, a fence": Writer("xlam", wrapped("```json\n", json_list, "\n```"), bare=True),
    "use_mcp_tool": Writer(
        "use_mcp_tool",
        each(
            "<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>{name}</tool_name>\n"
            "<arguments>\n{json}\n</arguments>\n</use_mcp_tool>",
            "\n",
        ),
    ),
    "react": Writer("react", each("Thought: I need it.\nAction: {name}\nAction Input: {json}"), several=False),
    "react, json": Writer(
        "react", each('Action:\n```json\n{"action": "{name}", "action_input": {json}}\n```'), several=False
    ),
    "internlm": Writer("internlm", each("<|action_start|><|plugin|>\n{call}<|action_end|>\n"), several=False),
    "jamba": Writer("jamba", wrapped("<tool_calls>", json_list, "</tool_calls>")),
    "hunyuan": Writer("hunyuan_a13b", wrapped("<tool_calls>", json_list, "</tool_calls>")),
    "ernie": Writer("ernie45", each("<tool_call>\n{call}\n</tool_call>\n", "\n")),
    "nemotron": Writer("nemotron", wrapped("<TOOLCALL>", json_list, "</TOOLCALL>")),
    "longcat": Writer("longcat", each("<longcat_tool_call>\n{call}\n</longcat_tool_call>\n")),
    "apertus": Writer(
        "apertus",
        lambda calls: (
            "<|tools_prefix|>" + dumped([{name: arguments} for name, arguments in calls]) + "<|tools_suffix|>"
        ),
    ),
    "k2 horizon": Writer(
        "k2_horizon",
        wrapped("<ifm|tool_calls>", each("<ifm|tool_call>{call}</ifm|tool_call>"), "</ifm|tool_calls>"),
    ),
    "pangu": Writer("pangu", wrapped("[unused11]", json_list, "[unused12]")),
    "hyperclova": Writer("hyperclova", wrapped(" -> tool/function_call\n", json_list, "")),
    "gigachat": Writer("gigachat3", each("<|message_sep|>\n\nfunction call<|role_sep|>\n{call}"), several=False),
    "functionary 3.1": Writer("functionary-v3.1", each("<function={name}>{json}</function>")),
    "functionary 3.2": Writer("functionary-v3.2", each(">>>{name}\n{json}", "\n")),
    "command r7b": Writer(
        "cohere_command3",
        lambda calls: (
            "<|START_ACTION|>"
            + dumped([{"tool_call_id": str(i), "tool_name": n, "parameters": a} for i, (n, a) in enumerate(calls)])
            + "<|END_ACTION|>"
        ),
    ),
    "step3": Writer(
        "step3",
        wrapped(
            "<｜tool_calls_begin｜>",
            tagged(
                '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
                '<steptml:parameter name="{key}">{value}</steptml:parameter>',
                "</steptml:invoke><｜tool_call_end｜>",
            ),
            "<｜tool_calls_end｜>",
        ),
        plain=True,
    ),
    "harmony": Writer(
        "gpt_oss",
        each("<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json}<|call|>"),
        channels=True,
    ),
    "muse": Writer(
        "muse",
        lambda calls: "".join(
            f"<|start|>assistant to={c[0]}<|message|>"
            + invoke("atem:", "<atem:function_calls>\n", "</atem:function_calls>")([c])
            + "<|eot|>"
            for c in calls
        ),
        plain=True,
        channels=True,
    ),
    "anthropic": Writer("anthropic", invoke("", "<function_calls>\n", "</function_calls>"), plain=True),
    "minicpm": Writer(
        "minicpm_xml",
        tagged('<function name="{name}">', '<param name="{key}"><![CDATA[{value}]]></param>', "</function>\n"),
        plain=True,
    ),
    "minicpm, no blank": Writer(
        "minicpm_xml",
        tagged('<functionname="{name}">', '<paramname="{key}">{value}</param>', "</function>\n"),
        plain=True,
    ),
    "solar": Writer(
        "solar", each("<|tool_call:begin|>a{index}<|tool_call:name|>{name}<|tool_call:args|>{json}<|tool_call:end|>")
    ),
}
