"""Small packages with the interfaces of verifiers and verl that the harnesses in `examples/` implement."""

from __future__ import annotations

from pathlib import Path

VERIFIERS = """
from typing import Any, Generic, NamedTuple, TypeVar
from pydantic import BaseModel

class HarnessConfig(BaseModel):
    id: str = "bash"

Config = TypeVar("Config", bound=HarnessConfig)

class Harness(Generic[Config]):
    APPENDS_SYSTEM_PROMPT = False

    def __init__(self, config):
        self.config = config

    def resolve_text_prompt(self, data):
        return (data.system_prompt if self.APPENDS_SYSTEM_PROMPT else None), data.prompt

class ProgramResult(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

ModelContext = Runtime = TaskData = Trace = Any
"""
VERL = """
from typing import Any
from pydantic import BaseModel

class AgentLoopMetrics(BaseModel):
    generate_sequences: float = 0.0

class AgentLoopOutput(BaseModel):
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}

class AgentLoopBase:
    def __init__(self, trainer_config, server_manager, tokenizer, processor, dataset_cls, data_config, **kwargs):
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer

def register(name):
    return lambda loop: loop
"""
FILES = {
    "verifiers/v1/__init__.py": VERIFIERS,
    **{f"verifiers/v1/{name}.py": "from verifiers.v1 import *" for name in ("clients", "runtimes", "task", "trace")},
    "verl/experimental/agent_loop/agent_loop.py": VERL,
}


def write_trainers(folder: Path) -> None:
    """Write the packages into a folder of Python's path."""
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
