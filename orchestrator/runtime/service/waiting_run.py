"""A run that was left where it waits for a person, and its questions: what `run(wait="never")` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, get_args

from orchestrator.errors import ConfigError, Suspended

Wait: TypeAlias = Literal["always", "never"]
"""What a call does while its run waits for a person: wait too, or return a WaitingRun."""
Answers: TypeAlias = Mapping[str, bool | str]
"""Id of a question -> True (approve), False (reject), or a text in place of the tool's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question of a run to a person, as plain data."""

    id: str
    """Names the question in `resume(run_id, answers={id: …})`."""
    run_id: str
    """The run that asks: the run itself, or a child run."""
    agents: tuple[str, ...] = ()
    """Agents from the run itself to the run that asks; a run without a named agent has its machine's name."""
    key: str
    """Key of the call in that run, or id of the question in its file."""
    text: str
    """The question as a sentence."""
    why: str
    """One of `machines.question.WHY`, or "questions" for the questions of a planner."""
    tool: str = ""
    arguments: str = ""
    """JSON text of the arguments that the tool receives."""
    digest: str = ""
    expires_at: float = 0.0
    """Epoch seconds after which the call cannot be approved any more; 0 means never."""

    def as_json(self) -> dict[str, Any]:
        """Return the question as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run that waits for a person and is left in the journal; `resume(run_id, answers=…)` continues it.

    It stands in the place of the result that the run will have.
    """

    run_id: str
    reason: str
    """Why the run is parked: `approval`, `input`, `paused` and so on; `interrupted` if a child run of it waits."""
    questions: tuple[OpenQuestion, ...]
    waiting: ClassVar[bool] = True
    outcome: ClassVar[None] = None
    output: ClassVar[None] = None
    error: ClassVar[None] = None

    def raise_for_outcome(self) -> NoReturn:
        """Raise Suspended."""
        raise Suspended(self.run_id, self.reason)


class EndedResult:
    """What the result of an ended run says in the words of a WaitingRun."""

    waiting: ClassVar[bool] = False
    questions: ClassVar[tuple[OpenQuestion, ...]] = ()


def check_wait(wait: object) -> None:
    """Check what a call does while its run waits. Raises ConfigError."""
    if wait not in (words := get_args(Wait)):
        raise ConfigError(f"wait is {wait!r}; possible: {', '.join(map(repr, words))}")


def check_answers(run_id: str, answers: Answers, questions: Mapping[str, OpenQuestion]) -> None:
    """Check answers to the open questions of a run. Raises ConfigError for the first that is to none of them."""
    for name, answer in answers.items():
        if name not in questions:
            known = ", ".join(f"{one!r} ({asks.tool or asks.text})" for one, asks in questions.items())
            raise ConfigError(f"run {run_id!r} has no open question {name!r}; open: {known or 'none'}")
        if not isinstance(answer, bool | str):
            raise ConfigError(f"the answer to question {name!r} is {answer!r}; give True, False or a text")
