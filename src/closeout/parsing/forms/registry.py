"""The table of forms, the names of their families, and forms of the user's own beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from closeout.errors import UsageError
from closeout.parsing.forms.channels import CHANNELS, FUNCTIONARY, GLIMMER_CHANNELS, KIMI_K3, MUSE_CHANNELS
from closeout.parsing.forms.families import REACT, USE_MCP_TOOL
from closeout.parsing.forms.form import Form
from closeout.parsing.forms.gemma import GEMMA
from closeout.parsing.forms.json_calls import BARE_JSON
from closeout.parsing.forms.marked_json import MISTRAL, TAGGED_JSON, TOKEN_CALLS
from closeout.parsing.forms.python_calls import PYTHON_TAG, PYTHONIC
from closeout.parsing.forms.tag_calls import ARG_PAIRS, MINIMAX_M3, TAG_FAMILIES
from closeout.parsing.forms.unmarked import UNMARKED

__all__ = ["MARKED", "check_forms", "families", "forms_of", "marked_forms"]

MARKED: tuple[Form, ...] = (
    *USE_MCP_TOOL,
    *KIMI_K3,
    CHANNELS,
    *MINIMAX_M3,
    *TAG_FAMILIES,
    *TOKEN_CALLS,
    *MISTRAL,
    *GEMMA,
    *ARG_PAIRS,
    *TAGGED_JSON,
    *PYTHONIC,
    PYTHON_TAG,
    *FUNCTIONARY,
    REACT,
)
"""Forms with a mark in the text. Of two whose mark comes first at the same place, the one higher up is tried first."""


# A family with more than one form, or with bare JSON or Python as its second writing.
_COMPOUND: dict[str, tuple[str, ...]] = {
    "xlam": ("hermes", "mistral", "json"),
    "llama3_json": ("llama3_json", "qwen3_coder", "json"),
    "llama_function": ("qwen3_coder",),
    "llama3_2": ("llama3_json", "qwen3_coder", "json", "pythonic_list"),
    "openai": ("harmony", "json"),
    "mistral": ("mistral", "json"),
    "granite": ("granite", "granite_20b_fc", "hermes", "json"),
    "nemotron": ("nemotron", "qwen3_coder"),
    "step3": ("step3", "qwen3_coder"),
    "seed_oss": ("seed_oss", "qwen3_coder"),
    "minimax": ("minimax_m2", "invoke", "minimax_m3", "jamba"),
    "minimax_m2": ("minimax_m2", "invoke"),
    "functionary": ("functionary", "qwen3_coder", "llama3_json", "name_line"),
    "pythonic": ("pythonic", "pythonic_list"),
    "lfm2_pythonic": ("lfm2_pythonic", "pythonic_list"),
    "cohere": ("cohere", "react"),
    "gemma": ("gemma", "pythonic_list", "json"),
    "glm45_xml": ("glm45_xml", "name_line"),
    "k2_horizon": ("k2_horizon", "glm45_xml"),
    "hunyuan": ("jamba", "glm45_xml", "hermes"),
    "deepseek_v3": ("deepseek_v3", "deepseek_dsml"),
    "deepseek_r1": ("deepseek_v3", "hermes"),
    "internlm": ("internlm", "hermes"),
    "ernie": ("hermes",),
    "phi4": ("phi4", "granite", "json"),
    "apriel": ("jamba", "json"),
    "qwen3_coder": ("qwen3_coder", "hermes"),
    "exaone": ("hermes",),
    "muse": ("muse_channels", "muse"),
    "muse_glimmer": ("glimmer_channels", "muse"),
}

# Beginnings of parser, template and model names, longest first; what servers print and data sets carry.
_ALIASES: tuple[tuple[str, str], ...] = (
    ("ministral", "mistral"), ("magistral", "mistral"), ("devstral", "mistral"), ("mistral", "mistral"),
    ("museglimmer", "muse_glimmer"), ("muse", "muse"),
    ("deepseekv32", "deepseek_dsml"), ("deepseekv4", "deepseek_dsml"), ("deepseekdsml", "deepseek_dsml"),
    ("deepseekr1", "deepseek_r1"), ("deepseek", "deepseek_v3"),
    ("qwen3coder", "qwen3_coder"), ("qwencoder", "qwen3_coder"), ("qwen3xml", "qwen3_coder"),
    ("qwen3engine", "qwen3_coder"), ("qwen35", "qwen3_coder"), ("step3p5", "qwen3_coder"), ("stepfun35", "qwen3_coder"),
    ("qwenqwq", "hermes"), ("qwq", "hermes"), ("qwen", "hermes"), ("hermes", "hermes"), ("reka", "hermes"),
    ("exaone", "exaone"),
    ("stepfun", "step3"), ("step", "step3"),
    ("kimik3", "kimi_k3"), ("kimi", "kimi_k2"),
    ("glm", "glm45_xml"), ("spark", "glm45_xml"), ("poolside", "glm45_xml"), ("inclusionailing", "glm45_xml"),
    ("ling", "glm45_xml"),
    ("minimaxm3", "minimax_m3"), ("minimaxm2", "minimax_m2"), ("minimaxm1", "jamba"), ("minimax", "minimax"),
    ("granite20b", "granite_20b_fc"), ("ibmgranite", "granite"), ("granite", "granite"),
    ("phi", "phi4"), ("firefunction", "phi4"), ("fireworks", "phi4"),
    ("functiongemma", "gemma"), ("googlegemma", "gemma"), ("gemma", "gemma"),
    ("llama4json", "llama3_json"), ("llama4", "pythonic"), ("toolace", "pythonic"), ("watttool", "pythonic"),
    ("metallamallama4", "pythonic"), ("metallamallama32", "llama3_2"), ("llama32", "llama3_2"),
    ("olmo", "pythonic"), ("pythonic", "pythonic"),
    ("lfm", "lfm2_pythonic"), ("liquid", "lfm2_pythonic"),
    ("llama", "llama3_json"), ("metallama", "llama3_json"),
    ("xlam", "xlam"), ("salesforcellamaxlam", "xlam"), ("json", "json"), ("openaienvelope", "json"),
    ("seedoss", "seed_oss"), ("bytedanceseed", "seed_oss"),
    ("ernie", "ernie"), ("hunyuan", "hunyuan"), ("hy", "hunyuan"), ("internlm", "internlm"), ("interns1", "internlm"),
    ("jamba", "jamba"), ("apriel", "apriel"), ("unslothapriel", "apriel"), ("longcat", "longcat"),
    ("cohere", "cohere"), ("command", "cohere"), ("apertus", "apertus"), ("gigachat", "gigachat"),
    ("functionary", "functionary"), ("meetkai", "functionary"),
    ("openai", "openai"), ("gptoss", "harmony"),
    ("openaigptoss", "harmony"), ("harmony", "harmony"), ("beam", "harmony"),
    ("nvidianemotron", "nemotron"), ("nemotron", "nemotron"), ("nvidia", "nemotron"),
    ("k2horizon", "k2_horizon"), ("minicpm", "minicpm_xml"), ("openbmb", "minicpm_xml"),
    ("mcpxml", "mcp_xml"), ("usemcptool", "mcp_xml"), ("react", "react"), ("cot", "react"), ("solar", "solar"),
    ("pangu", "pangu"), ("openpangu", "pangu"), ("hyperclova", "hyperclova"), ("invoke", "invoke"),
    ("claude", "invoke"), ("anthropic", "invoke"),
)  # fmt: skip
_BY_LENGTH = sorted(_ALIASES, key=lambda pair: -len(pair[0]))

_NAMED: dict[str, tuple[Form, ...]] = {
    **{family: tuple(form for form in MARKED if form.family == family) for family in {form.family for form in MARKED}},
    "json": (BARE_JSON,),
    "pythonic_list": (UNMARKED,),
    "name_line": (UNMARKED,),
    "muse_channels": (MUSE_CHANNELS,),
    "glimmer_channels": (GLIMMER_CHANNELS,),
}


def marked_forms(own: Sequence[Form] = ()) -> tuple[Form, ...]:
    """The forms that a mark in the text shows, in the order in which they are tried: first the user's own."""
    return (*(form for form in own if form.markers), *MARKED) if own else MARKED


def check_forms(forms: Any) -> tuple[Form, ...]:
    """Return forms of the user's own.

    Raises:
        UsageError: One is not a form, its family is empty, a built-in one or there twice, or a marker is blank.
    """
    seen: set[str] = set()
    for form in (found := tuple(forms)):
        if not isinstance(form, Form):
            raise UsageError(f"forms must hold Form objects, got {form!r:.80}.")
        if not form.family.strip():
            raise UsageError("A form needs a family, got an empty name. Pass Form(family='my_model', …).")
        if form.family in _NAMED or form.family in _COMPOUND or form.family in seen:
            raise UsageError(f"The family {form.family!r} is built in or there twice. Choose another name.")
        if not all(marker.strip() for marker in form.markers):
            raise UsageError(f"A marker of {form.family!r} is blank, so it would match every reply. Leave it out.")
        seen.add(form.family)
    return found


def families() -> tuple[str, ...]:
    """The names of all built-in families, sorted."""
    return tuple(sorted({*_COMPOUND, *_NAMED}))


def forms_of(family: str, own: Sequence[Form] = ()) -> tuple[Form, ...]:
    """The forms of a family, by its name here or by a server's or model's name for it; () if it is unknown."""
    if named := tuple(form for form in own if form.family == family):
        return named
    canonical = _canonical(family)
    if not canonical:
        return ()
    members = _COMPOUND.get(canonical, (canonical,))
    return tuple(dict.fromkeys(form for member in members for form in _NAMED[member]))


def _canonical(family: str) -> str:
    if family in _COMPOUND or family in _NAMED:
        return family
    plain = re.sub(r"[^a-z0-9]", "", family[:200].casefold())
    begun = (name for start, name in _BY_LENGTH if plain.startswith(start))
    # `…-DeepSeek-V3.1` carries a vendor in front.
    contained = (name for start, name in _BY_LENGTH if len(start) > 4 and start in plain)
    return next(chain(begun, contained), "")
