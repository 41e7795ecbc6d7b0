"""Turn a CSV file of customers' messages into typed records, twenty at a time.

    python examples/pipeline.py examples/data/messages.csv tickets.jsonl

Stop it at any time, even with `kill -9`, and start it again: messages that are done are not sent to the model again.
Messages that could not be read are named on stderr and make the exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from closeout import Agent


class Ticket(BaseModel):
    kind: Literal["complaint", "question", "order", "other"]
    urgency: int = Field(ge=1, le=5)
    product: str | None = Field(description="as the customer writes it, null if none is named")
    summary: str = Field(max_length=120, description="one sentence in English")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("messages", type=Path, help="a CSV file with the columns id and text")
    parser.add_argument("tickets", type=Path, help="the JSON-lines file to write")
    parser.add_argument("-m", "--model", default="openai:gpt-5")
    options = parser.parse_args()

    agent = Agent(options.model, instructions="Read a customer's message and fill in the ticket.", answer=Ticket)
    with options.messages.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tasks = [{"task": row["text"], "task_id": row["id"]} for row in rows]
    failed = 0
    with options.tickets.open("w", encoding="utf-8") as out:
        runs = agent.map(tasks, limit=20, key=f"tickets {options.messages.name} {options.model}", progress=True)
        next_row = iter(rows)  # results come in the order of the tasks
        async for result in runs:
            row = next(next_row)
            if result.value is None:
                failed += 1
                print(f"{row['id']}: {result.error or result.stop_reason}", file=sys.stderr)
            else:
                print(json.dumps({"id": row["id"], **result.value.model_dump()}, ensure_ascii=False), file=out)
    print(f"{len(rows) - failed} tickets, {failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
