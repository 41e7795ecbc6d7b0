"""The seeds' names, shapes and hooks over these packages, and an index of their vocabulary.

What users override is called where a run was passed it, and nowhere else. `VOCABULARY` has the public names of each
seed in the order of its sections, `SETTINGS` and `ENVIRONMENT` its settings and variables; `docs/seeds` says what each
is here.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ENVIRONMENT", "SETTINGS", "VOCABULARY"]

VOCABULARY: Mapping[str, tuple[str, ...]] = {
    "000": ("OutputFormatter", "TOOL_RESULT_MAX_LENGTH", "FORMAT_ERROR_MESSAGE"),
    "001": (
        "AppRunner",
        "BaseAgentRunner",
        "CotAgentRunner",
        "CotChatAgentRunner",
        "CotCompletionAgentRunner",
        "FunctionCallAgentRunner",
        "AgentScratchpadUnit",
        "CotAgentOutputParser",
        "PromptMessage",
        "SystemPromptMessage",
        "UserPromptMessage",
        "AssistantPromptMessage",
        "TextPromptMessageContent",
    ),
    "002": (
        "AnswerGenerator",
        "BaseClient",
        "ErrorBox",
        "ResponseBox",
        "Orchestrator",
        "TaskLog",
        "StreamHandler",
        "FAILURE_SUMMARY_PROMPT",
        "FAILURE_SUMMARY_ASSISTANT_PREFIX",
        "extract_failure_experience_summary",
        "generate_agent_summarize_prompt",
    ),
    "003": (
        "ToolOutput",
        "ResponseFormat",
        "ToolTelemetry",
        "format_observation",
        "UnifiedToolWrapper",
        "TelemetryCollector",
        "CacheOptimizedOutput",
    ),
    "004": ("ToolExecutor", "ToolManager", "DEMO_SCRAPE_MAX_LENGTH"),
}

# By the names that settings files, `-C` and CLOSEOUT_… variables have for them.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "000": ("agent.result_budget",),
    "001": ("agent.main_agent.max_turns",),
    "002": (
        "agent.context_compress_limit",
        "agent.keep_tool_result",
        "agent.retry_with_summary",
        "agent.answer_selection",
    ),
    "004": ("agent.max_consecutive_rollbacks", "agent.max_rollbacks", "agent.max_parallel_calls"),
}
ENVIRONMENT: Mapping[str, tuple[str, ...]] = {"004": ("DEMO_MODE",)}
