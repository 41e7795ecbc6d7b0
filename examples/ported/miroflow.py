"""An agent from MiroFlow: its settings file, a sub-agent, and a formatter, an executor and a generator of its own.

python examples/ported/miroflow.py "How many years lie between the two openings?" --model openai:gpt-5
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from closeout import Agent, AnswerGenerator, Boxed, OutputFormatter, TaskLog, ToolExecutor, tool

HERE = Path(__file__).parent
PAGES = {page.stem: page for page in (HERE.parent / "documents").glob("*.md")}


@tool(read_only=True)
def read_page(name: str) -> str:
    """Read a page by its name."""
    return PAGES[name].read_text("utf-8")


@tool(read_only=True)
def list_pages(topic: str = "") -> list[str]:
    """List the pages, all of them or those with a topic in their names."""
    return [name for name in sorted(PAGES) if topic in name]


class Formatter(OutputFormatter):
    """Tells the model where each result ends."""

    def format_tool_result_for_user(self, tool_call_execution_result: Any) -> dict[str, str]:
        message = super().format_tool_result_for_user(tool_call_execution_result)
        return {**message, "text": f"{message['text']}\n[end of the result]"}


class Executor(ToolExecutor):
    """Accepts names of pages as they are written in links, and repeats a turn that found no page."""

    def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        fixed = super().fix_tool_call_arguments(tool_name, arguments)
        if tool_name == "read_page" and isinstance(fixed.get("name"), str):
            fixed["name"] = fixed["name"].removesuffix(".md")
        return fixed

    def should_rollback_result(self, tool_name: str, result: Any, tool_result: dict[str, Any]) -> bool:
        return tool_name == "list_pages" and result in ("", "[]")


class Generator(AnswerGenerator):
    """Logs how an attempt ended."""

    async def generate_and_finalize_answer(self, *arguments: Any, **options: Any) -> Any:
        ended = await super().generate_and_finalize_answer(*arguments, **options)
        self.task_log.log_step("info", f"{self.agent_type} | Closing", f"The answer is {ended.final_boxed_answer!r}.")
        return ended


class PrintedLog(TaskLog):
    """A log that is also shown while the run works."""

    def log_step(self, level: str, step_name: str, message: str, metadata: Any = None) -> Any:
        print(f"{level:7} {step_name}: {message[:100]!r}")
        return super().log_step(level, step_name, message, metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--model", default="openai:gpt-5")
    args = parser.parse_args()
    agent = Agent(
        args.model,
        [list_pages, read_page],
        config=HERE / "miroflow.yaml",
        answer=Boxed(),
        output_formatter=Formatter(),
        tool_executor=Executor,
        answer_generator=Generator,
    )
    result = agent.run_sync(args.question, listeners=[PrintedLog()])
    print(result.final_summary)


if __name__ == "__main__":
    main()
