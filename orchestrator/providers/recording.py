"""Recorded conversations and their file formats.

Two kinds of file are read. In JSON lines each line is a conversation: an object with `messages` and, as far as
recorded, `id`, `model`, `tools`, `turns`, `tool_seconds`, `tools_offered_by_turn` and `tools_added_at_message`. Any
other file is one JSON value: such an object, or a list of OpenAI chat messages. `recorded_run` splits conversations
into runs; `replay` plays them and exports the names of all of these modules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestratorError
from orchestrator.files.bounded import read_file, read_lines
from orchestrator.llm.message import NO_USAGE, Message, Usage
from orchestrator.providers.member import (
    MalformedConversation,
    check_text,
    json_type,
    number_in,
    object_in,
    objects_in,
    token_count,
)

INDEX_FILE = "index.jsonl"
"""A list of the conversations in a folder; it contains none itself."""


class ReplayError(OrchestratorError):
    """A recording cannot be read. The message is one sentence that starts with the file and the line."""

    def __init__(self, problem: str, *, file: str, line: int | None = None) -> None:
        self.file = file
        self.line = line
        super().__init__(f"{file}{f', line {line}' if line else ''}: {problem}")


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """The recorded data of one reply in addition to its message. `latency` is seconds."""

    finish_reason: str | None = None
    usage: Usage = NO_USAGE
    latency: float = 0.0


NO_TURN = RecordedTurn()


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """One recorded conversation."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Function tools in OpenAI form, every tool that was ever offered."""
    model: str | None = None
    turns: Mapping[int, RecordedTurn] = field(default_factory=dict)
    """Index of an assistant message → the recorded data of that reply."""
    tool_seconds: Mapping[str, float] = field(default_factory=dict)
    """Call id → seconds of its tool. Ids repeat: use this only for pacing, never to identify results."""
    offered: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Message index → names of the tools offered from that message, where the offer changed."""
    file: str = ""

    def turn(self, index: int) -> RecordedTurn:
        """Return the recorded data of the reply at this message index, possibly empty."""
        return self.turns.get(index, NO_TURN)

    def tools_at(self, index: int) -> tuple[Mapping[str, Any], ...]:
        """Return the tools offered for the reply at this message index: all, unless recorded otherwise."""
        changes = [change for change in self.offered if change <= index]
        if not changes:
            return self.tools
        known = {tool_name(tool): tool for tool in self.tools}
        return tuple(known[name] for name in self.offered[max(changes)] if name in known)


def load(path: str | Path) -> Iterator[ProviderRecord]:
    """Yield the conversations of a file or of a folder's `*.jsonl`. Raises ReplayError at a bad one."""
    for found in scan(path):
        if isinstance(found, ReplayError):
            raise found
        yield found


def scan(path: str | Path) -> Iterator[ProviderRecord | ReplayError]:
    """Do the same as `load`, but yield the error of a bad conversation and continue with the next."""
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    files = [file for file in files if file.name != INDEX_FILE]
    if not files:
        yield ReplayError("no conversations found (*.jsonl, without the index)", file=str(path))
    for file in files:
        yield from _scan_lines(file) if file.suffix == ".jsonl" else _scan_whole(file)


def _scan_lines(file: Path) -> Iterator[ProviderRecord | ReplayError]:
    try:
        for number, line in enumerate(read_lines(file), 1):
            if line.strip():
                yield _parsed(line, file, number)
    except OSError as error:
        yield ReplayError(f"cannot be read ({error.strerror})", file=str(file))


def _scan_whole(file: Path) -> Iterator[ProviderRecord | ReplayError]:
    try:
        yield _parsed(read_file(file), file, None)
    except OSError as error:
        yield ReplayError(f"cannot be read ({error.strerror})", file=str(file))


def _parsed(text: bytes, file: Path, line: int | None) -> ProviderRecord | ReplayError:
    """Return the conversation of one JSON text, or its fault."""
    try:
        raw = json.loads(text.decode())
        return record_from(raw, name=file.stem if line is None else f"{file.stem}-{line}", file=file.name)
    except UnicodeDecodeError:
        return ReplayError("is not UTF-8 text", file=str(file), line=line)
    except json.JSONDecodeError as error:
        return ReplayError(f"malformed JSON ({error.msg} at column {error.colno})", file=str(file), line=line)
    except RecursionError:
        return ReplayError("is nested too deeply", file=str(file), line=line)
    except ValueError as error:
        return ReplayError(str(error), file=str(file), line=line)


def record_from(raw: object, *, name: str = "conversation", file: str = "") -> ProviderRecord:
    """Return the conversation of parsed JSON; `name` is its id if it has none. Raises MalformedConversation."""
    if isinstance(raw, list):
        raw = {"messages": raw}
    if not isinstance(raw, Mapping):
        raise MalformedConversation(
            f"a conversation is an object or a list of messages, not {json_type(raw)}"
        )
    if not isinstance(raw.get("messages"), list) or not raw["messages"]:
        raise MalformedConversation("member 'messages' is missing or empty")
    check_text(raw, "model")
    seconds = object_in(raw, "tool_seconds")
    for call_id in seconds:
        number_in(seconds, call_id)
    tools = tuple(tool for tool in objects_in(raw, "tools") if _is_function(tool))
    return ProviderRecord(
        id=str(raw.get("id") or name),
        messages=tuple(_message(one, index) for index, one in enumerate(raw["messages"])),
        tools=tools,
        model=raw.get("model"),
        turns=dict(_turn(one) for one in objects_in(raw, "turns")),
        tool_seconds=seconds,
        offered=_offers(raw, tools),
        file=file,
    )


def _is_function(tool: Mapping[str, Any]) -> bool:
    """Return whether it is a function tool; a tool that the provider runs has no name. Raises MalformedConversation."""
    object_in(object_in(tool, "function") or tool, "parameters")
    return tool_name(tool) != ""


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool in OpenAI form; empty if it has none."""
    return str((object_in(tool, "function") or tool).get("name") or "")


def _message(raw: object, index: int) -> Message:
    """Read message `index`. Raises MalformedConversation with the name of the invalid member."""
    try:
        if not isinstance(raw, Mapping):
            raise MalformedConversation(f"it is {json_type(raw)}, not an object")
        if isinstance(raw.get("content"), list):
            objects_in(raw, "content")
        else:
            check_text(raw, "content")
        check_text(raw, "tool_call_id")
        for call in objects_in(raw, "tool_calls"):
            check_text(call, "id")
            check_text(object_in(call, "function"), "name", needed=True)
            check_text(object_in(call, "function"), "arguments")
        return Message.from_openai(raw)
    except ValueError as error:
        raise MalformedConversation(f"message {index}: {error}") from error


def _turn(raw: Mapping[str, Any]) -> tuple[int, RecordedTurn]:
    """Read one entry of `turns`: the message index and the recorded data of that reply."""
    check_text(raw, "finish_reason")
    index = raw.get("message")
    if not isinstance(index, int):
        raise MalformedConversation("member 'turns' has an entry without message index")
    usage = usage_from(object_in(raw, "usage"), number_in(raw, "cost_usd"))
    return index, RecordedTurn(raw.get("finish_reason"), usage, number_in(raw, "latency_s") or 0.0)


def usage_from(raw: Mapping[str, Any], cost: float | None = None) -> Usage:
    """Read the usage of a reply in any provider's form; missing numbers count as 0.

    OpenAI's input tokens include the cached ones, in both its forms. Anthropic reports them separately from the
    input.
    """
    into = object_in(raw, "prompt_tokens_details") or object_in(raw, "input_tokens_details")
    out = object_in(raw, "completion_tokens_details") or object_in(raw, "output_tokens_details")
    beside = _first(raw, "cache_read_input_tokens", "input_tokens_cache_read")
    written = _first(raw, "cache_creation_input_tokens", "input_tokens_cache_write")
    return Usage(
        _first(raw, "prompt_tokens") or _first(raw, "input_tokens") + beside + written,
        _first(raw, "completion_tokens", "output_tokens"),
        _first(into, "cached_tokens")
        or beside
        or _first(raw, "prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens"),
        _first(out, "reasoning_tokens") or _first(raw, "reasoning_tokens"),
        number_in(raw, "cost") if cost is None else cost,
        cache_write_tokens=written,
    )


def _first(raw: Mapping[str, Any], *members: str) -> int:
    """Return the first of these members that is a count of tokens other than 0, else 0."""
    return next((count for member in members if (count := token_count(raw.get(member)))), 0)


def _offers(raw: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return the offered tools by the message from which they apply, for both forms of recording."""
    added = _by_message(raw, "tools_added_at_message")
    late = {name for names in added.values() for name in names}
    offered = {0: [tool_name(tool) for tool in tools if tool_name(tool) not in late]} if added else {}
    for index in sorted(added):
        offered[index] = offered[max(offered)] + added[index]
    return offered | _by_message(raw, "tools_offered_by_turn")


def _by_message(raw: Mapping[str, Any], member: str) -> dict[int, list[str]]:
    """Return a member that maps message indices to names of tools."""
    found = object_in(raw, member)
    if not all(index.isdecimal() and isinstance(names, list) for index, names in found.items()):
        raise MalformedConversation(f"member {member!r} does not map message indices to lists of names")
    return {int(index): [str(name) for name in names] for index, names in found.items()}
