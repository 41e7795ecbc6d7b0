"""A small package with the layout of tau2-bench: two telecom tasks, tools of both sides, and its verdict.

It has what `examples/tau2_solo.py` reads of the package, under the same names and with the same signatures.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "data_model/message.py": """
from typing import Any
from pydantic import BaseModel

class ToolCall(BaseModel):
    id: str = ""
    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"

class ToolMessage(BaseModel):
    id: str
    role: str
    content: str
    requestor: str = "user"
    error: bool = False

class AssistantMessage(BaseModel):
    role: str
    tool_calls: list[ToolCall]
""",
    "data_model/simulation.py": """
from enum import Enum
from typing import Any
from pydantic import BaseModel

class TerminationReason(str, Enum):
    AGENT_STOP = "agent_stop"
    MAX_STEPS = "max_steps"

class SimulationRun(BaseModel):
    id: str
    task_id: str
    start_time: str
    end_time: str
    duration: float
    termination_reason: TerminationReason
    messages: list[Any]
""",
    "data_model/tasks.py": """
from typing import Any
from pydantic import BaseModel

class Action(BaseModel):
    id: str = ""
    name: str
    requestor: str
    arguments: dict[str, Any]

class Criteria(BaseModel):
    actions: list[Action]

class State(BaseModel):
    initialization_actions: list[dict[str, Any]]

class Task(BaseModel):
    id: str
    ticket: str
    initial_state: State
    evaluation_criteria: Criteria
""",
    "domains/telecom/environment.py": """
import json
from tau2.data_model.message import ToolMessage
from tau2.data_model.tasks import Task

class Described:
    def __init__(self, function, **properties):
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        self.openai_schema = {"function": {"description": function.__doc__, "parameters": schema}}

class Kit:
    def __init__(self, state, reads, **tools):
        self.state, self._reads, self._tools = state, reads, tools

    def get_tools(self):
        return dict(self._tools)

    def tool_mutates_state(self, name):
        return name not in self._reads

class Environment:
    policy = "Refuel only if the customer agrees."

    def __init__(self, solo_mode):
        self.solo_mode = solo_mode
        self.state = {"roaming": True, "data": 0.0}
        self.tools = Kit(self.state, (), refuel_data=Described(self._refuel, gb_amount={"type": "number"}))
        self.user_tools = Kit(
            self.state,
            ("check_status",),
            toggle_roaming=Described(self._toggle),
            check_status=Described(self._check),
        )

    def _refuel(self, gb_amount):
        "Add data."
        self.state["data"] += gb_amount
        return {"data": self.state["data"]}

    def _toggle(self):
        "Turn roaming on or off."
        self.state["roaming"] = not self.state["roaming"]
        return "Roaming is " + ("ON" if self.state["roaming"] else "OFF")

    def _check(self):
        "Show the status bar."
        return dict(self.state)

    def set_state(self, data, actions, history):
        self.state.update(*actions)

    def get_response(self, call):
        made = {"refuel_data": self._refuel, "toggle_roaming": self._toggle, "check_status": self._check}[call.name]
        found = made(**call.arguments)
        content = found if isinstance(found, str) else json.dumps(found)
        return ToolMessage(id=call.id, role="tool", content=content, requestor=call.requestor)

def get_environment(solo_mode=False):
    return Environment(solo_mode)

def get_tasks(split):
    on = {"name": "toggle_roaming", "requestor": "user", "arguments": {}}
    more = {"name": "refuel_data", "requestor": "assistant", "arguments": {"gb_amount": 2.0}}
    tasks = {"[mobile_data_issue]roaming_off": [on], "[mms_issue]" + "roaming_off|no_data|" * 10: [on, more]}
    return [
        Task(
            id=name,
            ticket="Ticket of " + name,
            initial_state={"initialization_actions": [{"roaming": False}]},
            evaluation_criteria={"actions": actions},
        )
        for name, actions in tasks.items()
    ]
""",
    "evaluator/evaluator.py": """
from enum import Enum
from types import SimpleNamespace
from tau2.domains.telecom.environment import get_environment

class EvaluationType(str, Enum):
    ALL = "all"

class RewardType(str, Enum):
    ENV_ASSERTION = "ENV_ASSERTION"

def evaluate_simulation(simulation, task, evaluation_type, solo_mode, domain):
    if simulation.termination_reason != "agent_stop":
        return SimpleNamespace(reward=0.0, reward_breakdown=None, info={"note": "Simulation terminated prematurely."})
    played, right = (get_environment(solo_mode=solo_mode) for _ in range(2))
    for environment in (played, right):
        environment.set_state(None, task.initial_state.initialization_actions, [])
    for made, shown in zip(simulation.messages[::2], simulation.messages[1::2], strict=True):
        if played.get_response(made.tool_calls[0]).content != shown.content:
            raise ValueError(f"Tool call: {made.tool_calls[0]}")
    for action in task.evaluation_criteria.actions:
        right.get_response(action.model_copy(update={"id": "gold"}))
    reward = float(played.state == right.state)
    return SimpleNamespace(reward=reward, reward_breakdown={RewardType.ENV_ASSERTION: reward}, info={})
""",
}


def write_tau2(folder: Path) -> None:
    """Write the package into a folder of Python's path."""
    for name, text in FILES.items():
        file = folder / "tau2" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
