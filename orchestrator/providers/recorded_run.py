"""Split a recorded conversation into runs, one for each turn of the user, and report its irregularities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.llm.message import Message, ToolCall
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.providers.difference import RequestDifference
from orchestrator.providers.recording import ProviderRecord
from orchestrator.tools.result import ToolResult

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
        return None if _answered(here.tool_calls, messages, index) else RESULTS_OUT_OF_ORDER
    if following is None:
        return None
    if here.role == "assistant":
        return None if following.role == "user" else ANSWER_NOT_FOLLOWED_BY_USER
    if here.role == "tool":
        return MESSAGE_RIGHT_AFTER_RESULT if is_prompt(following) else None
    return RESULTS_OUT_OF_ORDER if following.role == "tool" else None


def _answered(calls: Sequence[ToolCall], messages: Sequence[Message], index: int) -> bool:
    """Return whether the results after message `index` are those of its calls; fewer only at the end."""
    results = [message.tool_call_id or "" for message in results_after(messages, index)]
    wanted = [call.id for call in calls]
    at_end = index + 1 + len(results) == len(messages)
    return results == (wanted[: len(results)] if at_end else wanted)


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
