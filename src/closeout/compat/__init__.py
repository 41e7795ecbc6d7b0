"""The seeds' names, shapes and hooks over these packages, and an index of their vocabulary.

What users override is called where a run was passed it, and nowhere else. `VOCABULARY` has the public names of each
seed in the order of its sections; `docs/seeds` says what each is here.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["VOCABULARY"]

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
