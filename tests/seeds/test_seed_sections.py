"""The sections of the five seeds in their order, and the tests that hold what each of them says."""

from __future__ import annotations

import re
from pathlib import Path

from closeout.compat import VOCABULARY

# A section that only introduces or repeats others has no line of its own.
SECTIONS = """
000 3.1 the constant | test_the_constants_are_the_documented_ones test_the_limit_may_be_set_for_the_process
000 4.1 _extract_boxed_content | test_extract_boxed_content_returns_the_last_box test_boxes_inside_boxes
000 4.1 boxes that are not closed | test_a_box_that_is_not_closed
000 4.1 the blacklist | test_placeholders_are_not_answers test_a_formatter_may_refuse_a_box_and_take_a_placeholder
000 4.2 format_tool_result_for_user | test_an_error_names_the_tool_and_the_server test_a_result_is_passed_through
000 4.2 neither result nor error | test_a_call_without_result_and_error_says_so
000 4.3 format_final_summary_and_log | test_the_final_summary_has_three_sections
000 4.3 no answer | test_a_text_without_an_answer_gives_the_format_error test_no_text_gives_no_answer_and_no_error
000 5 calls of the orchestrator | test_every_overridden_method_is_called
000 5 answers on the way | test_a_formatters_own_extraction_gives_the_answers_on_the_way
000 6 a subclass | test_what_replaces_the_result_before_super_is_what_the_model_reads
000 6 a subclass | test_it_can_be_extended_by_a_subclass
000 6 the threshold at run time | test_the_threshold_may_change_at_run_time_and_an_error_names_its_tool
000 7 the client's usage | test_without_a_client_the_usage_is_not_known
000 7 the client's usage | test_the_line_of_usage_that_a_hook_returns_is_in_the_record
000 8 missing names | test_missing_names_get_a_fallback_text
000 8 several boxes | test_every_box_is_found_with_its_span_and_its_standing
000 9 other forms | test_the_contract_says_what_an_answer_is
000 9 truncation by tokens | test_a_formatter_that_calls_super_keeps_the_budget_and_read_result
000 9 a summary as data | test_the_summary_is_there_as_a_record
001 1 the tree of runners | test_a_subclass_of_the_cot_runner_only_writes_the_messages
001 2.1 _organize_instruction_prompt | test_the_instruction_prompt_holds_instruction_tools_and_names
001 2.2 _organize_historic_prompt | test_the_historic_prompt
001 2.2 _organize_historic_prompt | test_text_parts_of_a_list_are_typed_and_pictures_are_left_out
001 2.3 _organize_prompt_messages | test_the_completion_form_is_one_user_message
001 2.3 a final unit | test_a_unit_is_final_without_an_action_or_with_the_final_one
001 3.1 template method | test_the_instruction_that_a_subclass_organizes_is_sent
001 3.1 template method | test_the_messages_that_a_subclass_organizes_are_sent
001 3.2 messages by their class | test_prompt_messages_have_the_class_of_their_role
001 3.3 composition | test_the_completion_form_fills_a_template_with_all_slots_in_one_pass
001 4.1 templates by configuration | test_a_settings_file_names_the_template_first_prompt
001 4.1 both layers of slots | test_the_shipped_first_prompt_is_text_with_six_slots_that_a_port_replaces
001 4.2 thoughts that are visible | test_each_step_is_a_record_of_thought_action_input_observation_and_usage
001 4.3 what a prompt must have | test_a_prompt_that_holds_a_slot_or_lacks_the_question_is_refused
002 the constructor | test_a_generator_needs_only_the_six_parameters
002 the constructor | test_retries_and_limit_are_read_from_the_configuration
002 1 handle_llm_call | test_handle_llm_call_sends_every_request_of_a_run test_what_handle_llm_call_returns_is_the_reply
002 1 ErrorBox, ResponseBox, None | test_a_client_may_return_its_reply_or_an_error_in_a_box test_an_error_box_is_shown
002 1 its failure | test_a_handle_llm_call_that_failed_is_asked_again_until_the_rollbacks_are_spent
002 1 the original history | test_a_failed_call_returns_the_empty_text_and_the_original_history
002 2 generate_failure_summary | test_a_failure_summary_is_asked_for_with_its_prompt_and_its_prefix
002 2 no summary | test_without_a_failure_summary_the_result_is_none
002 3 generate_final_answer_with_retries | test_three_tries_with_all_tool_results_kept_else_one
002 3 a failed try leaves no trace | test_the_next_try_says_what_was_wrong_and_does_not_show_the_bad_reply
002 4 handle_no_context_management_fallback | test_the_fallback_takes_the_last_answer_seen
002 5 handle_context_management_no_fallback | test_with_context_management_nothing_is_guessed
002 6 generate_and_finalize_answer | test_every_cell_of_the_decision_table test_it_unpacks_as_documented
002 the settings | test_retries_and_limit_are_read_from_the_configuration
002 the client | test_create_message_takes_its_arguments_by_position_and_extractions_may_be_two_lists
002 the client's history | test_update_message_history_is_called_once_for_each_turn_and_keeps_what_it_returned
002 the stream | test_a_run_calls_the_overridden_methods_of_a_stream_handler_in_order
002 the orchestrator | test_an_orchestrator_builds_the_agent_of_its_parts_and_logs_its_runs
002 extension | test_a_generator_decides_on_an_answer_that_the_model_gave_in_the_loop
002 lists that stay as they were | test_the_lists_passed_in_are_not_modified
002 the log | test_a_task_log_of_ones_own_logs_a_run_and_is_the_log_of_its_hooks
003 the model | test_the_fields_and_defaults_are_the_designs test_a_run_keeps_what_a_tool_returned_and_shows_its_summary
003 response formats | test_each_format_shows_what_the_design_says
003 telemetry | test_telemetry_and_metadata_reach_a_model_in_detailed_only
003 observations | test_observations_have_the_designs_texts test_observations_are_written_by_the_function_that_is_passed
003 token formats | test_the_forms_look_as_designed test_no_text_breaks_out_of_a_form
003 the wrapper | test_the_designs_example_runs test_an_exception_becomes_an_output
003 the integration sample | test_the_telemetry_of_a_wrapped_tool_is_there_after_validating_its_json
003 LangGraph | test_the_wrappers_example_runs_in_a_graph_in_every_format
003 the collector | test_a_collector_sums_many_calls_in_constant_memory
003 the collector | test_a_collector_may_keep_sums_by_tool_of_its_own
003 the report | test_reports_are_readable_and_an_empty_one_says_so
003 stable prefixes | test_a_stable_prefix_of_ones_own_is_that_of_the_whole_form
004 1 fix_tool_call_arguments | test_fixing_arguments_returns_a_copy
004 1 fix_tool_call_arguments | test_an_override_fixes_arguments_and_the_fix_is_named
004 2 get_query_str_from_tool_call | test_query_keys test_an_override_decides_which_calls_are_the_same
004 3 should_rollback_result | test_results_that_are_better_rolled_back
004 3 is_google_search_empty_result | test_empty_google_results test_an_override_decides_what_an_empty_search_is
004 4 get_scrape_result | test_scraped_text_is_cut_and_json_around_it_is_kept
004 4 post_process_tool_call_result | test_results_are_shortened_in_demo_mode_only
004 execute_single_tool_call | test_a_single_call_is_measured_and_logged test_an_override_makes_every_call_of_a_run
004 execute_single_tool_call never raises | test_a_single_call_that_fails_brings_an_error_and_does_not_raise
004 format_tool_result_for_llm | test_results_become_message_parts
004 the usage sample | test_a_manager_that_can_only_execute_is_enough_for_the_designs_methods
004 the managers | test_a_manager_of_the_original_shape_is_an_agents_tools
004 used_queries | test_recorded_queries_are_duplicates_within_their_cache
004 max_consecutive_rollbacks | test_an_executors_limit_of_rollbacks_is_the_limit_of_the_run
004 the error model | test_what_managers_report_as_failed_is_an_error_to_roll_back
004 a new tool | test_a_result_is_rolled_back_as_often_as_an_override_says_while_the_budget_lasts
"""


def test_every_section_has_its_tests() -> None:
    folder = Path(__file__).parent.parent
    known = {
        name for path in folder.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    sections = [line.split(" | ") for line in SECTIONS.strip().splitlines()]
    assert {section[:3] for section, _ in sections} == set(VOCABULARY)
    for section, tests in sections:
        assert set(tests.split()) <= known, section
