"""LangGraph with its checkpointer in PostgreSQL: everything else as in langgraph_sqlite.

https://docs.langchain.com/oss/python/langgraph/checkpointers: setup() before the first use.
"""

from __future__ import annotations

from typing import Any

import kit
import langgraph_sqlite
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.types import Command

NOT_OFFERED = langgraph_sqlite.NOT_OFFERED


def drive(given: Any) -> kit.Shown:
    with PostgresSaver.from_conn_string(kit.postgres()) as saver:
        saver.setup()
        return langgraph_sqlite.drive(saver, given)


def start() -> kit.Shown:
    return drive({"messages": [{"role": "user", "content": kit.task()}]})


def resume() -> kit.Shown:
    return drive(None)


def decide() -> kit.Shown:
    return drive(Command(resume={"decisions": [{"type": "approve"}]}))
