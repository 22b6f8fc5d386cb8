"""What an agent keeps in this process: its live runs with their paths, and the conversations it had last."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator.errors import ConfigError, Held, RunExists, RunUnknown
from orchestrator.kernel.record import Fact, Follower, Transition
from orchestrator.kernel.run import Run
from orchestrator.messages import Message

Prompt: TypeAlias = str | Message | Sequence[Message | Mapping[str, Any]]
"""Text of the user, one message, or a whole conversation as messages or in OpenAI chat form."""


class LiveRuns:
    """The runs under way, by id; as an observer it keeps their last transitions, for `Result.transitions`.

    Who follows a run hears every fact about it here, and about the runs below it.
    """

    def __init__(self, kept: int = 10_000) -> None:
        self._kept = kept
        self._runs: dict[str, Run[Any, Any]] = {}
        self._followers: dict[str, Follower] = {}
        self._paths: dict[str, deque[Transition]] = {}
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self._taken: set[str] = set()
        self._talking: set[str | None] = set()

    def open(self, run: Run[Any, Any], path: Iterable[Transition] = ()) -> None:
        """Take a run in. Raises RunExists when its id is under way, ConfigError when its conversation is."""
        conversation = run.ctx.conversation_id
        if run.run_id in self._runs:
            raise RunExists(run.run_id)
        if conversation in self._talking:
            raise ConfigError(f"conversation {conversation!r} has a run under way; wait for its end")
        if conversation is not None:
            self._talking.add(conversation)
        above = None if run.parent_run_id is None else self._runs.get(run.parent_run_id)
        if above is not None:
            run.follower = above.follower
        if run.follower is not None:
            self._followers[run.run_id] = run.follower
        self._runs[run.run_id] = run
        self._paths[run.run_id] = deque(path, maxlen=self._kept)

    @contextlib.contextmanager
    def taking(self, run_id: str) -> Iterator[None]:
        """Within the block nobody else here takes the run up: the journal knows us all by one name. Raises Held."""
        if run_id in self._taken or run_id in self._runs:
            raise Held(run_id, "this process: it is under way here")
        self._taken.add(run_id)
        try:
            yield
        finally:
            self._taken.discard(run_id)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def find(self, run_id: str) -> Run[Any, Any] | None:
        """Return a run that lives here, or None."""
        return self._runs.get(run_id)

    def end_of(self, run_id: str) -> asyncio.Future[Any]:
        """Return what becomes the Result of a run that lives here."""
        self.get(run_id)
        return self._ends.setdefault(run_id, asyncio.get_running_loop().create_future())

    def ended(self, run_id: str, result: object) -> None:
        """Hand the Result, or the error, to whoever waits for it elsewhere in this process."""
        end = self._ends.pop(run_id, None)
        if end is None or end.done():
            return
        if isinstance(result, BaseException):
            end.set_exception(result)
        else:
            end.set_result(result)

    def get(self, run_id: str) -> Run[Any, Any]:
        """Return a run. Raises RunUnknown."""
        if run_id not in self._runs:
            raise RunUnknown(run_id)
        return self._runs[run_id]

    def close(self, run: Run[Any, Any]) -> tuple[Transition, ...]:
        """Let a run go; return its path."""
        del self._runs[run.run_id]
        self._followers.pop(run.run_id, None)
        self._talking.discard(run.ctx.conversation_id)
        return tuple(self._paths.pop(run.run_id))

    def observe(self, fact: Fact) -> None:
        """Keep a transition; tell who follows the run."""
        if type(fact) is Transition:
            self._paths[fact.run_id].append(fact)
        if self._followers and (tell := self._followers.get(fact.run_id)) is not None:
            tell(fact)


class Conversations:
    """The messages of the last `kept` conversations, by id, as their last run left them; the journal has all."""

    def __init__(self, kept: int = 1_000) -> None:
        self._kept = kept
        self._said: OrderedDict[str, tuple[str, tuple[Message, ...]]] = OrderedDict()

    def history(self, conversation_id: str, run_id: str | None) -> tuple[Message, ...] | None:
        """Return what was said up to a run; None when that is not kept here. No run: what is kept."""
        known = self._said.get(conversation_id)
        if known is None or run_id not in (None, known[0]):
            return None
        return known[1]

    def keep(self, conversation_id: str | None, run_id: str, messages: Sequence[Message]) -> None:
        """Remember the conversation as a run left it; the one unused for longest is forgotten beyond `kept`."""
        if conversation_id is None:
            return
        self._said[conversation_id] = run_id, tuple(messages)
        self._said.move_to_end(conversation_id)
        if len(self._said) > self._kept:
            self._said.popitem(last=False)


def opening(prompt: Prompt, history: Sequence[Message], instructions: str | None) -> list[Message]:
    """Return the messages a run starts with. Raises ConfigError for a prompt that is none."""
    messages = [*history, *_as_messages(prompt)]
    if not messages:
        raise ConfigError("the prompt is empty; give text or at least one message")
    if instructions is not None and messages[0] != (system := Message("system", instructions)):
        messages.insert(0, system)
    return messages


def _as_messages(prompt: Prompt) -> list[Message]:
    if isinstance(prompt, str):
        return [Message("user", prompt)]
    if isinstance(prompt, Message):
        return [prompt]
    if not isinstance(prompt, Sequence):
        raise ConfigError(f"the prompt must be text or messages, not {type(prompt).__name__}")
    return [_as_message(item) for item in prompt]


def _as_message(item: object) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping):
        raise ConfigError(f"a message must be a Message or a mapping, not {type(item).__name__}")
    try:
        return Message.from_openai(item)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"a message of the prompt cannot be read: {error}") from error
