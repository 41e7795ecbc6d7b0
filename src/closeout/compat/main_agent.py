"""Orchestrator: an agent and its run by the names of MiroFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from closeout.agent import Agent
from closeout.compat import check_methods
from closeout.compat.stream_handler import StreamHandler
from closeout.compat.task_log import TaskLog
from closeout.errors import UsageError
from closeout.tools.foreign import tool_manager
from closeout.tools.manager import ToolManager

__all__ = ["MainAgentAnswer", "Orchestrator"]

SUB_AGENT = "Does one subtask. State it whole, with all that is known already."


class MainAgentAnswer(NamedTuple):
    """The result of `run_main_agent`: what a run ended with, as `RunResult` has it too."""

    final_summary: str
    final_boxed_answer: str
    failure_experience_summary: str | None


class Orchestrator:
    """Builds an Agent of the parts that are passed, and runs it. `agent` is that agent.

    A run makes all its attempts itself, so nobody calls `run_main_agent` again with the experience of a failed one.

    Args:
        main_agent_tool_manager: Its tools: a ToolManager, or an object with its two methods.
        sub_agent_tool_managers: Those of sub-agents, by name. Each becomes a tool of the main agent.
        llm_client: The model: a client, or what `Agent(model=…)` takes.
        output_formatter: As for `Agent`.
        cfg: Settings with the groups `agent` and `llm`: a mapping, a DictConfig, or the path of a file.
        task_log: Logs the runs.
        stream_queue: Receives the events of a `StreamHandler`: a queue, or a function.
        options: Other arguments of `Agent`.
    """

    def __init__(
        self,
        main_agent_tool_manager: Any = None,
        sub_agent_tool_managers: Mapping[str, Any] | None = None,
        llm_client: Any = "local",
        output_formatter: Any = None,
        cfg: Any = None,
        task_log: TaskLog | None = None,
        stream_queue: Any = None,
        tool_definitions: Any = None,
        sub_agent_tool_definitions: Any = None,
        **options: Any,
    ) -> None:
        check_methods(type(self))
        config: Any = _plain(cfg)
        below: Mapping[str, Any] = {}
        if isinstance(config, dict) and isinstance(group := config.get("agent"), dict):
            below = group.get("sub_agents") or {}
            config["agent"] = {**group, "sub_agents": {}} if sub_agent_tool_managers else group
        options = {"config": config, "output_formatter": output_formatter, **options}
        tools = tool_manager(main_agent_tool_manager) or ToolManager(main_agent_tool_manager or ())
        limits = {key: {"max_turns": each["max_turns"]} for key, each in below.items() if (each or {}).get("max_turns")}
        self.sub_agents = {
            name: Agent(llm_client, [manager], name=name, **{**options, **limits.get(name, {})})
            for name, manager in (sub_agent_tool_managers or {}).items()
        }
        for name, each in self.sub_agents.items():
            tools.add(each.as_tool(name.replace("-", "_"), SUB_AGENT))
        self.agent = Agent(llm_client, tools, **options)
        self.task_log = task_log
        self.stream = None if stream_queue is None else StreamHandler(stream_queue)

    async def run_main_agent(
        self,
        task_description: str,
        task_file_name: str | None = None,
        task_id: str = "default_task",
        is_final_retry: bool = False,
    ) -> MainAgentAnswer:
        """Run a task. Returns the final summary, the answer, and what was learned if there is none."""
        del is_final_retry
        files = [task_file_name] if task_file_name else []
        listeners = [each for each in (self.task_log, self.stream) if each is not None]
        result = await self.agent.run(task_description, files=files, task_id=task_id, listeners=listeners)
        return MainAgentAnswer(result.final_summary, result.answer or "", result.failure_experience_summary)

    async def run_sub_agent(self, sub_agent_name: str, task_description: str) -> str:
        """Run a sub-agent by itself. Returns its answer, or why it has none."""
        if sub_agent_name not in self.sub_agents:
            known = ", ".join(self.sub_agents) or "none"
            raise UsageError(f"There is no sub-agent {sub_agent_name!r}. Those that were passed: {known}.")
        result = await self.sub_agents[sub_agent_name].run(task_description)
        return result.closing_text or result.answer or result.error


def _plain(value: Any) -> Any:
    """Settings as dicts and lists: a DictConfig is a mapping."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [*map(_plain, value)] if type(value).__name__ == "ListConfig" else value
