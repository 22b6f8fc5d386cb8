"""The run of a case as its records describe it, and what is checked about it: expectations, and judges of a user.

Checks are pure: nothing but the case and the records of its run is read. A judge that raises is an error of that case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.cancellation import TimeLimitPassed, called, limited
from orchestrator.kernel.journal import Record
from orchestrator.llm.port import Clock
from orchestrator.runtime.evaluation.case import WAITING, CallExpectation, EvaluationCase, OutputExpectation
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.runs.result import recorded_result
from orchestrator.runtime.runs.story import Story
from orchestrator.tools.result import explain
from orchestrator_guards import Verdict

ACTOR = "evaluation"
"""Who answers the questions of a case, and who cancels a run that waits for a person."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call whose tool ran."""

    tool: str
    arguments: Any
    """The arguments that the tool got; None if the records do not have them."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """The ended run of a case, for checks and judges.

    Example:
        def polite(run: CaseRun) -> bool:
            return "please" in run.output
    """

    case: EvaluationCase
    result: Result
    """As `Runs.result` returns it: the output is JSON."""
    calls: tuple[RecordedCall, ...]
    """The calls whose tool ran, in order."""
    states: tuple[str, ...]
    """The states of the run in order, from the initial one."""
    asked: tuple[str, ...]
    """Tools about whose calls a person was asked."""
    requests: int
    """Answers of the model, without those of child runs."""
    seconds: float
    """Time of the run, without waiting for people."""
    waited: str
    """The question that the case has no answer to, for which the run was cancelled; empty if there is none."""

    @classmethod
    def of(cls, case: EvaluationCase, run_id: str, records: Sequence[Record]) -> Self:
        """Read the records of an ended run."""
        story = Story.of(run_id, records)
        said = {
            int(entry.answer.get("iteration") or 0): entry.message.get("tool_calls") or ()
            for entry in story.conversation
            if entry.answer is not None
        }
        found = []
        for entry in story.ledger.entries.values():
            if not entry.effect:  # refused before it had an intent
                continue
            calls = said.get(entry.turn, ())
            text = entry.arguments
            if text is None and entry.position < len(calls):
                text = (calls[entry.position].get("function") or {}).get("arguments")
            found.append(RecordedCall(entry.tool, json_values(text)))
        path = [record.body for record in records if record.kind == "transition"]
        states = [str(path[0]["source"]), *(str(body["dest"]) for body in path)] if path else [story.state]
        return cls(
            case=case,
            result=recorded_result(story, records),
            calls=tuple(found),
            states=tuple(
                one for number, one in enumerate(states) if number == 0 or one != states[number - 1]
            ),
            asked=tuple(str(record.body.get("tool", "")) for record in records if record.kind == "asked"),
            requests=story.requests,
            seconds=story.elapsed,
            waited=next(
                (
                    str(body.get("why"))
                    for kind, body in story.decisions
                    if kind == "control" and body.get("by") == ACTOR and body.get("kind") == "cancel"
                ),
                "",
            ),
        )

    @property
    def output(self) -> Any:
        """The final answer: text or JSON; None without one."""
        return self.result.output

    @property
    def outcome(self) -> str:
        """The outcome of the run, or `waiting`."""
        return WAITING if self.waited else self.result.outcome.value


def json_values(value: Any) -> Any:
    """Return a text that is JSON parsed, and any other value as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


_SHOWN: Final = 200
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class CaseCheck:
    """The result of one check, or of one judge."""

    name: str
    """The expectation, as `output.contains`, or `judge polite`."""
    passed: bool
    why: str = ""
    """What was expected and what was found; or the reason of a judge."""
    score: float | None = None
    """From a judge that gives one: 0 to 1."""
    error: bool = False
    """Whether there is no verdict, because the judge raised."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a check that `as_json` wrote."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})

    def as_json(self) -> dict[str, Any]:
        """Return plain data, without the members that say nothing."""
        data = {"why": self.why, "score": self.score, "error": self.error or None}
        more = {name: value for name, value in data.items() if value not in {"", None}}
        return {"name": self.name, "passed": self.passed, **more}


def check_run(run: CaseRun) -> list[CaseCheck]:
    """Check every expectation of the case."""
    expect, outcome = run.case.expect, run.outcome
    detail = _detail(run)
    found = [_equal("outcome", expect.outcome, outcome, detail)]
    if expect.reason is not None:
        found.append(_equal("reason", expect.reason, run.result.reason, detail))
    if expect.output is not None:
        found += _output(expect.output, run.output)
    return [*found, *_transitions(run), *_tools(run), *_limits(run)]


def _detail(run: CaseRun) -> str:
    if run.waited:
        return run.waited
    verdict, error = run.result.verdict, run.result.error
    return verdict.explain() if verdict is not None else str(error or run.result.reason)


def _equal(name: str, expected: str, found: str, detail: str) -> CaseCheck:
    more = f": {_shown_text(detail)}" if detail and detail != found else ""
    return CaseCheck(
        name, expected == found, f"expected {expected}, the run has {found}{more}" * (expected != found)
    )


def _check(name: str, faults: Iterable[str]) -> CaseCheck:
    said = list(faults)
    return CaseCheck(name, not said, "; ".join(said))


# ---- output ----


def _output(expect: OutputExpectation, output: Any) -> Iterator[CaseCheck]:
    text = (
        output
        if isinstance(output, str)
        else ""
        if output is None
        else json.dumps(output, ensure_ascii=False)
    )
    data = json_values(output)
    given = expect.model_fields_set
    if "equals" in given:
        same = _same(expect.equals, data if not isinstance(expect.equals, str) else output)
        yield _check(
            "output.equals", () if same else [f"expected {_shown(expect.equals)}, got {_shown(output)}"]
        )
    if expect.contains:
        missing = [one for one in expect.contains if one not in text]
        yield _check("output.contains", (f"{_shown(one)} is not in {_shown(output)}" for one in missing))
    if expect.excludes:
        present = [one for one in expect.excludes if one in text]
        yield _check("output.excludes", (f"{_shown(one)} is in {_shown(output)}" for one in present))
    if expect.matches is not None:
        fits = output is not None and not expect.fits_pattern(text)
        yield _check(
            "output.matches", () if fits else [f"{_shown(expect.matches)} does not fit {_shown(output)}"]
        )
    if expect.json_schema is not None:
        faults = expect.fits_schema(data)
        yield _check(
            "output.schema",
            (f"{'.'.join(map(str, one.path)) or 'the output'}: {one.message}" for one in faults),
        )
    for path, value in expect.fields.items():
        found = _member(data, path)
        told = "has no such member" if found is _NOTHING else f"is {_shown(found)}"
        same = found is not _NOTHING and _same(value, found)
        yield _check(f"output.fields.{path}", () if same else [f"expected {_shown(value)}, it {told}"])


def _same(expected: Any, found: Any) -> bool:
    """Compare JSON values: a number never equals True, and 1 equals 1.0."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(
            _same(expected[name], found[name]) for name in expected
        )
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    return bool(expected == found)


def _member(data: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return _NOTHING
    return data


# ---- path, tools, limits ----


def _transitions(run: CaseRun) -> Iterator[CaseCheck]:
    expect, states = run.case.expect.transitions, run.states
    took = f"the run took {_listed(states)}"
    if expect.visited:
        missing = [one for one in expect.visited if one not in states]
        yield _check("transitions.visited", (f"{_shown(one)} is not visited; {took}" for one in missing))
    if expect.not_visited:
        present = [one for one in expect.not_visited if one in states]
        yield _check("transitions.not_visited", (f"{_shown(one)} is visited" for one in present))
    if expect.order:
        yield _check(
            "transitions.order", () if _in_order(expect.order, states) else [_ordered(expect.order, took)]
        )
    if expect.path:
        same = expect.path == states
        yield _check("transitions.path", () if same else [f"expected {_listed(expect.path)}; {took}"])


def _tools(run: CaseRun) -> Iterator[CaseCheck]:
    expect, names = run.case.expect.tools, tuple(call.tool for call in run.calls)
    ran = f"the run called {_listed(names) or 'no tool'}"
    for one in expect.called:
        yield _called(one, run, ran)
    if expect.not_called:
        present = [one for one in expect.not_called if one in names]
        yield _check("tools.not_called", (f"{_shown(one)} is called" for one in present))
    if expect.order:
        yield _check("tools.order", () if _in_order(expect.order, names) else [_ordered(expect.order, ran)])
    if expect.asked:
        missing = [one for one in expect.asked if one not in run.asked]
        yield _check("tools.asked", (f"no person is asked about {_shown(one)}" for one in missing))


def _called(expect: CallExpectation, run: CaseRun, ran: str) -> CaseCheck:
    name = f"tools.called.{expect.tool}"
    of_tool = [call for call in run.calls if call.tool == expect.tool]
    fitting = [call for call in of_tool if _has(call.arguments, expect.arguments)]
    if (expect.times is None and fitting) or expect.times == len(fitting):
        return CaseCheck(name, passed=True)
    if not of_tool:
        return CaseCheck(name, passed=False, why=f"it is not called; {ran}")
    given = "" if expect.arguments is None else f" with {_shown(expect.arguments)}"
    times = "once or more" if expect.times is None else f"{expect.times} times"
    calls = ", ".join(_shown(call.arguments) for call in of_tool)
    return CaseCheck(
        name,
        passed=False,
        why=f"expected {times}{given}, found {len(fitting)} among its calls: {_shown_text(calls)}",
    )


def _has(arguments: Any, expected: Mapping[str, Any] | None) -> bool:
    if expected is None:
        return True
    return isinstance(arguments, Mapping) and all(
        name in arguments and _same(value, arguments[name]) for name, value in expected.items()
    )


def _limits(run: CaseRun) -> Iterator[CaseCheck]:
    usage, limits = run.result.usage, run.case.expect.at_most
    used = {
        "cost": usage.cost_max,
        "tokens": usage.input_tokens + usage.output_tokens,
        "requests": run.requests,
        "tool_calls": len(run.calls),
        "seconds": run.seconds,
    }
    for name, value in used.items():
        limit = getattr(limits, name)
        if limit is None:
            continue
        if value is None:
            yield CaseCheck(
                f"at_most.{name}", passed=False, why="the cost is not known: the agent has no prices"
            )
        else:
            over = [f"it used {value:g}, the limit is {limit:g}"] if value > limit else ()
            yield _check(f"at_most.{name}", over)


def _in_order(expected: Sequence[str], found: Sequence[str]) -> bool:
    rest = iter(found)
    return all(one in rest for one in expected)


def _ordered(expected: Sequence[str], found: str) -> str:
    return f"expected {_listed(expected)} in this order; {found}"


def _listed(names: Sequence[str]) -> str:
    return _shown_text(" → ".join(names))


def _shown(value: Any) -> str:
    is_text = isinstance(value, str)
    return _shown_text(value if is_text else json.dumps(value, ensure_ascii=False), quoted=is_text)


def _shown_text(text: str, *, quoted: bool = False) -> str:
    cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"
    return repr(cut) if quoted else cut


JUDGE_SECONDS: Final = 120.0
"""Time limit of a judge for one run."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer of a judge with its reason.

    Example:
        return Judgement(score=0.8, reason="polite, but long")
    """

    passed: bool | None = None
    """None: the score decides, by the threshold of the case."""
    reason: str = ""
    score: float | None = None
    """From 0 to 1."""


Judge: TypeAlias = Callable[[CaseRun], Any]
"""A function of a CaseRun, sync (called in a thread) or async. It returns a bool, a score from 0 to 1, a Judgement or a
Verdict of a guard.
"""


def named_judges(judges: Mapping[str, Judge] | Iterable[Judge]) -> dict[str, Judge]:
    """Return name -> judge; a function has its own name. Raises ConfigError."""
    pairs = (
        list(judges.items())
        if isinstance(judges, Mapping)
        else [(str(getattr(one, "__name__", type(one).__name__)), one) for one in judges]
    )
    for name, judge in pairs:
        if not callable(judge):
            raise ConfigError(f"judge {name!r} is {judge!r:.60}; give a function of a CaseRun")
    if len(dict(pairs)) < len(pairs):
        raise ConfigError("two judges have one name: give them as a dict, or with NAME=MODULE:FUNCTION")
    return dict(pairs)


async def judge_run(name: str, judge: Judge, run: CaseRun, clock: Clock) -> CaseCheck:
    """Return what a judge says about a run; its error is an error of the case."""
    label = f"judge {name}"
    try:
        said = await limited(lambda: called(judge, run, label), JUDGE_SECONDS, clock)
        found = _judgement(said, run.case.threshold)
    except TimeLimitPassed:
        return CaseCheck(label, passed=False, why=f"no answer within {JUDGE_SECONDS:g} s", error=True)
    except Exception as error:  # noqa: BLE001 - code of the user
        return CaseCheck(label, passed=False, why=explain(error), error=True)
    return CaseCheck(label, bool(found.passed), found.reason, found.score)


def _judgement(said: object, threshold: float) -> Judgement:
    """Return the answer of a judge in one form. Raises TypeError, ValueError for another type or score."""
    if isinstance(said, Verdict):
        return Judgement(said.ok, "" if said.ok else said.explain())
    if isinstance(said, bool):
        return Judgement(said)
    if isinstance(said, int | float):
        said = Judgement(score=float(said))
    if not isinstance(said, Judgement):
        kinds = "a bool, a score from 0 to 1, a Judgement or a Verdict"
        raise TypeError(f"the judge returned {type(said).__name__}; it must return {kinds}")
    if said.score is not None and not (math.isfinite(said.score) and 0 <= said.score <= 1):
        raise ValueError(f"the score is {said.score}; it must be between 0 and 1")
    if said.passed is None:
        if said.score is None:
            raise ValueError("the Judgement has neither passed nor a score")
        reason = said.reason or f"the score is {said.score:g}, the least that passes is {threshold:g}"
        return Judgement(said.score >= threshold, reason, said.score)
    return said
