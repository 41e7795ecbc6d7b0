"""Closeout: a runtime for tool-using LLM agents that finish.

from closeout import Agent, tool

Every public name is here, and each is loaded when it is first used: `import closeout` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeout.lazy_names import lazy_names
from closeout.version import VERSION

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.answers.boxed import extract_boxed
    from closeout.answers.citations import Citation, Cited, Claim, Quote, Report, cited
    from closeout.answers.contracts import Boxed, Choice, Json, Number, OneOf, Tagged, Text, Yaml
    from closeout.answers.dialogue import generate_agent_summarize_prompt
    from closeout.answers.experience import (
        FAILURE_SUMMARY_ASSISTANT_PREFIX,
        FAILURE_SUMMARY_PROMPT,
        extract_failure_experience_summary,
    )
    from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, TOOL_RESULT_MAX_LENGTH, OutputFormatter
    from closeout.answers.grading import grade, judge
    from closeout.answers.reading import AnswerContract, Candidate, ContractReading
    from closeout.answers.user_checks import Check, CheckedCall, CheckedRun
    from closeout.compat.answer_generator import AnswerGenerator
    from closeout.compat.main_agent import Orchestrator
    from closeout.compat.runners import (
        AppRunner,
        AssistantPromptMessage,
        BaseAgentRunner,
        CotAgentRunner,
        CotChatAgentRunner,
        CotCompletionAgentRunner,
        FunctionCallAgentRunner,
        PromptMessage,
        SystemPromptMessage,
        TextPromptMessageContent,
        UserPromptMessage,
    )
    from closeout.compat.stream_handler import StreamHandler
    from closeout.compat.task_log import TaskLog
    from closeout.compat.tool_executor import DEMO_SCRAPE_MAX_LENGTH, ToolExecutor
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
    from closeout.evaluate.evaluation import evaluate
    from closeout.file_values import File
    from closeout.fleet.announcing import Webhook
    from closeout.fleet.legs import Leg
    from closeout.fleet.made_deps import ClientRequest
    from closeout.fleet.many import ManyRuns, MapProgress
    from closeout.fleet.personal_data import PersonalData, delete_data, export_data, find_data
    from closeout.journal.events import (
        AnswerSeen,
        CallDecided,
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
    from closeout.journal.subscribers import Progress
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
    from closeout.run.middleware.chain import AgentPlace, Calling, Middleware, Sending
    from closeout.run.result import RunResult
    from closeout.run.strategy import AskOnce, CallFirst, Majority, ModelTurn, RequireCall, Strategy
    from closeout.run.waits.decisions import Decision, PendingDecision
    from closeout.server.asgi import AgentApp
    from closeout.strategies.small_model import SmallModel
    from closeout.tools.flow import CallLabels, Flow
    from closeout.tools.manager import ToolManager
    from closeout.tools.run_context import RunContext
    from closeout.tools.secrets import Secret
    from closeout.tools.tool import Tool, tool

__version__ = VERSION

__all__ = [
    "DEMO_SCRAPE_MAX_LENGTH", "FAILURE_SUMMARY_ASSISTANT_PREFIX", "FAILURE_SUMMARY_PROMPT", "FORMAT_ERROR_MESSAGE",
    "TOOL_RESULT_MAX_LENGTH", "Agent", "AgentApp", "AgentPlace", "AgentScratchpadUnit", "AnswerContract",
    "AnswerGenerator", "AnswerSeen", "AnthropicClient", "AppRunner", "AskOnce", "AssistantPromptMessage",
    "BaseAgentRunner", "BaseClient", "Boxed", "CacheOptimizedOutput", "CallDecided", "CallFirst", "CallLabels",
    "Calling", "Candidate", "Capabilities", "Check", "CheckedCall", "CheckedRun", "Choice", "Citation", "Cited",
    "Claim", "ClientRequest", "CloseoutError", "Config", "ConfigError", "ConstrainedDialect", "ContextPolicy",
    "ContextState", "ContractReading", "CotAgentOutputParser", "CotAgentRunner", "CotChatAgentRunner",
    "CotCompletionAgentRunner", "Decision", "Delta", "Dialect", "Encoding", "ErrorBox", "Event", "Eviction",
    "EvictionPolicy", "Fallback", "File", "Flow", "FlowDecided", "FunctionCallAgentRunner", "Handoff", "HistoryView",
    "JournalError", "Json", "Leg", "Majority", "ManyRuns", "MapProgress", "McpServerUnavailable", "Message",
    "Middleware", "ModelError", "ModelReplied", "ModelReply", "ModelRequest", "ModelTurn", "Noted", "Number", "OneOf",
    "OpenAIClient", "Orchestrator", "OutputFormatter", "PendingDecision", "PersonalData", "Progress", "PromptMessage",
    "Quote", "ReadEvent", "Reader", "Reading", "Repair", "Repaired", "Report", "RequireCall", "ResponseBox",
    "ResponseFormat", "ResumeRefused", "RunContext", "RunEnded", "RunExists", "RunNotFound", "RunResult",
    "RunStarted", "RunStream", "Secret", "Sending", "Session", "SmallModel", "Step", "Strategy", "StreamHandler",
    "SystemPromptMessage", "Tagged", "TaskLog", "TelemetryCollector", "Text", "TextPromptMessageContent", "Tool",
    "ToolCall", "ToolCallsRead", "ToolDefinitionError", "ToolError", "ToolExecutor", "ToolFinished", "ToolManager",
    "ToolOutput", "ToolPolicy", "ToolSpec", "ToolStarted", "ToolTelemetry", "TurnAccepted", "TurnRolledBack",
    "UnifiedToolWrapper", "Usage", "UsageError", "UsageTotal", "UserPromptMessage", "Webhook", "Yaml", "cited",
    "count_tokens", "decode", "delete_data", "encode", "evaluate", "export_data", "extract_boxed",
    "extract_failure_experience_summary", "find_data", "format_observation", "generate_agent_summarize_prompt",
    "grade", "judge", "load_config", "read_tool_calls", "register_encoding", "repair_arguments", "repair_json",
    "salvage", "tool", "usage_totals",
]  # fmt: skip

# Module → its public names, which `__getattr__` loads.
_HOMES = {
    "agent": "Agent",
    "answers.boxed": "extract_boxed",
    "answers.citations": "Citation Cited Claim Quote Report cited",
    "answers.contracts": "Boxed Choice Json Number OneOf Tagged Text Yaml",
    "answers.dialogue": "generate_agent_summarize_prompt",
    "answers.experience": "FAILURE_SUMMARY_ASSISTANT_PREFIX FAILURE_SUMMARY_PROMPT extract_failure_experience_summary",
    "answers.formatter": "FORMAT_ERROR_MESSAGE TOOL_RESULT_MAX_LENGTH OutputFormatter",
    "compat.answer_generator": "AnswerGenerator",
    "answers.grading": "grade judge",
    "answers.reading": "AnswerContract Candidate ContractReading",
    "answers.user_checks": "Check CheckedCall CheckedRun",
    "compat.main_agent": "Orchestrator",
    "compat.runners": (
        "AppRunner AssistantPromptMessage BaseAgentRunner CotAgentRunner CotChatAgentRunner "
        "CotCompletionAgentRunner FunctionCallAgentRunner PromptMessage SystemPromptMessage "
        "TextPromptMessageContent UserPromptMessage"
    ),
    "compat.wrapper": "UnifiedToolWrapper",
    "config": "Config load_config",
    "context.policy": "ContextPolicy ContextState Eviction EvictionPolicy",
    "dialects.cot": "AgentScratchpadUnit",
    "dialects.protocol": "ConstrainedDialect Dialect HistoryView",
    "errors": (
        "CloseoutError ConfigError JournalError McpServerUnavailable ModelError ResumeRefused RunExists "
        "RunNotFound ToolDefinitionError ToolError UsageError"
    ),
    "evaluate": "evaluate",
    "file_values": "File",
    "journal.events": (
        "AnswerSeen CallDecided Event FlowDecided ModelReplied Noted Repaired RunEnded RunStarted ToolFinished "
        "ToolStarted TurnAccepted TurnRolledBack"
    ),
    "compat.stream_handler": "StreamHandler",
    "journal.subscribers": "Progress",
    "compat.task_log": "TaskLog",
    "journal.usage_totals": "UsageTotal usage_totals",
    "messages": (
        "Capabilities Delta Message ModelReply ModelRequest Reading Repair Step ToolCall ToolPolicy ToolSpec Usage"
    ),
    "models.anthropic": "AnthropicClient",
    "models.base": "BaseClient ErrorBox ResponseBox",
    "models.fallback": "Fallback",
    "models.openai": "OpenAIClient",
    "parsing.forms": "ToolCallsRead read_tool_calls",
    "parsing.json_text": "repair_json",
    "parsing.react": "CotAgentOutputParser",
    "parsing.readers": "ReadEvent Reader",
    "parsing.salvage": "salvage",
    "repair.argument_repair": "repair_arguments",
    "results.encoding": "Encoding decode encode register_encoding",
    "results.output_forms": "CacheOptimizedOutput",
    "results.telemetry": "TelemetryCollector",
    "results.tokens": "count_tokens",
    "results.tool_output": "ResponseFormat ToolOutput ToolTelemetry format_observation",
    "run.conversation": "Session",
    "run.event_stream": "RunStream",
    "run.handoff": "Handoff",
    "fleet.announcing": "Webhook",
    "fleet.made_deps": "ClientRequest",
    "fleet.legs": "Leg",
    "fleet.many": "ManyRuns MapProgress",
    "fleet.personal_data": "PersonalData delete_data export_data find_data",
    "run.middleware.chain": "AgentPlace Calling Middleware Sending",
    "run.result": "RunResult",
    "run.strategy": "AskOnce CallFirst Majority ModelTurn RequireCall Strategy",
    "run.waits.decisions": "Decision PendingDecision",
    "server.asgi": "AgentApp",
    "strategies.small_model": "SmallModel",
    "compat.tool_executor": "DEMO_SCRAPE_MAX_LENGTH ToolExecutor",
    "tools.flow": "CallLabels Flow",
    "tools.manager": "ToolManager",
    "tools.run_context": "RunContext",
    "tools.secrets": "Secret",
    "tools.tool": "Tool tool",
}


# Former name → its name now and the version that no longer has the old one (docs/versions.md).
_RENAMED: dict[str, tuple[str, str]] = {}

__getattr__ = lazy_names(__name__, {module: names.split() for module, names in _HOMES.items()}, _RENAMED)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
