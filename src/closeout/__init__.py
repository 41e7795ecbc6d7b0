"""Closeout: a runtime for tool-using LLM agents that finish.

from closeout import Agent, tool

Every public name is here, and each is loaded when it is first used: `import closeout` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.answers.boxed import extract_boxed
    from closeout.answers.contracts import Boxed, Choice, Json, Number, OneOf, Tagged, Text, Yaml
    from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, TOOL_RESULT_MAX_LENGTH, OutputFormatter
    from closeout.answers.generator import AnswerGenerator
    from closeout.answers.grading import grade
    from closeout.answers.reading import AnswerContract, ContractReading
    from closeout.config import Config, load_config
    from closeout.context.policy import ContextPolicy, ContextState, Eviction, EvictionPolicy
    from closeout.dialects.cot import AgentScratchpadUnit
    from closeout.dialects.protocol import Dialect, HistoryView
    from closeout.errors import CloseoutError, ToolDefinitionError, ToolError
    from closeout.journal.stream import StreamHandler
    from closeout.journal.task_log import TaskLog
    from closeout.messages import (
        Capabilities,
        Delta,
        Message,
        ModelReply,
        ModelRequest,
        Reading,
        Repair,
        Step,
        ToolCall,
        ToolPolicy,
        ToolSpec,
        Usage,
    )
    from closeout.models.anthropic import AnthropicClient
    from closeout.models.base import BaseClient, ErrorBox, ResponseBox
    from closeout.models.openai import OpenAIClient
    from closeout.parsing.forms import ToolCallsRead, read_tool_calls
    from closeout.parsing.json_text import repair_json
    from closeout.parsing.react import CotAgentOutputParser
    from closeout.parsing.readers import Reader, ReadEvent
    from closeout.parsing.salvage import salvage
    from closeout.repair.arguments import repair_arguments
    from closeout.results.encoding import Encoding, decode, encode, register_encoding
    from closeout.results.forms import CacheOptimizedOutput
    from closeout.results.telemetry import TelemetryCollector
    from closeout.results.tokens import count_tokens
    from closeout.results.tool_output import ResponseFormat, ToolOutput, ToolTelemetry, format_observation
    from closeout.results.wrapper import UnifiedToolWrapper
    from closeout.run.orchestrator import Orchestrator
    from closeout.run.result import RunResult
    from closeout.run.runners import (
        AppRunner,
        BaseAgentRunner,
        CotAgentRunner,
        CotChatAgentRunner,
        CotCompletionAgentRunner,
        FunctionCallAgentRunner,
    )
    from closeout.run.waiting import Decision, PendingDecision
    from closeout.tools.context import RunContext
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
    "AnswerContract",
    "AnswerGenerator",
    "AnthropicClient",
    "AppRunner",
    "BaseAgentRunner",
    "BaseClient",
    "Boxed",
    "CacheOptimizedOutput",
    "Capabilities",
    "Choice",
    "CloseoutError",
    "Config",
    "ContextPolicy",
    "ContextState",
    "ContractReading",
    "CotAgentOutputParser",
    "CotAgentRunner",
    "CotChatAgentRunner",
    "CotCompletionAgentRunner",
    "Decision",
    "Delta",
    "Dialect",
    "Encoding",
    "ErrorBox",
    "Eviction",
    "EvictionPolicy",
    "FunctionCallAgentRunner",
    "HistoryView",
    "Json",
    "Message",
    "ModelReply",
    "ModelRequest",
    "Number",
    "OneOf",
    "OpenAIClient",
    "Orchestrator",
    "OutputFormatter",
    "PendingDecision",
    "ReadEvent",
    "Reader",
    "Reading",
    "Repair",
    "ResponseBox",
    "ResponseFormat",
    "RunContext",
    "RunResult",
    "Step",
    "StreamHandler",
    "Tagged",
    "TaskLog",
    "TelemetryCollector",
    "Text",
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
    "register_encoding",
    "repair_arguments",
    "repair_json",
    "salvage",
    "tool",
]

# Name → the module it lives in.
_HOMES = {
    "DEMO_SCRAPE_MAX_LENGTH": "tools.executor",
    "FORMAT_ERROR_MESSAGE": "answers.formatter",
    "TOOL_RESULT_MAX_LENGTH": "answers.formatter",
    "Agent": "agent",
    "AgentScratchpadUnit": "dialects.cot",
    "AnswerContract": "answers.reading",
    "AnswerGenerator": "answers.generator",
    "AnthropicClient": "models.anthropic",
    "AppRunner": "run.runners",
    "BaseAgentRunner": "run.runners",
    "BaseClient": "models.base",
    "Boxed": "answers.contracts",
    "CacheOptimizedOutput": "results.forms",
    "Capabilities": "messages",
    "Choice": "answers.contracts",
    "CloseoutError": "errors",
    "Config": "config",
    "ContextPolicy": "context.policy",
    "ContextState": "context.policy",
    "ContractReading": "answers.reading",
    "CotAgentOutputParser": "parsing.react",
    "CotAgentRunner": "run.runners",
    "CotChatAgentRunner": "run.runners",
    "CotCompletionAgentRunner": "run.runners",
    "Decision": "run.waiting",
    "Delta": "messages",
    "Dialect": "dialects.protocol",
    "Encoding": "results.encoding",
    "ErrorBox": "models.base",
    "Eviction": "context.policy",
    "EvictionPolicy": "context.policy",
    "FunctionCallAgentRunner": "run.runners",
    "HistoryView": "dialects.protocol",
    "Json": "answers.contracts",
    "Message": "messages",
    "ModelReply": "messages",
    "ModelRequest": "messages",
    "Number": "answers.contracts",
    "OneOf": "answers.contracts",
    "OpenAIClient": "models.openai",
    "Orchestrator": "run.orchestrator",
    "OutputFormatter": "answers.formatter",
    "PendingDecision": "run.waiting",
    "ReadEvent": "parsing.readers",
    "Reader": "parsing.readers",
    "Reading": "messages",
    "Repair": "messages",
    "ResponseBox": "models.base",
    "ResponseFormat": "results.tool_output",
    "RunContext": "tools.context",
    "RunResult": "run.result",
    "Step": "messages",
    "StreamHandler": "journal.stream",
    "Tagged": "answers.contracts",
    "TaskLog": "journal.task_log",
    "TelemetryCollector": "results.telemetry",
    "Text": "answers.contracts",
    "Tool": "tools.tool",
    "ToolCall": "messages",
    "ToolCallsRead": "parsing.forms",
    "ToolDefinitionError": "errors",
    "ToolError": "errors",
    "ToolExecutor": "tools.executor",
    "ToolManager": "tools.manager",
    "ToolOutput": "results.tool_output",
    "ToolPolicy": "messages",
    "ToolSpec": "messages",
    "ToolTelemetry": "results.tool_output",
    "UnifiedToolWrapper": "results.wrapper",
    "Usage": "messages",
    "Yaml": "answers.contracts",
    "count_tokens": "results.tokens",
    "decode": "results.encoding",
    "encode": "results.encoding",
    "extract_boxed": "answers.boxed",
    "format_observation": "results.tool_output",
    "grade": "answers.grading",
    "load_config": "config",
    "read_tool_calls": "parsing.forms",
    "register_encoding": "results.encoding",
    "repair_arguments": "repair.arguments",
    "repair_json": "parsing.json_text",
    "salvage": "parsing.salvage",
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
