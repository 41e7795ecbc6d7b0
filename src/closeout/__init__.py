"""Closeout: a runtime for tool-using LLM agents that finish.

from closeout import Agent, tool

Every public name is here, and each is loaded when it is first used: `import closeout` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name → the module it lives in.
_HOMES = {
    "Agent": "agent",
    "AgentScratchpadUnit": "dialects.scratchpad",
    "AnswerGenerator": "answers.generator",
    "AnthropicClient": "llm.anthropic",
    "BaseClient": "llm.base",
    "Boxed": "answers.contracts",
    "CacheOptimizedOutput": "outputs.forms",
    "Choice": "answers.contracts",
    "CloseoutError": "errors",
    "Config": "config",
    "CotAgentOutputParser": "dialects.react_parser",
    "CotAgentRunner": "orchestrator.runners",
    "CotChatAgentRunner": "orchestrator.runners",
    "CotCompletionAgentRunner": "orchestrator.runners",
    "DEMO_SCRAPE_MAX_LENGTH": "tools.executor",
    "ErrorBox": "llm.boxes",
    "FORMAT_ERROR_MESSAGE": "answers.formatter",
    "FunctionCallAgentRunner": "orchestrator.runners",
    "Json": "answers.contracts",
    "Message": "messages",
    "Number": "answers.contracts",
    "OneOf": "answers.contracts",
    "OpenAIClient": "llm.openai",
    "Orchestrator": "orchestrator.orchestrator",
    "OutputFormatter": "answers.formatter",
    "ResponseBox": "llm.boxes",
    "ResponseFormat": "outputs.models",
    "RunResult": "orchestrator.result",
    "StreamHandler": "journal.stream",
    "TOOL_RESULT_MAX_LENGTH": "answers.formatter",
    "Tagged": "answers.contracts",
    "TaskLog": "journal.task_log",
    "TelemetryCollector": "outputs.telemetry",
    "ToolCall": "messages",
    "ToolError": "errors",
    "ToolExecutor": "tools.executor",
    "ToolManager": "tools.manager",
    "ToolOutput": "outputs.models",
    "ToolPolicy": "messages",
    "ToolSpec": "messages",
    "ToolTelemetry": "outputs.models",
    "UnifiedToolWrapper": "outputs.wrapper",
    "Usage": "messages",
    "Yaml": "answers.contracts",
    "count_tokens": "outputs.tokens",
    "decode": "outputs.encoding",
    "encode": "outputs.encoding",
    "extract_boxed": "answers.boxed",
    "format_observation": "outputs.models",
    "grade": "answers.grading",
    "load_config": "config",
    "read_tool_calls": "dialects.forms",
    "repair_arguments": "repair.arguments",
    "repair_json": "repair.json_text",
    "tool": "tools.tool",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  one table, so that a name cannot be in one list and not in the other


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'closeout' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"closeout.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
