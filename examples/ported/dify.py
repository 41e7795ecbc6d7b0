"""An agent from Dify: a chain-of-thought runner of its own, for a model that thinks and acts in Chinese.

python examples/ported/dify.py "巴拿马运河是哪一年开通的？" --model openai:qwen3
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from closeout import CotChatAgentRunner, tool

DOCUMENTS = Path(__file__).parent.parent / "documents"
MARKERS = {"thought": ["思考"], "action": ["行动"], "observation": ["观察"], "final_answer": ["最终答案"]}


@tool(read_only=True)
def search(query: str) -> list[str]:
    """在文档中查找包含该词的段落。"""
    texts = (page.read_text("utf-8") for page in sorted(DOCUMENTS.glob("*.md")))
    return [part for text in texts for part in text.split("\n\n") if query.lower() in part.lower()][:5]


class ChineseRunner(CotChatAgentRunner):
    """Adds what the model should keep to in its own language."""

    def _organize_instruction_prompt(self) -> str:
        return f"请用中文思考和回答。\n\n{super()._organize_instruction_prompt()}"


async def ask(question: str, model: str) -> None:
    runner = ChineseRunner(model, [search], "你是一名档案管理员。", markers=MARKERS)
    async for _ in runner.run(question):
        pass
    for step in runner.result.agent_thoughts:
        print(f"{step.position}. {step.thought} {step.action} {step.input or ''} {step.observation[:80]}")
    print(runner.result.answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--model", default="openai:qwen3")
    args = parser.parse_args()
    asyncio.run(ask(args.question, args.model))


if __name__ == "__main__":
    main()
