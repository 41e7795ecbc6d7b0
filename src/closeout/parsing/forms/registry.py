"""The table of forms, the names of their families, and registration of further forms."""

from __future__ import annotations

import re

from closeout.parsing.forms.channels import CHANNELS, FUNCTIONARY, GLIMMER_CHANNELS, KIMI_K3, MUSE_CHANNELS
from closeout.parsing.forms.families import REACT, USE_MCP_TOOL
from closeout.parsing.forms.form import Form
from closeout.parsing.forms.gemma import GEMMA
from closeout.parsing.forms.json_calls import BARE_JSON
from closeout.parsing.forms.marked_json import MISTRAL, TAGGED_JSON, TOKEN_CALLS
from closeout.parsing.forms.python_calls import PYTHON_TAG, PYTHONIC
from closeout.parsing.forms.tag_calls import ARG_PAIRS, MINIMAX_M3, TAG_FAMILIES
from closeout.parsing.forms.unmarked import UNMARKED
from closeout.parsing.registered_forms import REGISTERED

__all__ = ["MARKED", "families", "forms_of", "marked_forms", "register_form", "unregister_form"]

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
    "json": ("json",),
    "xlam": ("hermes", "mistral", "json"),
    "llama3_json": ("llama3_json", "llama_function", "json"),
    "llama_function": ("qwen3_coder",),
    "llama3_2": ("llama3_json", "llama_function", "json", "pythonic_list"),
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
    "minicpm_xml": ("minicpm_xml",),
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


def marked_forms() -> tuple[Form, ...]:
    """The forms that a mark in the text shows, in the order in which they are tried."""
    registered = tuple(form for form in REGISTERED.values() if form.markers)
    return (*registered, *MARKED) if registered else MARKED


def register_form(form: Form, *, replace: bool = False) -> None:
    """Add a form in which a model writes tool calls, for this process.

    Its markers are searched in every reply, before those of the built-in forms; a form without markers is used where
    its family is named. `read_tool_calls`, `salvage` and `FormDetector` use it. `escape_markers` breaks its markers in
    tool results, so that a model that repeats a result makes no call.

    Args:
        form: The form. Its `read` gets a Source and a Toolbox and returns Found.
        replace: Replace the forms of this family that were registered before.

    Raises:
        ValueError: The family is empty, a built-in one, or registered already.
    """
    if not form.family or not form.family.strip():
        raise ValueError("A form needs a family, got an empty name. Pass Form(family='my_model', …).")
    if form.family in _NAMED or form.family in _COMPOUND:
        raise ValueError(f"The family {form.family!r} is built in. Choose another name.")
    if not all(marker.strip() for marker in form.markers):
        raise ValueError(f"A marker of {form.family!r} is blank, so it would match every reply. Leave it out.")
    if form.family in REGISTERED and not replace:
        raise ValueError(f"The family {form.family!r} is registered already. Pass replace=True to replace it.")
    REGISTERED[form.family] = form


def unregister_form(family: str) -> None:
    """Remove a registered form; an unknown family is ignored."""
    REGISTERED.pop(family, None)


def families() -> tuple[str, ...]:
    """The names of all families, sorted."""
    return tuple(sorted({*_COMPOUND, *_NAMED, *REGISTERED}))


def forms_of(family: str) -> tuple[Form, ...]:
    """The forms of a family, by its name here or by a server's or model's name for it; () if it is unknown."""
    if family in REGISTERED:
        return (REGISTERED[family],)
    canonical = _canonical(family)
    if not canonical:
        return ()
    members = _COMPOUND.get(canonical, (canonical,))
    forms = [form for member in members for form in _NAMED.get(member, ()) or _inner(member)]
    return tuple(dict.fromkeys(forms))


def _inner(member: str) -> tuple[Form, ...]:
    return tuple(form for name in _COMPOUND.get(member, ()) for form in _NAMED.get(name, ()))


def _canonical(family: str) -> str:
    if family in _COMPOUND or family in _NAMED:
        return family
    plain = re.sub(r"[^a-z0-9]", "", family[:200].casefold())
    return next((name for start, name in _BY_LENGTH if plain.startswith(start)), "") or _contained(plain)


def _contained(plain: str) -> str:
    """For names such as `mistralai-…` or `…-DeepSeek-V3.1`, which carry a vendor in front."""
    return next((name for start, name in _BY_LENGTH if len(start) > 4 and start in plain), "")
