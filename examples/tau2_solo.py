"""The telecom tasks of tau2-bench in solo mode: no customer, the agent has the tools of both sides.

    git clone https://github.com/sierra-research/tau2-bench && pip install -e tau2-bench  # Python 3.12 or 3.13
    export LOGURU_LEVEL=ERROR  # tau2 logs every call
    closeout eval examples/tau2_solo:BENCHMARK -m openai:gpt-5 --by issue

Tasks, environment, policy and verdict are those of tau2-bench. BENCHMARK has its 114 tasks; `benchmark("full")` makes
one with all 2,285, "small", "train" and "test" others. `oracle_for` is an agent that makes the right calls of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage
from tau2.data_model.simulation import SimulationRun, TerminationReason
from tau2.data_model.tasks import Task
from tau2.domains.telecom.environment import get_environment, get_tasks
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

from closeout import Agent, RunContext, ToolOutput
from closeout.evaluate import Attempted, EvalTask, Score
from closeout.evaluate.benchmarks import Benchmark
from closeout.messages import ToolPolicy
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.tool import Tool

INSTRUCTIONS = """\
You are a customer service agent. You cannot talk to the customer: solve the ticket with calls of tools, one at a time,
within the policy. When it is solved, answer: done.

"""


def tasks(split: str) -> list[EvalTask]:
    return [
        EvalTask(
            id=task.id,
            question=task.ticket,
            metadata={"issue": task.id[1:].partition("]")[0], "task": task.model_dump(mode="json")},
        )
        for task in get_tasks(split)
    ]


def tools(task: EvalTask) -> Sequence[Any]:
    """Make the tools of a trial, over an environment of its own."""
    told = Task.model_validate(task.metadata["task"])
    environment = get_environment(solo_mode=True)
    environment.set_state(None, told.initial_state.initialization_actions, [])
    done: set[str] = set()

    def tool_of(name: str, described: dict[str, Any], policy: ToolPolicy) -> Tool[..., Any]:
        def make_call(context: RunContext, **arguments: Any) -> ToolOutput:
            for earlier in [place for place in context.state if place not in done]:  # of a run that was interrupted
                environment.get_response(ToolCall(**context.state[earlier][0]))
                done.add(earlier)
            made = ToolCall(id=context.handle, name=name, arguments=arguments)
            result = environment.get_response(made)
            done.add(context.handle)
            pair = [made.model_dump(), result.model_dump(mode="json")]
            return ToolOutput(result=result.content, state_update={context.handle: pair})

        about = {"description": described["description"], "parameters": described["parameters"]}
        return Tool(make_call, name=name, policy=policy, inline=True, **about)

    made = []
    for kit in (environment.tools, environment.user_tools):
        for name, each in kit.get_tools().items():
            reads = not kit.tool_mutates_state(name)
            policy = ToolPolicy(read_only=reads, repeatable=True, accept_empty=True, on_crash="rerun", repair="none")
            made.append(tool_of(name, each.openai_schema["function"], policy))
    return made


def tau2(attempt: Attempted) -> Score:
    """Score a trial as tau2-bench does, by its calls."""
    messages: list[Any] = []
    for made, result in attempt.state.values():
        messages.append(AssistantMessage(role="assistant", tool_calls=[ToolCall(**made)]))
        messages.append(ToolMessage(**result))
    ended = TerminationReason.AGENT_STOP if attempt.status == "answered" else TerminationReason.MAX_STEPS
    run = SimulationRun(
        id=attempt.run_id,
        task_id=attempt.task.id,
        start_time="",
        end_time="",
        duration=0,
        termination_reason=ended,
        messages=messages,
    )
    told = Task.model_validate(attempt.task.metadata["task"])
    info = evaluate_simulation(run, told, EvaluationType.ALL, solo_mode=True, domain="telecom")
    parts = ", ".join(f"{basis.value} {value:g}" for basis, value in (info.reward_breakdown or {}).items())
    return Score(info.reward, info.reward == 1, parts or str(info.info))


def benchmark(split: str) -> Benchmark:
    return Benchmark(
        about=f"tau2-bench telecom, solo mode, the tasks of '{split}'",
        tasks=lambda: tasks(split),
        scorer=tau2,
        tools=tools,
        instructions=INSTRUCTIONS + get_environment(solo_mode=True).policy,
        settings={"agent.max_parallel_calls": 1, "agent.context_compress_limit": 0},
    )


def oracle_for(task: EvalTask) -> Agent[Any]:
    right = Task.model_validate(task.metadata["task"]).evaluation_criteria.actions
    script = [*(call(each.name, **each.arguments) for each in right), answer("done")]
    return Agent(ScriptedClient(script), tools(task), max_turns=len(script) + 1)


BENCHMARK = benchmark("base")
