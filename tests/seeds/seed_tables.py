"""The tables of docs/seeds that the code decides: names, hooks, settings, variables, and the steps that runs log.

python tests/seeds/seed_tables.py writes them into the pages.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import closeout
from closeout import Agent, Boxed, tool
from closeout.compat import ENVIRONMENT, HOOKS, NOT_CALLED, SETTINGS, VOCABULARY
from closeout.config import Config
from closeout.testing import ScriptedClient, answer, call, say

CHINESE = {
    "a run that begins": "运行开始",
    "a question to `runner.run`": "`runner.run` 的每个问题",
    "each request": "每次请求",
    "each reply": "每条回复",
    "each call of a tool": "每次工具调用",
    "each result of a tool": "每个工具结果",
    "each event that has this name": "每个同名事件",
    "an answer, and closing": "答案，以及收尾",
    "an attempt without an answer": "没有答案的尝试",
    "the end of a run": "运行结束",
    "A run is recorded in its journal; result.messages is the conversation.": (
        "运行记录在日志里；result.messages 是对话。"
    ),
    "result.agent_thoughts holds the steps; listeners= receive them as they happen.": (
        "result.agent_thoughts 有各步；listeners= 实时收到它们。"
    ),
    "Override _organize_historic_prompt_messages.": "重写 _organize_historic_prompt_messages。",
    "Override feed and close.": "重写 feed 和 close。",
    "Override create_message or complete.": "重写 create_message 或 complete。",
    "A run shortens its conversation itself; Agent(context=…) decides how.": (
        "运行自己缩短对话；Agent(context=…) 决定怎样缩短。"
    ),
    "agent.keep_tool_result sets how many results stay.": "agent.keep_tool_result 设定保留多少结果。",
    "Override is_duplicate_query in a ToolExecutor.": "在 ToolExecutor 里重写 is_duplicate_query。",
    "Override record_query in a ToolExecutor.": "在 ToolExecutor 里重写 record_query。",
    "A run rolls replies back itself; agent.max_consecutive_rollbacks limits it.": (
        "运行自己回滚回复；agent.max_consecutive_rollbacks 是上限。"
    ),
    "A model is offered the tools that the manager holds.": "提供给模型的，是管理器里的工具。",
}

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- names {} -->", "<!-- end -->"


def pages(seed: str) -> tuple[Path, Path]:
    """The English and the Chinese page of a seed."""
    name = next((DOCS / "seeds").glob(f"{seed}-*.md")).name
    return DOCS / "seeds" / name, DOCS / "zh/seeds" / name


def table(seed: str, language: str) -> str:
    """The names of a seed: what each is, and where it lives."""
    lines = ["| 名字 | 位置 | 值 |" if language == "zh" else "| name | lives in | value |", "|---|---|---|"]
    homes = {name: module for module, names in closeout._HOMES.items() for name in names.split()}
    for name in VOCABULARY[seed]:
        value = getattr(closeout, name)
        text = str(value).partition("\n")[0].replace("|", "\\|")
        shown = f"`{text}`" if name.isupper() else ""
        lines.append(f"| `closeout.{name}` | `closeout.{homes[name]}` | {shown} |")
    lines += hooks(seed, language)
    rows = [*map(setting, SETTINGS.get(seed, ()))]
    rows += [f"| | | `{name}` |" for name in ENVIRONMENT.get(seed, ())]
    if rows:
        head = "| 设置 | 默认值 | 环境变量 |" if language == "zh" else "| setting | default | environment variable |"
        lines += ["", head, "|---|---|---|", *rows]
    if seed == "002":
        lines += ["", "| 日志步骤 | 级别 |" if language == "zh" else "| step of the log | level |", "|---|---|"]
        lines += ["| `{}` | {} |".format(name.replace("|", "\\|"), level) for name, level in steps()]
    return "\n".join(lines)


def hooks(seed: str, language: str) -> list[str]:
    """The methods that a subclass overrides, and what a run calls them for; those that it overrides in vain."""
    heads = {
        "en": ("overridden method | called for", "method that no run calls | instead"),
        "zh": ("重写的方法 | 何时调用", "运行不调用的方法 | 代替它的"),
    }
    lines = []
    for head, owners in zip(heads[language], (HOOKS, NOT_CALLED), strict=True):
        rows = [
            f"| `{owner}.{method}` | {CHINESE[text] if language == 'zh' else text} |"
            for owner in VOCABULARY[seed]
            for method, text in owners.get(owner, {}).items()
        ]
        lines += ["", f"| {head} |", "|---|---|", *rows] if rows else []
    return lines


def setting(key: str) -> str:
    """The row of a setting."""
    fields: Any = Config.model_fields
    *groups, last = key.split(".")
    for group in groups:
        fields = fields[group].annotation.model_fields
    variable = f"CLOSEOUT_{key.upper().replace('.', '__')}"
    return f"| `{key}` | `{json.dumps(fields[last].get_default(call_default_factory=True))}` | `{variable}` |"


@cache
def steps() -> tuple[tuple[str, str], ...]:
    """The names and levels of the steps that runs log: with calls, a rollback, a second attempt, and closing."""

    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return {"a": "found"}[key]

    scripts: list[tuple[list[Any], dict[str, Any]]] = [
        ([call("look", key="a"), call("look", key="a"), call("look", key="b"), answer("1")], {}),
        ([call("look", key="a"), say("It is lost."), say("Lost."), answer("1")], {"max_turns": 1}),
        (
            [call("look", key="a"), say("Failure type: x"), answer("1")],
            {"max_turns": 1, "context_compress_limit": 1},
        ),
    ]
    found: dict[str, str] = {}
    for script, options in scripts:
        result = Agent(ScriptedClient(script), [look], answer=Boxed(), home=False, **options).run_sync("?")
        for step in result.task_log.step_logs:
            found.setdefault(re.sub(r"(?<=[ r])\d+", "N", step.name), step.level)
    return tuple(sorted(found.items()))


def with_table(text: str, seed: str, language: str) -> str:
    """The text of a page with its table as it should be."""
    begin = BEGIN.format(seed)
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(END)}",
        lambda _: f"{begin}\n{table(seed, language)}\n{END}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for seed in VOCABULARY:
        for page, language in zip(pages(seed), ("en", "zh"), strict=True):
            page.write_text(with_table(page.read_text("utf-8"), seed, language), "utf-8")
