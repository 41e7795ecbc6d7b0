"""Read what a client sends as a conversation: the task and the messages before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from closeout.file_values import File
from closeout.run.waits.decisions import Decision, PendingDecision
from closeout.server.api_errors import ApiError
from closeout.server.serve.files_in import FILE_PARTS, file_of_part

__all__ = [
    "Approval",
    "Conversation",
    "approval_responses",
    "chat_conversation",
    "decisions_in",
    "response_conversation",
    "user_of",
]

MAX_USER = 128  # characters
ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
# Items of an earlier response that a client sends back: the server's own activity, which its answer has taken up.
WRITTEN = ("reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_request")
ACTIVITY = (*WRITTEN, "mcp_approval_response", "item_reference")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation whose last message, the user's, is the task."""

    task: str
    history: tuple[dict[str, Any], ...]
    files: tuple[File, ...] = ()


def chat_conversation(messages: Any) -> Conversation:
    """Read the `messages` of a Chat Completions request.

    Raises:
        ApiError: They cannot be used.
    """
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message.", param="messages")
    files: list[File] = []
    read = [_message(each, f"messages[{i}]", files) for i, each in enumerate(messages)]
    return _conversation(read, "messages", files)


def response_conversation(given: Any, earlier: Sequence[Mapping[str, Any]], instructions: Any) -> Conversation:
    """Read the `input` of a Responses request.

    Args:
        given: The input: a text, or a list of items.
        earlier: The conversation that it continues.
        instructions: The request's instructions, or None.

    Raises:
        ApiError: It cannot be used.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input must be a text or a list with at least one item.", param="input")
    if instructions is not None and not isinstance(instructions, str):
        raise ApiError(400, "instructions must be a text.", param="instructions")
    files: list[File] = []
    messages = [
        _message(item, f"input[{i}]", files)
        for i, item in enumerate(given)
        if not (isinstance(item, dict) and item.get("type") in ACTIVITY)
    ]
    first = [{"role": "system", "content": instructions}] if instructions else []
    return _conversation([*first, *map(dict, earlier), *messages], "input", files)


@dataclass(frozen=True, slots=True)
class Approval:
    """An input item of the type `mcp_approval_response`: whether a call may be made.

    Attributes:
        request: The id of the `mcp_approval_request` item.
        approve: Whether the call may be made.
        reason: Why not; the agent's model reads it.
    """

    request: str
    approve: bool
    reason: str


def approval_responses(given: Any) -> list[Approval]:
    """Return the approvals in the `input` of a Responses request; those of earlier turns do not count.

    Raises:
        ApiError: One of them is incomplete.
    """
    found = []
    for item in _new_items(given):
        if item.get("type") == "mcp_approval_response":
            request, approve, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
            if not (isinstance(request, str) and isinstance(approve, bool) and isinstance(reason, str | None)):
                text = "An mcp_approval_response must have an approval_request_id, and approve: true or false."
                raise ApiError(400, text, param="input")
            found.append(Approval(request, approve, reason or ""))
    return found


def _new_items(given: Any) -> list[dict[str, Any]]:
    """The items of an input after the last one that the agent has written: some clients send all that was said."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    written = (n for n, each in enumerate(items) if each.get("role") == "assistant" or each.get("type") in WRITTEN)
    return items[max(written, default=-1) + 1 :]


def decisions_in(
    given: Any, approvals: Sequence[Approval], pending: Mapping[str, PendingDecision]
) -> dict[str, Decision]:
    """Return the decisions that a request makes: approvals of calls, and a message that answers a question.

    Args:
        given: The request's input.
        approvals: The approvals in it.
        pending: What the run waits for, by the ids of the items that show it.

    Raises:
        ApiError: They do not match what the run waits for, or leave a part of it undecided.
    """
    made: dict[str, Decision] = {}
    for approval in approvals:
        asked = pending.get(approval.request)
        if asked is None or asked.kind != "approval":
            raise ApiError(400, f"Nothing waits for an approval with the id {approval.request:.80}.", param="input")
        verdict: Literal["approve", "deny"] = "approve" if approval.approve else "deny"
        made[asked.id] = Decision(verdict=verdict, text=approval.reason, hash=asked.hash)
    questions = [asked for asked in pending.values() if asked.kind == "question"]
    words = _words(given)
    if words and len(questions) == 1:
        made[questions[0].id] = Decision(verdict="answer", text=words, hash=questions[0].hash)
    if left := [name for name, asked in pending.items() if asked.id not in made]:
        text = (
            "The run waits for decisions. Send an mcp_approval_response for each approval, and a message that answers "
            f"the question; or use /v1/runs/ID/decisions. Left open: {', '.join(left)[:300]}."
        )
        raise ApiError(400, text, code="decision_required", param="input")
    if words and not questions:
        text = "The run continues with the approvals alone. Send the message when it has answered."
        raise ApiError(400, text, param="input")
    return made


def user_of(body: Mapping[str, Any], client: str = "") -> str:
    """Return the user that a request names, as OpenAI's clients do; `client` if it names none."""
    name = "safety_identifier" if body.get("safety_identifier") is not None else "user"
    user = body.get(name)
    if user is None:
        return client
    if not isinstance(user, str) or len(user) > MAX_USER or not user.isprintable():
        raise ApiError(400, f"{name} must be a text of at most {MAX_USER} printable characters.", param=name)
    return user.strip() or client


def _words(given: Any) -> str:
    """The user's words in an input."""
    messages = [_message(item, "input", []) for item in _new_items(given) if item.get("type", "message") == "message"]
    return "\n\n".join(message["content"] for message in messages if message["role"] == "user").strip()


def _conversation(messages: Sequence[dict[str, Any]], name: str, files: Iterable[File]) -> Conversation:
    if not messages or messages[-1]["role"] != "user":
        raise ApiError(400, f"The last message of {name} must be the user's: it is the task.", param=name)
    if not messages[-1]["content"].strip():
        raise ApiError(400, f"The last message of {name} is the task, and it is empty.", param=name)
    return Conversation(messages[-1]["content"], tuple(messages[:-1]), tuple(files))


def _message(item: Any, place: str, files: list[File]) -> dict[str, Any]:
    """Return a message with its text. Its files are added to `files`."""
    if not isinstance(item, dict):
        raise ApiError(400, f"{place} must be an object.", param=place)
    kind, role = item.get("type", "message"), item.get("role")
    if kind != "message" or role not in ROLES:
        found = role if kind == "message" else kind
        raise ApiError(
            400,
            f"{place} is {found!r:.80}, which this agent cannot take. It calls its own tools: send messages with the "
            f"roles {', '.join(ROLES)}.",
            param=place,
        )
    if item.get("tool_calls"):
        raise ApiError(400, f"{place} has tool_calls, but this agent calls its own tools.", param=place)
    return {"role": role, "content": _text(item.get("content"), place, files if role == "user" else None)}


def _text(content: Any, place: str, files: list[File] | None) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise ApiError(400, f"The content of {place} must be a text or a list of parts.", param=place)
    return "".join(_part_texts(content, place, files))


def _part_texts(parts: list[Any], place: str, files: list[File] | None) -> Iterable[str]:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in FILE_PARTS and files is not None:
            file_of_part(part, place, files)
            continue
        text = part.get("text", part.get("refusal")) if kind in TEXT_PARTS else None
        if not isinstance(text, str):
            raise ApiError(400, f"{place} has a part of the type {kind!r:.80}. Send texts and files.", param=place)
        yield text
