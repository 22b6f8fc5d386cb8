"""Execute a recorded run again without the world, and compare its transitions with the recorded ones.

The graph, the guards, the hooks and the limits are real; the model, the tools and the clock give what the records have,
and touch nothing outside. A transition that an error from outside caused (a failed model, a cancellation, a hook of the
host) ends the comparison: the replay has no such error. So does a wrap-up request because of the price of a request,
which a replay does not know. A run that was interrupted is replayed as one run, so a charge for a lost answer is
missing. Usage of child runs is not replayed.

A recorded run can also be archived as a file for a test: secrets are replaced, and options of the command line are
left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, ClassVar, Final

from orchestrator.errors import ConfigError, LLMError, ModelRetry, OrchestratorError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.redacted import parted
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Draft, Record
from orchestrator.kernel.redaction import replace_secrets
from orchestrator.llm.attempt import ATTEMPTS
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState
from orchestrator.machines.team.model import TEAM_GRAPH
from orchestrator.providers.replay import recorded_tool
from orchestrator.runtime.backtest.trace import limits_of, trace_of
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext, ToolSpec
from orchestrator.tools.tool_set import Around, ContextFor, ReadArguments, ToolSet
from orchestrator_guards import tool_key
from orchestrator_guards.evaluation import GUARDS

FORMAT: Final = "orchestrator-records/1"
_LEFT_OUT: Final = frozenset(("launch", "metadata", "deposited"))
"""Members of the first record that a replay does not need: they may name keys, addresses and people."""


def archive_of(run_id: str, records: Iterable[Record]) -> dict[str, Any]:
    """Return the records of a run as plain data. Equal secrets get equal replacements, `[redacted 1]` and so on."""
    known: dict[str, str] = {}

    def replacement(secret: str) -> str:
        return known.setdefault(secret, f"[redacted {len(known) + 1}]")

    plain = []
    for record in records:
        body = {name: value for name, value in record.body.items() if name not in _LEFT_OUT}
        plain.append([record.kind, _cleaned(body, parted(record.kind, body).content, replacement)])
    return {"format": FORMAT, "run_id": run_id, "records": plain}


async def journal_of(data: Mapping[str, Any]) -> MemoryJournal:
    """Return a journal with the archived run. Raises ConfigError for data of another form."""
    kind = data.get("format", FORMAT)
    if kind != FORMAT:
        raise ConfigError(f"the format of the archive is {kind!r:.60}; it must be {FORMAT!r}")
    try:
        (_, created), *rest = data["records"]
        drafts = [Draft(str(kind), dict(body)) for kind, body in rest]
        run_id = str(data["run_id"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"this is no archived run ({type(error).__name__}); export it again") from None
    journal = MemoryJournal()
    lease = await journal.create(run_id, "archive", created)
    if drafts:
        journal.append(lease, drafts)
    await journal.release(lease)
    return journal


def _cleaned(body: Any, content: Any, replacement: Any) -> Any:
    """Return a body whose content has no secrets. `content` is the part of the body that is content."""
    if isinstance(body, Mapping) and isinstance(content, Mapping):
        return {
            name: _cleaned(value, content[name], replacement) if name in content else value
            for name, value in body.items()
        }
    if isinstance(body, list | tuple) and isinstance(content, list | tuple) and len(body) == len(content):
        return [_cleaned(one, other, replacement) for one, other in zip(body, content, strict=True)]
    return replace_secrets(body, replacement) if isinstance(body, str) else body


_BY_GUARD: Final = frozenset(("LimitReached", "CompletionError"))
"""Errors that a replay makes again; every other one comes from outside."""
_KIND: Final = 2
"""Index of the kind of the error in the row of an attempt."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A transition, and the context after it."""

    record: int
    """Number of its record."""
    event: str
    source: str
    dest: str
    t: float
    """Active seconds of the run."""
    outside: str = ""
    """The cause of the transition that came from outside: the type of an error, or the price; "" for none."""


@dataclass(slots=True)
class Recording:
    """A run as its records describe it."""

    run_id: str
    limits: Limits = field(default_factory=Limits)
    messages: list[Message] = field(default_factory=list)
    """The messages at its start."""
    answers: list[Response] = field(default_factory=list)
    attempts: list[list[str]] = field(default_factory=list)
    """For each request the kinds of the errors before its answer."""
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key of a call -> its `done` record."""
    refused: dict[int, str] = field(default_factory=dict)
    """Number of an answer -> why it was requested again."""
    policies: dict[str, Any] = field(default_factory=dict)
    """Key of a tool -> the meaning of its repetition."""
    steps: list[RecordedStep] = field(default_factory=list)
    ended: bool = False
    window: int = 0
    """Tokens of the model's context window; 0 if unknown."""


def recording_of(run_id: str, records: Iterable[Record]) -> Recording:
    """Read a run. Raises ConfigError for a run of another graph, of an older version, or one that was migrated."""
    kept = list(records)
    trace = trace_of(run_id, kept)
    problem = trace.problem
    if trace.graph == TEAM_GRAPH:
        problem = "it is a run of a team; its segments are runs of their own, which can be replayed"
    if problem:
        raise ConfigError(f"run {run_id!r} cannot be replayed: {problem}")
    found = Recording(run_id)
    reader = _Reader(found)
    for record in kept:
        reader.read(record)
    for point in trace.points:
        found.policies |= {call.tool: call.policy for call in point.calls if call.policy}
    return found


class _Reader:
    def __init__(self, found: Recording) -> None:
        self._found = found
        self._stored = StoredRun(found.run_id)
        self._answer: Mapping[str, Any] | None = None

    def read(self, record: Record) -> None:
        """Add one more record."""
        body, found = record.body, self._found
        self._stored.fold(record.kind, body)
        match record.kind:
            case "created":
                context = body["context"]
                found.limits = limits_of(context["limits"])
                found.messages = [Message.from_openai(one) for one in context["messages"]]
            case "answer":
                self._answer = body
                kinds = (next(iter(row[_KIND:]), "") for row in body.get(ATTEMPTS) or ())
                found.attempts.append([str(kind) for kind in kinds if kind])
            case "done" if "key" in body:
                found.results[str(body["key"])] = body
            case "context":
                self._take_messages(body)
                found.window = found.window or int(self._stored.context["context"]["limit"])
            case "transition":
                self._take_step(record)
            case "ended":
                found.ended = True

    def _take_step(self, record: Record) -> None:
        body = record.body
        error = str((body.get("error") or {}).get("type", ""))
        outside = error if error and error not in _BY_GUARD else ""
        rows = body.get(GUARDS) or ()
        # A refused maximum of a request: it became the wrap-up request.
        if body["event"] == LoopEvent.LLM_RESPONSE and any(
            not row[0] and row[4:5] == ["request_cost"] for row in rows
        ):
            outside = "the price of a request"
        step = RecordedStep(
            record.seq,
            str(body["event"]),
            str(body["source"]),
            str(body["dest"]),
            float(body.get("t", 0.0)),
            outside,
        )
        self._found.steps.append(step)
        asks_again = step.event == LoopEvent.COMPLETION_RETRY or error == "CompletionError"
        if step.source == LoopState.HANDLE_COMPLETION and asks_again:
            self._found.refused[len(self._found.attempts)] = "the recorded run asked again"

    def _take_messages(self, body: Mapping[str, Any]) -> None:
        """Build the last answer from its message."""
        changed = body.get("messages") or {}
        added = changed if isinstance(changed, list) else changed.get("add") or ()
        for raw in added:
            if raw.get("role") == "assistant" and self._answer is not None:
                message, answer = Message.from_openai(raw), self._answer
                self._answer = None
                self._found.answers.append(
                    Response(
                        message.content,
                        message.tool_calls,
                        answer.get("finish_reason"),
                        Usage.of(answer.get("usage") or {}),
                        answer.get("model"),
                        message.refusal,
                        message.reasoning,
                    )
                )


class RecordEnds(OrchestratorError):
    """The replayed run needs an answer or a result that the records do not have."""


class _NoTimer:
    """A timer that never rings: in a replay only the recorded times pass."""

    def cancel(self) -> None:
        """Do nothing."""


class RecordedClock:
    """A clock that shows the recorded times. It never waits, and its timers never ring."""

    def __init__(self) -> None:
        self.now = 0.0
        """Active seconds of the run."""

    def time(self) -> float:
        """Return the active seconds of the run."""
        return self.now

    def monotonic(self) -> float:
        """Return the active seconds of the run."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Return at once."""
        del seconds
        await asyncio.sleep(0)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _NoTimer:
        """Return a timer that never rings."""
        del seconds, callback
        return _NoTimer()


class RecordedModel:
    """A model that gives the recorded answers in their order, after the recorded errors."""

    double: ClassVar[bool] = True

    def __init__(self, recording: Recording, clock: RecordedClock) -> None:
        self.model = next((one.model for one in recording.answers if one.model), "recorded")
        self.reports_cost = any(one.usage and one.usage.cost_micros is not None for one in recording.answers)
        self.turn = 0
        """Answers given."""
        self._recording, self._clock = recording, clock
        self._errors = 0
        self._times = [step.t for step in recording.steps if step.event == LoopEvent.LLM_RESPONSE]

    async def complete(self, request: Request) -> Response:
        """Return the next recorded answer. Raises the recorded errors before it, and RecordEnds behind the last one."""
        del request
        recording = self._recording
        if self.turn >= len(recording.answers):
            raise RecordEnds(f"the records of run {recording.run_id!r} have no answer {self.turn + 1}")
        errors = recording.attempts[self.turn] if self.turn < len(recording.attempts) else []
        if self._errors < len(errors):
            self._errors += 1
            raise LLMError("recorded error", kind=errors[self._errors - 1])
        answer = recording.answers[self.turn]
        if self.turn < len(self._times):
            self._clock.now = max(self._clock.now, self._times[self.turn])
        self.turn, self._errors = self.turn + 1, 0
        return answer


class RecordedTools(ToolSet):
    """Tools that give the recorded results of the calls of the model's last answer."""

    offers_all: ClassVar[bool] = False

    def __init__(self, recording: Recording, model: RecordedModel, clock: RecordedClock) -> None:
        super().__init__(())
        self._recording, self._model, self._recorded_clock = recording, model, clock
        names = {call.name for answer in recording.answers for call in answer.tool_calls}
        self._specs = {
            name: recorded_tool(name, progress=recording.policies.get(tool_key(name), "strict"))
            for name in names
        }
        # A limit needs its tool, and the records do not say which tools were offered.
        self.offers = tuple(recorded_tool(name) for name in recording.limits.tool_caps)
        self._times = [step.t for step in recording.steps if step.event == LoopEvent.TOOLS_EXECUTED]
        self._turns = 0

    def find(self, name: str) -> ToolSpec | None:
        """Return a tool that a recorded answer calls."""
        return self._specs.get(name)

    async def execute_all(self, *args: Any, **options: Any) -> list[ToolResult]:
        """Return the recorded results of a turn, at their recorded time."""
        try:
            return await super().execute_all(*args, **options)
        finally:
            if self._turns < len(self._times):
                self._recorded_clock.now = max(self._recorded_clock.now, self._times[self._turns])
            self._turns += 1

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
        """Return the recorded result of a call. Raises RecordEnds if there is none."""
        key = f"{self._model.turn}:{position}"
        done = self._recording.results.get(key)
        if done is None:
            raise RecordEnds(f"the records of run {self._recording.run_id!r} have no result of call {key}")
        return ToolResult(
            call,
            position,
            done["content"],
            done["outcome"],
            float(done.get("seconds") or 0.0),
            waited,
            bool(done.get("cut")),
            parts=tuple(done.get("parts", ())),
            returned=done.get("returned"),
        )


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
    again = await journal.load(recording.run_id)
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
