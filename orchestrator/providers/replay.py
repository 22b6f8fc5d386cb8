"""Replay recorded conversations: recorded replies of the model, and recorded results of the tools.

    for record in load("conversations.jsonl"):
        for script in split_runs(record):
            agent = Agent(ReplayLLM(script), tools=ReplayTools(script))
            ...  # run [*script.history, *script.prompt]; compare(script.expected, new messages) == []

A replayed model answers by position, not by count: the request's messages alone decide the next reply. So a repeated
request (a retry, a resumed run) gets the same reply twice.

Two kinds of file are read. In JSON lines each line is a conversation: an object with `messages` and, as far as
recorded, `id`, `model`, `tools`, `turns`, `tool_seconds`, `tools_offered_by_turn` and `tools_added_at_message`. Any
other file is one JSON value: such an object, or a list of OpenAI chat messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.files.bounded import read_file, read_lines
from orchestrator.llm.message import NO_USAGE, Message, Request, Response, ToolCall, Usage
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.providers.reading import (
    MalformedConversation,
    check_text,
    json_type,
    number_in,
    object_in,
    objects_in,
    usage_from,
)
from orchestrator.providers.scripted import shorten, stream
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import Progress, ToolContext, ToolSpec
from orchestrator.tools.tool_set import After, Around, Before, ContextFor, ReadArguments, ToolSet

# ---- files of conversations ----

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


_LEAD = 20
"""Characters shown before the first difference of two texts."""


@dataclass(frozen=True, slots=True)
class RequestDifference:
    """The first difference between a message and the recorded one."""

    index: int
    member: str
    recorded: str
    ours: str

    def __str__(self) -> str:
        return f"message {self.index}: {self.member} differs, recorded {self.recorded}, ours {self.ours}"


def differences(
    expected: Sequence[Message], actual: Sequence[Message], *, start: int = 0
) -> Iterator[RequestDifference]:
    """Yield the differences in role, content, calls, ids and argument text; `start` is the first index."""
    for offset in range(max(len(expected), len(actual))):
        index = start + offset
        if offset >= len(expected):
            yield RequestDifference(index, "message", "nothing", f"a message of {actual[offset].role}")
        elif offset >= len(actual):
            yield RequestDifference(index, "message", f"a message of {expected[offset].role}", "nothing")
        else:
            yield from _message_differences(expected[offset], actual[offset], index)


def compare(expected: Sequence[Message], actual: Sequence[Message]) -> list[str]:
    """Return the differences as sentences; an empty list if the messages are equal.

    It compares role, content, calls (name, id, argument text) and tool_call_id. It ignores names of tools on results,
    reasoning and failure marks: a recording may lack them.
    """
    return [str(difference) for difference in differences(expected, actual)]


def _message_differences(expected: Message, actual: Message, index: int) -> Iterator[RequestDifference]:
    """Yield the differences of two messages."""
    if expected is actual:
        return
    pairs: list[tuple[str, Any, Any]] = [
        ("role", expected.role, actual.role),
        ("content", _content(expected), _content(actual)),
        ("tool_call_id", expected.tool_call_id or "", actual.tool_call_id or ""),
        ("number of calls", len(expected.tool_calls), len(actual.tool_calls)),
    ]
    for position, (theirs, ours) in enumerate(zip(expected.tool_calls, actual.tool_calls, strict=False)):
        where = f"tool_calls[{position}]"
        pairs.append((f"{where}.id", theirs.id, ours.id))
        pairs.append((f"{where}.name", theirs.name, ours.name))
        pairs.append((f"{where}.arguments", theirs.arguments, ours.arguments))
    for member, recorded, mine in pairs:
        if recorded != mine:
            # Both values in short form, from a little before their first difference.
            if not (isinstance(recorded, str) and isinstance(mine, str)):
                cut_to_difference = shorten(repr(recorded)), shorten(repr(mine))
            else:
                limit = min(len(recorded), len(mine))
                parting = next((at for at in range(limit) if recorded[at] != mine[at]), limit)
                begin = max(0, parting - _LEAD)
                mark = "…" if begin else ""
                cut_to_difference = mark + shorten(repr(recorded[begin:])), mark + shorten(repr(mine[begin:]))
            yield RequestDifference(index, member, *cut_to_difference)


def _content(message: Message) -> object:
    """Return the content to compare. A result is compared as text, even if it was recorded in parts."""
    return message.text if message.role == "tool" else message.content


RESULTS_OUT_OF_ORDER = "results_out_of_order"
"""Before the end of the conversation: results that are not exactly those of the calls before, in order."""
ANSWER_NOT_FOLLOWED_BY_USER = "answer_not_followed_by_user"
"""A text answer (no calls) with anything but a user message after it."""
MESSAGE_RIGHT_AFTER_RESULT = "message_right_after_result"
"""A user or system message in place of a result."""
STARTS_WITH_ASSISTANT = "starts_with_assistant"
"""Message 0 is the assistant's. A greeting after a system message is regular: it is history."""
IRREGULARITIES = (
    RESULTS_OUT_OF_ORDER,
    ANSWER_NOT_FOLLOWED_BY_USER,
    MESSAGE_RIGHT_AFTER_RESULT,
    STARTS_WITH_ASSISTANT,
)

REPRODUCED = "reproduced"
OPEN_END = "reproduced_to_open_end"
IRREGULAR = "irregular"
UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class RunScript:
    """One run of a recorded conversation: the history, the new prompt, and the expected messages.

    `start`, `answer` and `stop` are message indices: prompt = [start:answer], expected = [answer:stop].
    """

    record: ProviderRecord
    number: int
    """Counted from 1."""
    start: int
    answer: int
    stop: int

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation before the prompt."""
        return self.record.messages[: self.start]

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The new messages of user and system."""
        return self.record.messages[self.start : self.answer]

    @property
    def expected(self) -> tuple[Message, ...]:
        """The recorded messages after the prompt, until the user's next turn."""
        return self.record.messages[self.answer : self.stop]

    @property
    def complete(self) -> bool:
        """Whether the recording continues to a text answer, which may be empty."""
        return self.answer < self.stop and is_answer(self.record.messages[self.stop - 1])


def is_answer(message: Message) -> bool:
    """Return whether this message ends a run: the assistant's, without calls."""
    return message.role == "assistant" and not message.tool_calls


def is_prompt(message: Message) -> bool:
    """Return whether this message comes from outside the run."""
    return message.role in ("user", "system", "developer")


def results_after(messages: Sequence[Message], index: int) -> tuple[Message, ...]:
    """Return the tool messages that follow message `index` without a gap."""
    stop = index + 1
    while stop < len(messages) and messages[stop].role == "tool":
        stop += 1
    return tuple(messages[index + 1 : stop])


def irregularities(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the irregularities that no loop of ours would produce, as names from IRREGULARITIES, each once.

    A conversation may stop anywhere: an incomplete set of results at the very end is an open end.
    """
    found = {_oddity(messages, index) for index in range(len(messages))}
    first = messages[0].role if messages else None
    if first == "assistant":
        found.add(STARTS_WITH_ASSISTANT)
    if first == "tool":
        found.add(RESULTS_OUT_OF_ORDER)
    return tuple(name for name in IRREGULARITIES if name in found)


def _oddity(messages: Sequence[Message], index: int) -> str | None:
    """Return the irregularity of the step from message `index` to the next, or None."""
    here = messages[index]
    following = messages[index + 1] if index + 1 < len(messages) else None
    if here.role == "assistant" and here.tool_calls:
        # Whether the results after message `index` are those of its calls; fewer only at the end.
        results = [message.tool_call_id or "" for message in results_after(messages, index)]
        wanted = [call.id for call in here.tool_calls]
        at_end = index + 1 + len(results) == len(messages)
        answered = results == (wanted[: len(results)] if at_end else wanted)
        return None if answered else RESULTS_OUT_OF_ORDER
    if following is None:
        return None
    if here.role == "assistant":
        return None if following.role == "user" else ANSWER_NOT_FOLLOWED_BY_USER
    if here.role == "tool":
        return MESSAGE_RIGHT_AFTER_RESULT if is_prompt(following) else None
    return RESULTS_OUT_OF_ORDER if following.role == "tool" else None


def expectation(record: ProviderRecord) -> str:
    """Return the expected result of a replay: REPRODUCED, OPEN_END or IRREGULAR."""
    if irregularities(record.messages):
        return IRREGULAR
    return REPRODUCED if is_answer(record.messages[-1]) else OPEN_END


def split_runs(record: ProviderRecord) -> list[RunScript]:
    """Split a conversation into runs, one for each turn of the user, each with all earlier messages as history.

    Adjacent messages of user and system are one prompt. A greeting of the assistant, with the system messages before
    it, is history. A conversation without any prompt has no runs.
    """
    messages = record.messages
    size = len(messages)
    runs: list[RunScript] = []
    index = _skip_greeting(messages)
    while index < size:
        answer = index
        while answer < size and is_prompt(messages[answer]):
            answer += 1
        stop = answer
        while stop < size and not is_prompt(messages[stop]):
            stop += 1
        runs.append(RunScript(record, len(runs) + 1, index, answer, stop))
        index = stop
    return runs


def _skip_greeting(messages: Sequence[Message]) -> int:
    """Return the index of the first prompt, after a greeting of the assistant."""
    size = len(messages)
    first_user = next((index for index in range(size) if messages[index].role == "user"), size)
    before = messages[:first_user]
    unasked = [index for index, message in enumerate(before) if not is_prompt(message)]
    if not unasked:
        return 0
    greeted = first_user < size and all(is_answer(before[index]) for index in unasked)
    return unasked[-1] + 1 if greeted or not is_prompt(before[0]) else 0


class RecordingEnds(OrchestratorError):
    """The recording has no further answer or result. `index` is the missing message."""

    def __init__(
        self, record: ProviderRecord, index: int, missing: str, results: Sequence[ToolResult] = ()
    ) -> None:
        super().__init__(f"recording {record.id!r} ends before message {index}: {missing} is not recorded")
        self.record_id = record.id
        self.index = index
        self.results = tuple(results)
        """The recorded results of the calls of the same turn."""


class ReplayDiverged(OrchestratorError):
    """The run differs from the recording. `difference` is the first one: index, member, recorded, ours."""

    def __init__(self, record: ProviderRecord, difference: RequestDifference) -> None:
        super().__init__(f"the run differs from recording {record.id!r}: {difference}")
        self.record_id = record.id
        self.difference = difference


class ReplaySource:
    """The part of a recording to replay, and its pace: `speed` 1 waits as long as recorded, 0 does not wait."""

    __slots__ = ("clock", "record", "speed", "start", "stop")

    def __init__(self, source: ProviderRecord | RunScript, speed: float, clock: Clock | None) -> None:
        if speed < 0:
            raise ConfigError(f"speed is a factor of the recorded times, 0 or more, not {speed!r}")
        if isinstance(source, RunScript):
            self.record, self.start, self.stop = source.record, source.answer, source.stop
        else:
            self.record, self.start, self.stop = source, 0, len(source.messages)
        self.speed = speed
        self.clock: Clock = clock or SystemClock()

    async def wait(self, seconds: float) -> None:
        """Wait for `seconds`, scaled by the speed."""
        if self.speed and seconds:
            await self.clock.sleep(seconds * self.speed)


def no_context(call: ToolCall, position: int) -> ToolContext:
    """Make an empty context: no recorded tool reads it."""
    return ToolContext(run_id="", idempotency_key=f"{call.name}-{position}")


class ReplayTools(ToolSet):
    """A tool set that returns the recorded results verbatim, without a length limit or a check of names or arguments.

    Only arguments with a duplicate name are refused, as for every call. Results are found by assistant turn and
    position, never by id alone: ids repeat and can be empty. The turn is the next recorded one with exactly these
    calls, so a resumed run finds its position. One run at a time.

    Raises:
        ReplayDiverged: From `execute_all`: the recording does not have these calls.
        RecordingEnds: From `execute_all`: a call has no recorded result.

    Example:
        agent = Agent(ReplayLLM(script), tools=ReplayTools(script))
    """

    def __init__(
        self, source: ProviderRecord | RunScript, *, speed: float = 0.0, clock: Clock | None = None
    ) -> None:
        super().__init__(())
        self._source = ReplaySource(source, speed, clock)
        self._next = self._source.start
        self._results: Sequence[Message | None] = ()
        record = self._source.record
        called = {call.name: None for message in record.messages for call in message.tool_calls}
        self._specs = {name: _spec({"name": name}) for name in called}
        self._specs |= {tool_name(tool): _spec(tool) for tool in record.tools}
        self._offer()

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool of this name, declared or only called in the recording."""
        return self._specs.get(name)

    async def execute(
        self,
        call: ToolCall,
        position: int,
        context_for: ContextFor,  # noqa: ARG002  the signature is ToolSet's
        *,
        waited: float = 0.0,
        exact: dict[int, ReadArguments] | None = None,  # noqa: ARG002
        around: Around | None = None,  # noqa: ARG002  no tool runs
    ) -> ToolResult:
        """Return the recorded result at this position of the present turn of `execute_all`."""
        result = self._results[position] if position < len(self._results) else None
        if result is None:
            raise RecordingEnds(self._source.record, self._source.stop, f"the result of {call.name}")
        seconds = self._source.record.tool_seconds.get(call.id, 0.0)
        await self._source.wait(seconds)
        return ToolResult(call, position, result.text, "error" if result.is_error else "ok", seconds, waited)

    async def execute_all(
        self,
        calls: Sequence[ToolCall],
        context_for: ContextFor = no_context,
        *,
        max_concurrent: int = 10,
        before: Before | None = None,
        after: After | None = None,
        done: list[ToolResult | None] | None = None,
        exact: dict[int, ReadArguments] | None = None,
        around: Around | None = None,
    ) -> list[ToolResult]:
        """Answer the calls of one turn. If a result is missing, those before it still fill `done`."""
        done = [None] * len(calls) if done is None else done
        index = self._turn_of(calls)
        self._results = _by_position(calls, results_after(self._source.record.messages, index))
        known = next((at for at, result in enumerate(self._results) if result is None), len(calls))
        part = done[:known]
        try:
            found = await super().execute_all(
                calls[:known],
                context_for,
                max_concurrent=max_concurrent,
                before=before,
                after=after,
                done=part,
                exact=exact,
                around=around,
            )
        finally:
            done[:known] = part
        if known < len(calls):
            missing = f"the result of {calls[known].name}"
            raise RecordingEnds(self._source.record, index + 1 + known, missing, found)
        self._next = index + 1
        self._offer()
        return found

    def _turn_of(self, calls: Sequence[ToolCall]) -> int:
        """Return the index of the next message with exactly these calls."""
        messages = self._source.record.messages
        turns = [at for at in range(self._next, self._source.stop) if messages[at].tool_calls]
        if not turns:
            raise RecordingEnds(self._source.record, self._source.stop, "a turn with calls")
        found = next((at for at in turns if messages[at].tool_calls == tuple(calls)), None)
        if found is None:
            made, ours = Message("assistant", None, messages[turns[0]].tool_calls), tuple(calls)
            first = next(differences([made], [Message("assistant", None, ours)], start=turns[0]))
            raise ReplayDiverged(self._source.record, first)
        return found

    def _offer(self) -> None:
        """Offer the tools of the next reply."""
        record = self._source.record
        at = self._next
        while at < len(record.messages) and record.messages[at].role != "assistant":
            at += 1
        self.offers = tuple(self._specs[tool_name(tool)] for tool in record.tools_at(at))


def _by_position(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[Message | None]:
    """Return the result of each call: the first unused one with its id.

    For results in call order that is the one at the call's own position, even if all ids are equal.
    """
    left = list(results)
    found: list[Message | None] = []
    for call in calls:
        at = next((at for at, one in enumerate(left) if (one.tool_call_id or "") == call.id), None)
        found.append(None if at is None else left.pop(at))
    return found


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    """Return a tool that is offered as recorded and accepts any text as arguments."""
    about = tool.get("function") or tool
    return recorded_tool(tool_name(tool), str(about.get("description") or ""), about.get("parameters") or {})


def recorded_tool(
    name: str,
    description: str = "",
    schema: Mapping[str, Any] = MappingProxyType({}),
    progress: Progress = "strict",
) -> ToolSpec:
    """Return a tool that accepts any text as arguments, because the recorded result is independent of it."""
    return ToolSpec(
        name,
        description,
        dict(schema),
        _recorded,
        effect="pure",
        progress=progress,
        max_result_chars=0,
        read=_unread,
        dump=None,
    )


def _recorded() -> None:
    """Replace the recorded tool."""


def _unread(_: str) -> dict[str, Any]:
    """Accept any text as arguments, because the recorded result is independent of it."""
    return {}


class ReplayLLM:
    """A model that answers each request with the recorded reply.

    The reply has the recorded content, calls, finish reason, usage, reasoning and refusal.

    Args:
        source: The conversation or run to replay.
        strict: False compares nothing: replies come in the recorded order, one for each request.
        speed: Factor of the recorded times: 1 waits as long as recorded, 0 does not wait.
        clock: Clock of the waits.

    Raises:
        ReplayDiverged: From `complete`: the messages of the request are not the recorded ones up to that reply.
        RecordingEnds: From `complete`: the recording stops before that reply.

    Example:
        agent = Agent(ReplayLLM(script), tools=ReplayTools(script))
    """

    double: ClassVar[bool] = True
    """Not a real model: allowed if real models are refused."""

    def __init__(
        self,
        source: ProviderRecord | RunScript,
        *,
        strict: bool = True,
        speed: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._source = ReplaySource(source, speed, clock)
        self._strict = strict
        self._next = self._source.start
        self.model = self._source.record.model or "recorded"
        self.reports_cost = any(turn.usage.cost is not None for turn in self._source.record.turns.values())

    async def complete(self, request: Request) -> Response:
        """Return the recorded reply to these messages."""
        source = self._source
        index = self._position(request.messages) if self._strict else self._following()
        message, turn = source.record.messages[index], source.record.turn(index)
        await source.wait(turn.latency)
        response = Response(
            message.content,
            message.tool_calls,
            turn.finish_reason,
            turn.usage,
            self.model,
            message.refusal,
            message.reasoning,
        )
        await stream(response.content, request, response.reasoning, response.tool_calls)
        return response

    def _position(self, messages: Sequence[Message]) -> int:
        """Return the index of the reply to exactly these messages."""
        source = self._source
        recorded = source.record.messages
        index = len(messages)
        found = next(differences(recorded[:index], messages), None)
        if found is None and index < source.start:
            found = next(differences(recorded[: source.start], messages))
        if found is not None:
            raise ReplayDiverged(source.record, found)
        if index >= source.stop or is_prompt(recorded[index]):
            raise RecordingEnds(source.record, index, "the model's answer")
        if recorded[index].role != "assistant":
            missing = RequestDifference(index, "message", f"a message of {recorded[index].role}", "nothing")
            raise ReplayDiverged(source.record, missing)
        return index

    def _following(self) -> int:
        """Return the index of the next reply in recorded order."""
        source = self._source
        for index in range(self._next, source.stop):
            if source.record.messages[index].role == "assistant":
                self._next = index + 1
                return index
        raise RecordingEnds(source.record, source.stop, "the model's answer")
