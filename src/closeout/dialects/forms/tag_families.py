"""Families that write one tag a parameter: Qwen coder, Seed-OSS, Step, MiniMax M2, DeepSeek DSML, Muse, MiniCPM, …."""

from __future__ import annotations

import re
from functools import partial

from closeout.dialects.forms.records import Form
from closeout.dialects.forms.tags import Grammar, read_tagged_calls

__all__ = ["MUSE_GLIMMER", "MUSE_INVOKE", "TAG_FAMILIES"]

_QUOTED_NAME = r"""\s{1,8}name\s{0,4}=\s{0,4}["']?(?P<name>[^"'>\n]{1,200})["']?[^>\n]{0,200}>"""


def _function_grammar(wrapper: str, wrapper_end: str) -> Grammar:
    """`<function=NAME>` with `<parameter=KEY>VALUE</parameter>` in it; or one JSON object, as Llama and Functionary."""
    return Grammar(
        call=re.compile(rf"(?:{wrapper}\s{{0,64}})?<function=(?P<name>[^>\n<]{{1,200}})>"),
        call_ends=("</function>",),
        parameter=re.compile(r"<parameter=(?P<key>[^>\n]{1,200})>"),
        parameter_end="</parameter>",
        wrapper_ends=(wrapper_end,),
        escaped=True,
        json_body=True,
    )


def _invoke_grammar(prefix: str, wrapper: str, wrapper_ends: tuple[str, ...], **options: bool | str) -> Grammar:
    """`<invoke name="NAME">` with `<parameter name="KEY">VALUE</parameter>` in it, all tags with a prefix."""
    mark = re.escape(prefix)
    return Grammar(
        call=re.compile(rf"(?:{wrapper}\s{{0,64}})?<{mark}invoke{_QUOTED_NAME}"),
        call_ends=(f"</{prefix}invoke>",),
        parameter=re.compile(
            rf"""<{mark}parameter\s{{1,8}}name\s{{0,4}}=\s{{0,4}}["']?(?P<key>[^"'>\n]{{1,200}})["']?"""
            r"""(?:\s{1,8}string\s{0,4}=\s{0,4}["']?(?P<string>true|false)["']?)?[^>\n]{0,200}>"""
        ),
        parameter_end=f"</{prefix}parameter>",
        wrapper_ends=wrapper_ends,
        **options,  # type: ignore[arg-type]
    )


_STEP_WRAPPER = (
    r"(?:<｜tool_calls_begin｜>\s{0,8})?(?:<｜tool_sep｜>\s{0,8})?<｜tool_call_begin｜>\s{0,8}"
    r"(?:function\s{0,8}<｜tool_sep｜>)?"
)
# Tokenizers that print a blank as "Ġ", or swallow it, leave these tags behind.
_GAP = r"[\sĠ]{0,8}"
MUSE_INVOKE = _invoke_grammar("atem:", r"<atem:function_calls>", ("</atem:function_calls>",))
MUSE_GLIMMER = _invoke_grammar("atem:", r"<atem:function_calls>", ("</atem:function_calls>",), declared=False)

_GRAMMARS: tuple[tuple[str, tuple[str, ...], Grammar], ...] = (
    ("seed_oss", ("<seed:tool_call>",), _function_grammar("<seed:tool_call>", "</seed:tool_call>")),
    ("qwen3_coder", ("<function=",), _function_grammar("<tool_call>", "</tool_call>")),
    (
        "minimax_m2",
        ("<minimax:tool_call>",),
        _invoke_grammar("", "<minimax:tool_call>", ("</minimax:tool_call>",), escaped=True, untyped="scalars"),
    ),
    (
        "deepseek_dsml",
        ("<｜DSML｜",),
        _invoke_grammar(
            "｜DSML｜",
            "<｜DSML｜(?:function_calls|tool_calls)>",
            ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        ),
    ),
    ("step3", ("<steptml:invoke",), _invoke_grammar("steptml:", _STEP_WRAPPER, ("<｜tool_call_end｜>",))),
    ("muse", ("<atem:invoke",), MUSE_INVOKE),
    ("invoke", ("<invoke",), _invoke_grammar("antml:", "<function_calls>", ("</function_calls>",))),
    ("invoke", ("<invoke",), _invoke_grammar("", "<(?:function_calls|tool_calls?)>", ("</function_calls>",))),
    (
        "minicpm_xml",
        ("<function name=", "<functionname=", "<functionĠname="),
        Grammar(
            call=re.compile(rf"""<function{_GAP}name=["'](?P<name>[^"'>\n]{{1,200}})["']\s{{0,8}}>"""),
            call_ends=("</function>",),
            parameter=re.compile(rf"""<param(?:eter)?{_GAP}name=["'](?P<key>[^"'>\n]{{1,200}})["']\s{{0,8}}>"""),
            parameter_end="</param>",
            escaped=True,
            unique=True,
            known_only=True,
        ),
    ),
)

TAG_FAMILIES = tuple(
    Form(family, markers, partial(read_tagged_calls, grammar=grammar)) for family, markers, grammar in _GRAMMARS
)
