"""Closeout: a runtime for tool-using LLM agents that finish.

from closeout import Agent, tool

Every public name is here, and each is loaded when it is first used: `import closeout` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from closeout.version import VERSION

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.answers.boxed import extract_boxed
    from closeout.answers.contracts import Boxed, Choice, Json, Number, OneOf, Tagged, Text, Yaml
    from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, TOOL_RESULT_MAX_LENGTH, OutputFormatter
    from closeout.answers.generator import AnswerGenerator
    from closeout.answers.grading import grade, judge
    from closeout.answers.reading import AnswerContract, Candidate, ContractReading
    from closeout.answers.user_checks import Check, CheckedCall, CheckedRun
    from closeout.compat.runners import (
        AppRunner,
        AssistantPromptMessage,
        BaseAgentRunner,
        CotAgentRunner,
        CotChatAgentRunner,
        CotCompletionAgentRunner,
        FunctionCallAgentRunner,
        SystemPromptMessage,
        UserPromptMessage,
    )
    from closeout.compat.wrapper import UnifiedToolWrapper
    from closeout.config import Config, load_config
    from closeout.context.policy import ContextPolicy, ContextState, Eviction, EvictionPolicy
    from closeout.dialects.cot import AgentScratchpadUnit
    from closeout.dialects.protocol import ConstrainedDialect, Dialect, HistoryView
    from closeout.errors import (
        CloseoutError,
        ConfigError,
        JournalError,
        McpServerUnavailable,
        ModelError,
        ResumeRefused,
        RunExists,
        RunNotFound,
        ToolDefinitionError,
        ToolError,
        UsageError,
    )
    from closeout.file_values import File
    from closeout.journal.events import (
        AnswerSeen,
        Event,
        FlowDecided,
        ModelReplied,
        Noted,
        Repaired,
        RunEnded,
        RunStarted,
        ToolFinished,
        ToolStarted,
        TurnAccepted,
        TurnRolledBack,
    )
    from closeout.journal.stream_handler import StreamHandler
    from closeout.journal.subscribers import Progress
    from closeout.journal.task_log import TaskLog
    from closeout.journal.usage_totals import UsageTotal, usage_totals
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
    from closeout.models.fallback import Fallback
    from closeout.models.openai import OpenAIClient
    from closeout.parsing.forms import ToolCallsRead, read_tool_calls
    from closeout.parsing.json_text import repair_json
    from closeout.parsing.react import CotAgentOutputParser
    from closeout.parsing.readers import Reader, ReadEvent
    from closeout.parsing.salvage import salvage
    from closeout.repair.argument_repair import repair_arguments
    from closeout.results.encoding import Encoding, decode, encode, register_encoding
    from closeout.results.output_forms import CacheOptimizedOutput
    from closeout.results.telemetry import TelemetryCollector
    from closeout.results.tokens import count_tokens
    from closeout.results.tool_output import ResponseFormat, ToolOutput, ToolTelemetry, format_observation
    from closeout.run.conversation import Session
    from closeout.run.event_stream import RunStream
    from closeout.run.handoff import Handoff
    from closeout.run.made_deps import ClientRequest
    from closeout.run.many import ManyRuns, MapProgress
    from closeout.run.orchestrator import Orchestrator
    from closeout.run.personal_data import PersonalData, delete_data, export_data, find_data
    from closeout.run.result import RunResult
    from closeout.run.strategy import AskOnce, CallFirst, Majority, ModelTurn, RequireCall, Strategy
    from closeout.run.waiting import Decision, PendingDecision
    from closeout.strategies.small_model import SmallModel
    from closeout.tools.executor import DEMO_SCRAPE_MAX_LENGTH, ToolExecutor
    from closeout.tools.flow import CallLabels, Flow
    from closeout.tools.manager import ToolManager
    from closeout.tools.run_context import RunContext
    from closeout.tools.secrets import Secret
    from closeout.tools.tool import Tool, tool

__version__ = VERSION

__all__ = [
    "DEMO_SCRAPE_MAX_LENGTH",
    "FORMAT_ERROR_MESSAGE",
    "TOOL_RESULT_MAX_LENGTH",
    "Agent",
    "AgentScratchpadUnit",
    "AnswerContract",
    "AnswerGenerator",
    "AnswerSeen",
    "AnthropicClient",
    "AppRunner",
    "AskOnce",
    "AssistantPromptMessage",
    "BaseAgentRunner",
    "BaseClient",
    "Boxed",
    "CacheOptimizedOutput",
    "CallFirst",
    "CallLabels",
    "Candidate",
    "Capabilities",
    "Check",
    "CheckedCall",
    "CheckedRun",
    "Choice",
    "ClientRequest",
    "CloseoutError",
    "Config",
    "ConfigError",
    "ConstrainedDialect",
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
    "Event",
    "Eviction",
    "EvictionPolicy",
    "Fallback",
    "File",
    "Flow",
    "FlowDecided",
    "FunctionCallAgentRunner",
    "Handoff",
    "HistoryView",
    "JournalError",
    "Json",
    "Majority",
    "ManyRuns",
    "MapProgress",
    "McpServerUnavailable",
    "Message",
    "ModelError",
    "ModelReplied",
    "ModelReply",
    "ModelRequest",
    "ModelTurn",
    "Noted",
    "Number",
    "OneOf",
    "OpenAIClient",
    "Orchestrator",
    "OutputFormatter",
    "PendingDecision",
    "PersonalData",
    "Progress",
    "ReadEvent",
    "Reader",
    "Reading",
    "Repair",
    "Repaired",
    "RequireCall",
    "ResponseBox",
    "ResponseFormat",
    "ResumeRefused",
    "RunContext",
    "RunEnded",
    "RunExists",
    "RunNotFound",
    "RunResult",
    "RunStarted",
    "RunStream",
    "Secret",
    "Session",
    "SmallModel",
    "Step",
    "Strategy",
    "StreamHandler",
    "SystemPromptMessage",
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
    "ToolFinished",
    "ToolManager",
    "ToolOutput",
    "ToolPolicy",
    "ToolSpec",
    "ToolStarted",
    "ToolTelemetry",
    "TurnAccepted",
    "TurnRolledBack",
    "UnifiedToolWrapper",
    "Usage",
    "UsageError",
    "UsageTotal",
    "UserPromptMessage",
    "Yaml",
    "count_tokens",
    "decode",
    "delete_data",
    "encode",
    "export_data",
    "extract_boxed",
    "find_data",
    "format_observation",
    "grade",
    "judge",
    "load_config",
    "read_tool_calls",
    "register_encoding",
    "repair_arguments",
    "repair_json",
    "salvage",
    "tool",
    "usage_totals",
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
    "AnswerSeen": "journal.events",
    "AnthropicClient": "models.anthropic",
    "AppRunner": "compat.runners",
    "AskOnce": "run.strategy",
    "AssistantPromptMessage": "compat.runners",
    "BaseAgentRunner": "compat.runners",
    "BaseClient": "models.base",
    "Fallback": "models.fallback",
    "File": "file_values",
    "Flow": "tools.flow",
    "FlowDecided": "journal.events",
    "Boxed": "answers.contracts",
    "CacheOptimizedOutput": "results.output_forms",
    "CallFirst": "run.strategy",
    "CallLabels": "tools.flow",
    "Candidate": "answers.reading",
    "Capabilities": "messages",
    "Check": "answers.user_checks",
    "CheckedCall": "answers.user_checks",
    "CheckedRun": "answers.user_checks",
    "Choice": "answers.contracts",
    "ClientRequest": "run.made_deps",
    "CloseoutError": "errors",
    "Config": "config",
    "ConfigError": "errors",
    "ConstrainedDialect": "dialects.protocol",
    "ContextPolicy": "context.policy",
    "ContextState": "context.policy",
    "ContractReading": "answers.reading",
    "CotAgentOutputParser": "parsing.react",
    "CotAgentRunner": "compat.runners",
    "CotChatAgentRunner": "compat.runners",
    "CotCompletionAgentRunner": "compat.runners",
    "Decision": "run.waiting",
    "Delta": "messages",
    "Dialect": "dialects.protocol",
    "Encoding": "results.encoding",
    "ErrorBox": "models.base",
    "Event": "journal.events",
    "Eviction": "context.policy",
    "EvictionPolicy": "context.policy",
    "FunctionCallAgentRunner": "compat.runners",
    "Handoff": "run.handoff",
    "HistoryView": "dialects.protocol",
    "JournalError": "errors",
    "Json": "answers.contracts",
    "Majority": "run.strategy",
    "ManyRuns": "run.many",
    "MapProgress": "run.many",
    "McpServerUnavailable": "errors",
    "Message": "messages",
    "ModelError": "errors",
    "ModelReplied": "journal.events",
    "ModelReply": "messages",
    "ModelRequest": "messages",
    "ModelTurn": "run.strategy",
    "Noted": "journal.events",
    "Number": "answers.contracts",
    "OneOf": "answers.contracts",
    "OpenAIClient": "models.openai",
    "Orchestrator": "run.orchestrator",
    "OutputFormatter": "answers.formatter",
    "PendingDecision": "run.waiting",
    "PersonalData": "run.personal_data",
    "Progress": "journal.subscribers",
    "ReadEvent": "parsing.readers",
    "Reader": "parsing.readers",
    "Reading": "messages",
    "Repair": "messages",
    "Repaired": "journal.events",
    "RequireCall": "run.strategy",
    "ResponseBox": "models.base",
    "ResponseFormat": "results.tool_output",
    "ResumeRefused": "errors",
    "RunContext": "tools.run_context",
    "Secret": "tools.secrets",
    "RunEnded": "journal.events",
    "RunExists": "errors",
    "RunNotFound": "errors",
    "RunResult": "run.result",
    "RunStarted": "journal.events",
    "RunStream": "run.event_stream",
    "Session": "run.conversation",
    "SmallModel": "strategies.small_model",
    "Step": "messages",
    "Strategy": "run.strategy",
    "StreamHandler": "journal.stream_handler",
    "SystemPromptMessage": "compat.runners",
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
    "ToolFinished": "journal.events",
    "ToolManager": "tools.manager",
    "ToolOutput": "results.tool_output",
    "ToolPolicy": "messages",
    "ToolSpec": "messages",
    "ToolStarted": "journal.events",
    "ToolTelemetry": "results.tool_output",
    "TurnAccepted": "journal.events",
    "TurnRolledBack": "journal.events",
    "UnifiedToolWrapper": "compat.wrapper",
    "Usage": "messages",
    "UsageError": "errors",
    "UsageTotal": "journal.usage_totals",
    "UserPromptMessage": "compat.runners",
    "Yaml": "answers.contracts",
    "count_tokens": "results.tokens",
    "decode": "results.encoding",
    "delete_data": "run.personal_data",
    "export_data": "run.personal_data",
    "find_data": "run.personal_data",
    "encode": "results.encoding",
    "extract_boxed": "answers.boxed",
    "format_observation": "results.tool_output",
    "grade": "answers.grading",
    "judge": "answers.grading",
    "load_config": "config",
    "read_tool_calls": "parsing.forms",
    "register_encoding": "results.encoding",
    "repair_arguments": "repair.argument_repair",
    "repair_json": "parsing.json_text",
    "salvage": "parsing.salvage",
    "tool": "tools.tool",
    "usage_totals": "journal.usage_totals",
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
