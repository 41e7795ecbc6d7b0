"""What a model is told when a run closes: the closing turn, and why its last reply was no answer.

What an attempt without an answer is asked for lives in `experience`.
"""

from __future__ import annotations

from closeout.answers.contracts import AnswerContract, Boxed

__all__ = ["generate_agent_summarize_prompt", "retry_prompt"]


def generate_agent_summarize_prompt(
    task_description: str, agent_type: str = "main", contract: AnswerContract | None = None
) -> str:
    """The closing turn: no more tools, the task once more, the form of the answer.

    A main agent's answer must satisfy the contract; another one reports what it found to the agent that asked.
    """
    head = (
        "This is the closing turn. Tools are closed: call none. Use what was found above.\n\n"
        f"Task:\n{task_description.strip()}\n\n"
    )
    if agent_type == "main":
        return head + (
            "Say briefly what the answer rests on. If something stayed uncertain, give the answer that the evidence "
            "supports best. Keep to the language, unit and precision that the task asks for. "
            f"{(contract or Boxed()).instruction()}"
        )
    return head + (
        "Report to the agent that gave you this task: the result, the facts that support it with their sources, and "
        f"what stayed open. {(contract or Boxed()).instruction()}"
    )


def retry_prompt(summary_prompt: str, problem: str, contract: AnswerContract) -> str:
    """The closing turn again, with what was wrong with the last reply."""
    return f"{summary_prompt}\n\nYou were asked this before. {problem} {contract.instruction()}"
