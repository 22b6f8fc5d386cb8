"""Execute a recorded run again without the world, and compare its transitions with the recorded ones.

The graph, the guards, the hooks and the limits are real; the model, the tools and the clock give what the records have
(`doubles`). A transition that an error from outside caused (a failed model, a cancellation, a hook of the host) ends
the comparison: the replay has no such error. So does a wrap-up request because of the price of a request, which a
replay does not know. A run that was interrupted is replayed as one run, so a charge for a lost
answer is missing. Usage of child runs is not replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any

from orchestrator.errors import ConfigError, ModelRetry
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.llm.retry import RetryPolicy
from orchestrator.llm.usage import Usage
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.run_replay.doubles import RecordedClock, RecordedModel, RecordedTools, RecordEnds
from orchestrator.runtime.run_replay.recording import RecordedStep, Recording, recording_of
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.spec import ToolContext

Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One transition of the replay."""

    number: int
    """Counted from 1."""
    step: RecordedStep
    context: Context
    """The plain context after it, without the messages."""


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first transition that differs."""

    number: int
    """Counted from 1."""
    recorded: RecordedStep | None
    """None if the recorded run has no such transition."""
    replayed: RecordedStep | None
    """None if the replay has no such transition."""
    recorded_context: Context
    replayed_context: Context

    def __str__(self) -> str:
        return f"transition {self.number} differs: recorded {_shown(self.recorded)}, replayed {_shown(self.replayed)}"

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Return the fields of both contexts that differ: name -> (recorded, replayed)."""
        ours, theirs = flat_context(self.recorded_context), flat_context(self.replayed_context)
        return {
            name: (ours.get(name), theirs.get(name))
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name) and name not in _OF_REPLAY
        }


@dataclass(slots=True)
class RunReplay:
    """The result of a replay."""

    run_id: str
    steps: list[ReplayStep] = field(default_factory=list)
    """The transitions that are equal."""
    difference: ReplayDifference | None = None
    outside: RecordedStep | None = None
    """The recorded transition that an error from outside caused, where the comparison ends; None for none."""


_RECORD_ENDS = RecordEnds.__name__
_OF_REPLAY = frozenset(("spent.seconds", "limits.on_unknown_cost", "limits.context_limit"))
"""Parts of a context in which each replay differs: its time, and the limits that replace prices and windows."""


async def replay_run(
    run_id: str, records: Iterable[Record], *, hooks: Iterable[object] = (), until: int | None = None
) -> RunReplay:
    """Execute a recorded run again on its recorded answers and results, and compare its transitions.

    Args:
        run_id: Id of the run.
        records: Its records, from the first.
        hooks: Hook modules or objects, as for `Agent`.
        until: Number of the last record to compare; None for all.

    Raises:
        ConfigError: The run belongs to another graph, an older version recorded it, or `until` is negative.

    Example:
        replay = await replay_run("r1", await journal.load("r1"))
        assert replay.difference is None
    """
    if until is not None and until < 0:
        raise ConfigError(f"until is {until}; it must be the number of a record, 0 or more")
    kept = list(records)
    recording = recording_of(run_id, kept)
    again = await _executed(recording, hooks)
    found = RunReplay(run_id)
    recorded = [step for step in recording.steps if until is None or step.record <= until]
    ours, theirs = _Contexts(run_id, kept), _Contexts(run_id, again)
    steps = recording_of(run_id, again).steps
    for number, (step, other) in enumerate(zip_longest(recorded, steps), 1):
        if not recording.ended and (step is None or (other is not None and other.outside == _RECORD_ENDS)):
            break
        if step is None and until is not None:
            break
        if step is not None and step.outside:
            found.outside = step
            break
        if step is None or other is None or _path(step) != _path(other):
            found.difference = ReplayDifference(number, step, other, ours.before(step), theirs.before(other))
            break
        found.steps.append(ReplayStep(number, step, theirs.after(other)))
    return found


def _path(step: RecordedStep) -> tuple[str, str, str]:
    return step.event, step.source, step.dest


async def _executed(recording: Recording, hooks: Iterable[object]) -> list[Record]:
    """Execute the run on doubles and return its records."""
    clock, journal = RecordedClock(), MemoryJournal()
    model = RecordedModel(recording, clock)
    limits = recording.limits
    if recording.window and not limits.context_limit:
        limits = replace(limits, context_limit=recording.window)
    attempts = 1 + max((len(errors) for errors in recording.attempts), default=0)
    agent = Agent(
        model,
        tools=RecordedTools(recording, model, clock),
        limits=replace(limits, on_unknown_cost="ignore"),
        retry=RetryPolicy(attempts=attempts + bool(limits.max_retries), base=0.0, max_delay=0.0, jitter=0.0),
        hooks=tuple(hooks),
        runtime=Runtime(journal=journal, observers=(), clock=clock),
    )

    async def refuse(output: object, context: ToolContext) -> None:
        del output, context
        if model.turn in recording.refused:
            raise ModelRetry(recording.refused[model.turn])

    if recording.refused:
        agent.output_validator(refuse)
    await agent.run(recording.messages, run_id=recording.run_id)
    return await journal.load(recording.run_id)


class _Contexts:
    """The contexts of a run at its transitions."""

    def __init__(self, run_id: str, records: Sequence[Record]) -> None:
        self._run_id, self._records = run_id, records
        self._stored = StoredRun(run_id)
        self._next = 0

    def after(self, step: RecordedStep) -> Context:
        """Return the context after a transition; transitions are asked for in order."""
        following = self._records[step.record + 1 : step.record + 2]
        last = step.record + bool(following and following[0].kind == "context")
        while self._next <= last:
            record = self._records[self._next]
            self._stored.fold(record.kind, record.body)
            self._next += 1
        return deepcopy(dict(self._stored.context))  # later records change its parts in place

    def before(self, step: RecordedStep | None) -> Context:
        """Return the context with which a transition was decided; of the end if there is none."""
        if step is None:
            return dict(StoredRun.of(self._run_id, self._records).context)
        return dict(_Contexts(self._run_id, self._records).after(step))


def flat_context(context: Context) -> dict[str, Any]:
    """Return the parts of a context under their paths."""
    found: dict[str, Any] = {}
    for name, value in context.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{part}": one for part, one in value.items()}
        else:
            found[name] = value
    if (usage := found.pop("spent.usage", None)) is not None:
        found |= {f"spent.{part}": count for part, count in asdict(Usage.of(usage)).items()}
    return found


def _shown(step: RecordedStep | None) -> str:
    if step is None:
        return "nothing"
    cause = f", {step.outside}" if step.outside else ""
    return f"{step.source} -> {step.dest} ({step.event}{cause})"
