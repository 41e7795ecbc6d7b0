"""The seeds' names, shapes and hooks over these packages, and an index of their vocabulary.

A run calls the overridden methods of the objects that it was given, and no others. `VOCABULARY` has the public names of
each seed in the order of its sections, `HOOKS` the methods that a run calls if a subclass overrides them, `NOT_CALLED`
those that it does not, `SETTINGS` and `ENVIRONMENT` the settings and variables. `docs/seeds` has tables made from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import Any

from closeout.errors import UsageError

__all__ = ["ENVIRONMENT", "HOOKS", "NOT_CALLED", "SETTINGS", "VOCABULARY", "check_methods"]

VOCABULARY: Mapping[str, tuple[str, ...]] = {
    seed: tuple(names.split())
    for seed, names in {
        "000": "OutputFormatter TOOL_RESULT_MAX_LENGTH FORMAT_ERROR_MESSAGE",
        "001": "AppRunner BaseAgentRunner CotAgentRunner CotChatAgentRunner CotCompletionAgentRunner "
        "FunctionCallAgentRunner AgentScratchpadUnit CotAgentOutputParser PromptMessage SystemPromptMessage "
        "UserPromptMessage AssistantPromptMessage TextPromptMessageContent",
        "002": "AnswerGenerator BaseClient ErrorBox ResponseBox Orchestrator TaskLog StreamHandler "
        "FAILURE_SUMMARY_PROMPT FAILURE_SUMMARY_ASSISTANT_PREFIX extract_failure_experience_summary "
        "generate_agent_summarize_prompt",
        "003": "ToolOutput ResponseFormat ToolTelemetry format_observation UnifiedToolWrapper TelemetryCollector "
        "CacheOptimizedOutput",
        "004": "ToolExecutor ToolManager DEMO_SCRAPE_MAX_LENGTH",
    }.items()
}

# What a run calls an overridden method for.
RUN = "a run that begins"
QUESTION = "a question to `runner.run`"
REQUEST = "each request"
REPLY = "each reply"
CALL = "each call of a tool"
RESULT = "each result of a tool"
STEP = "each event that has this name"
ANSWER = "an answer, and closing"
FAILED = "an attempt without an answer"
END = "the end of a run"

HOOKS: Mapping[str, Mapping[str, str]] = {
    owner: {name: called_for for called_for, names in hooks.items() for name in names.split()}
    for owner, hooks in {
        "OutputFormatter": {
            REPLY: "_extract_boxed_content",
            RESULT: "format_tool_result_for_user",
            ANSWER: "format_final_summary_and_log",
        },
        "BaseAgentRunner": {
            QUESTION: "_init_react_state",
            RUN: "_fill_in_inputs_from_external_data_tools",
            REQUEST: "_organize_prompt_messages _organize_historic_prompt_messages",
            REPLY: "_convert_dict_to_action",
            CALL: "_handle_invoke_action",
        },
        "CotAgentRunner": {REQUEST: "_organize_instruction_prompt _organize_historic_prompt _format_assistant_message"},
        "CotChatAgentRunner": {REQUEST: "_organize_system_prompt _organize_user_query"},
        "CotAgentOutputParser": {REPLY: "feed close"},
        "AnswerGenerator": {
            REQUEST: "handle_llm_call",
            ANSWER: "generate_and_finalize_answer generate_final_answer_with_retries "
            "handle_no_context_management_fallback",
            FAILED: "handle_context_management_no_fallback generate_failure_summary",
        },
        "BaseClient": {
            REQUEST: "create_message",
            REPLY: "process_llm_response extract_tool_calls_info",
            RESULT: "update_message_history",
            END: "format_token_usage_summary",
        },
        "TaskLog": {STEP: "log_step"},
        "StreamHandler": {
            STEP: "start_workflow start_agent start_llm message end_llm tool_call show_error end_agent end_workflow "
            "update"
        },
        "TelemetryCollector": {CALL: "record _update_aggregated"},
        "ToolExecutor": {
            CALL: "fix_tool_call_arguments get_query_str_from_tool_call is_duplicate_query execute_single_tool_call "
            "record_query",
            RESULT: "post_process_tool_call_result get_scrape_result should_rollback_result "
            "is_google_search_empty_result format_tool_result_for_llm",
        },
        "ToolManager": {CALL: "execute_tool_call"},
    }.items()
}

# Plain methods that may be async.
AWAITED = frozenset(("process_llm_response", "extract_tool_calls_info"))

_RECORDED = "A run is recorded in its journal; result.messages is the conversation."
_THOUGHTS = "result.agent_thoughts holds the steps; listeners= receive them as they happen."

# Methods of the original systems that no run calls, and what to write in their place.
NOT_CALLED: Mapping[str, Mapping[str, str]] = {
    "BaseAgentRunner": {
        "_create_message": _RECORDED,
        "_save_agent_thought": _THOUGHTS,
        "create_agent_thought": _THOUGHTS,
        "save_agent_thought": _THOUGHTS,
        "organize_agent_history": "Override _organize_historic_prompt_messages.",
    },
    "CotAgentOutputParser": {"handle_react_stream_output": "Override feed and close."},
    "BaseClient": {
        "_create_message": "Override create_message or complete.",
        "ensure_summary_context": "A run shortens its conversation itself; Agent(context=…) decides how.",
        "_remove_tool_result_from_messages": "agent.keep_tool_result sets how many results stay.",
    },
    "Orchestrator": {
        "_check_duplicate_query": "Override is_duplicate_query in a ToolExecutor.",
        "_record_query": "Override record_query in a ToolExecutor.",
        "_handle_response_format_issues": "A run rolls replies back itself; agent.max_consecutive_rollbacks limits it.",
        "_save_message_history": _RECORDED,
    },
    "ToolManager": {"get_all_tool_definitions": "A model is offered the tools that the manager holds."},
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


def check_methods(kind: Any) -> None:
    """Warn of each method of a subclass that has a name in `NOT_CALLED`.

    Raises:
        UsageError: A method is async that a run does not await.
    """
    for base in getattr(kind, "__mro__", ()):
        for name in HOOKS.get(base.__name__, ()):
            own, usual = getattr(kind, name, None), getattr(base, name, None)
            if name not in AWAITED and iscoroutinefunction(own) and not iscoroutinefunction(usual):
                raise UsageError(f"{kind.__name__}.{name} must be a plain function, got an async one.")
        for name, instead in NOT_CALLED.get(base.__name__, {}).items():
            if getattr(kind, name, None) is not getattr(base, name, None):
                warnings.warn(f"{kind.__name__}.{name} is never called. {instead}", UserWarning, stacklevel=3)
