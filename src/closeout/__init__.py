"""Closeout: a runtime for tool-using LLM agents that finish.

from closeout import Agent, tool

Every public name is here, and each is loaded when it is first used: `import closeout` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.answers.boxed import extract_boxed
    from closeout.answers.contracts import Boxed, Choice, Json, Number, OneOf, Tagged, Yaml
    from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, TOOL_RESULT_MAX_LENGTH, OutputFormatter
    from closeout.answers.generator import AnswerGenerator
    from closeout.answers.grading import grade
    from closeout.config import Config, load_config
    from closeout.dialects.forms import ToolCallsRead, read_tool_calls
    from closeout.dialects.react_parser import CotAgentOutputParser
    from closeout.dialects.salvage import salvage
    from closeout.dialects.scratchpad import AgentScratchpadUnit
    from closeout.errors import CloseoutError, ToolDefinitionError, ToolError
    from closeout.journal.stream import StreamHandler
    from closeout.journal.task_log import TaskLog
    from closeout.llm.anthropic import AnthropicClient
    from closeout.llm.base import BaseClient
    from closeout.llm.boxes import ErrorBox, ResponseBox
    from closeout.llm.openai import OpenAIClient
    from closeout.messages import Message, Repair, ToolCall, ToolPolicy, ToolSpec, Usage
    from closeout.orchestrator.orchestrator import Orchestrator
    from closeout.orchestrator.result import RunResult
    from closeout.orchestrator.runners import (
        CotAgentRunner,
        CotChatAgentRunner,
        CotCompletionAgentRunner,
        FunctionCallAgentRunner,
    )
    from closeout.outputs.encoding import decode, encode
    from closeout.outputs.forms import CacheOptimizedOutput
    from closeout.outputs.models import ResponseFormat, ToolOutput, ToolTelemetry, format_observation
    from closeout.outputs.telemetry import TelemetryCollector
    from closeout.outputs.tokens import count_tokens
    from closeout.outputs.wrapper import UnifiedToolWrapper
    from closeout.repair.arguments import repair_arguments
    from closeout.repair.json_text import repair_json
    from closeout.tools.executor import DEMO_SCRAPE_MAX_LENGTH, ToolExecutor
    from closeout.tools.manager import ToolManager
    from closeout.tools.tool import Tool, tool

__version__ = "0.1.0"

__all__ = [
    "DEMO_SCRAPE_MAX_LENGTH",
    "FORMAT_ERROR_MESSAGE",
    "TOOL_RESULT_MAX_LENGTH",
    "Agent",
    "AgentScratchpadUnit",
    "AnswerGenerator",
    "AnthropicClient",
    "BaseClient",
    "Boxed",
    "CacheOptimizedOutput",
    "Choice",
    "CloseoutError",
    "Config",
    "CotAgentOutputParser",
    "CotAgentRunner",
    "CotChatAgentRunner",
    "CotCompletionAgentRunner",
    "ErrorBox",
    "FunctionCallAgentRunner",
    "Json",
    "Message",
    "Number",
    "OneOf",
    "OpenAIClient",
    "Orchestrator",
    "OutputFormatter",
    "Repair",
    "ResponseBox",
    "ResponseFormat",
    "RunResult",
    "StreamHandler",
    "Tagged",
    "TaskLog",
    "TelemetryCollector",
    "Tool",
    "ToolCall",
    "ToolCallsRead",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutor",
    "ToolManager",
    "ToolOutput",
    "ToolPolicy",
    "ToolSpec",
    "ToolTelemetry",
    "UnifiedToolWrapper",
    "Usage",
    "Yaml",
    "count_tokens",
    "decode",
    "encode",
    "extract_boxed",
    "format_observation",
    "grade",
    "load_config",
    "read_tool_calls",
    "repair_arguments",
    "repair_json",
    "salvage",
    "tool",
]

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
    "Repair": "messages",
    "ResponseBox": "llm.boxes",
    "ResponseFormat": "outputs.models",
    "RunResult": "orchestrator.result",
    "StreamHandler": "journal.stream",
    "TOOL_RESULT_MAX_LENGTH": "answers.formatter",
    "Tagged": "answers.contracts",
    "TaskLog": "journal.task_log",
    "TelemetryCollector": "outputs.telemetry",
    "Tool": "tools.tool",
    "ToolCall": "messages",
    "ToolCallsRead": "dialects.forms",
    "ToolDefinitionError": "errors",
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
    "salvage": "dialects.salvage",
    "tool": "tools.tool",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'closeout' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"closeout.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
