"""Research a question in a folder of documents and print a report in which every claim has a source.

    python examples/research.py "Why were the Rideau and the Panama Canal built?" --docs examples/documents

A lead agent splits the question and sends researchers, which work at the same time. The report is typed, and the
program checks that the cited documents exist.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pydantic import BaseModel

from closeout import Agent
from closeout.tools.builtin import document_tools


class Claim(BaseModel):
    text: str
    source: str  # a file name, as the search shows it: canal.md:5-9


class Report(BaseModel):
    summary: str
    claims: list[Claim]


def make_agent(model: str, folder: Path) -> Agent[Report]:
    researcher = Agent(
        model,
        tools=document_tools(folder),
        instructions="Answer from the documents only. Name the source of every fact, such as canal.md:5-9.",
        max_turns=15,
    )
    return Agent(
        model,
        tools=[researcher.as_tool("researcher", "Finds facts in the documents. Give it one narrow question.")],
        instructions="Split the question, send a researcher for each part, and report only what they found.",
        answer=Report,
    )


def as_markdown(report: Report, folder: Path) -> tuple[str, list[str]]:
    """The report as text, and the sources in it that do not exist."""
    missing = [claim.source for claim in report.claims if not (folder / claim.source.partition(":")[0]).is_file()]
    lines = [report.summary, "", *(f"- {claim.text} [{claim.source}]" for claim in report.claims)]
    return "\n".join(lines), missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--docs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-m", "--model", default="openai:gpt-5")
    options = parser.parse_args()

    result = make_agent(options.model, options.docs).run_sync(options.question)
    if result.value is None:
        print(result.error or f"No report ({result.stop_reason}).", file=sys.stderr)
        return 1
    text, missing = as_markdown(result.value, options.docs)
    print(text)
    for source in missing:
        print(f"Not in the documents: {source}", file=sys.stderr)
    print(f"{result.usage.requests} requests, closeout runs {result.run_id}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
