"""The report of an evaluation as plain data, its comparison with an earlier one, and its form as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Self
from xml.etree.ElementTree import Element, SubElement, tostring

from orchestrator.errors import ConfigError
from orchestrator.runtime.evaluation.check import CaseCheck
from orchestrator.telemetry.escape import escape
from orchestrator_guards.money import amount, in_currency

FORMAT: Final = "orchestrator-evaluation/1"

CaseStatus = Literal["passed", "failed", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseUsage:
    """What runs of cases used."""

    requests: int = 0
    tokens: int = 0
    """Input and output tokens, with child runs and estimates."""
    cost_micros: int | None = None
    """In millionths of the currency, with the maximum of interrupted requests; None if no price is known, or if the
    costs of several runs are in several currencies, which are never summed."""
    currency: str = ""
    """Currency of the cost; empty if the records of the runs name none."""
    seconds: float = 0.0
    """Time of the runs, without waiting for people."""

    @property
    def cost(self) -> float | None:
        """In the currency of the price table."""
        return None if self.cost_micros is None else in_currency(self.cost_micros)

    @classmethod
    def sum(cls, used: Iterable[CaseUsage]) -> CaseUsage:
        """Return the sum. A cost is known if that of one run is, and all that are known have one currency."""
        each = list(used)
        priced = [one for one in each if one.cost_micros is not None]
        currencies = {one.currency for one in priced}
        costs = [one.cost_micros or 0 for one in priced] if len(currencies) == 1 else []
        return cls(
            requests=sum(one.requests for one in each),
            tokens=sum(one.tokens for one in each),
            cost_micros=sum(costs) if costs else None,
            currency=currencies.pop() if costs else "",
            seconds=sum(one.seconds for one in each),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of one case in one repetition."""

    case: str
    repetition: int
    """From 1."""
    run_id: str
    outcome: str
    """Outcome of the run; `waiting` if it asked a person; empty if it could not run."""
    reason: str = ""
    checks: tuple[CaseCheck, ...] = ()
    usage: CaseUsage
    error: str = ""
    """Why the case has no result: the run could not start or continue."""
    earlier: bool = field(default=False, compare=False)
    """Whether an earlier process of this evaluation executed it."""

    @property
    def status(self) -> CaseStatus:
        """`error` if a part has no verdict, else `passed` or `failed`."""
        if self.error or any(check.error for check in self.checks):
            return "error"
        return "passed" if all(check.passed for check in self.checks) else "failed"

    @property
    def faults(self) -> list[CaseCheck]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        data = asdict(self) | {"status": self.status, "checks": [check.as_json() for check in self.checks]}
        del data["earlier"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, earlier: bool = False) -> Self:
        """Read a result that `as_json` wrote. Raises KeyError, TypeError."""
        return cls(
            case=str(data["case"]),
            repetition=int(data["repetition"]),
            run_id=str(data["run_id"]),
            outcome=str(data["outcome"]),
            reason=str(data.get("reason", "")),
            checks=tuple(CaseCheck.from_json(one) for one in data["checks"]),
            usage=CaseUsage(**data["usage"]),
            error=str(data.get("error", "")),
            earlier=earlier,
        )


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """All repetitions of one case."""

    name: str
    results: tuple[CaseResult, ...]

    @property
    def passed(self) -> int:
        """Number of repetitions that passed."""
        return sum(one.status == "passed" for one in self.results)

    @property
    def pass_rate(self) -> float:
        """Share of the repetitions that passed."""
        return self.passed / len(self.results)

    @property
    def status(self) -> CaseStatus:
        """`passed` if every repetition did."""
        statuses = {one.status for one in self.results}
        return "error" if "error" in statuses else "failed" if "failed" in statuses else "passed"

    @property
    def usage(self) -> CaseUsage:
        """The sum of the repetitions."""
        return CaseUsage.sum(one.usage for one in self.results)


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """The results of an evaluation.

    Example:
        report = await evaluate(agent, load_cases("support.yaml"))
        assert report.passed, report.failing
    """

    evaluation_id: str
    """Run id of the evaluation in the journal."""
    name: str
    agent: str
    agent_version: str = ""
    results: tuple[CaseResult, ...] = ()
    """In the order of the cases and repetitions."""
    not_run: tuple[str, ...] = ()
    """Cases with a repetition that was not started, because a budget was used up or the evaluation was cancelled."""
    stopped: str = ""
    """Why cases were not run, as a sentence."""
    cancelled: bool = False
    """Whether a person has cancelled the evaluation; the next call starts another one."""
    baseline: EvaluationReport | None = None
    """The evaluation before it, if there is one."""

    @cached_property
    def cases(self) -> Mapping[str, CaseSummary]:
        """Name of a case -> its repetitions."""
        found: dict[str, list[CaseResult]] = {}
        for result in self.results:
            found.setdefault(result.case, []).append(result)
        return {name: CaseSummary(name, tuple(results)) for name, results in found.items()}

    @property
    def passed(self) -> bool:
        """Whether every repetition of every case was run and passed."""
        return not self.not_run and not self.failing

    @property
    def failing(self) -> list[str]:
        """Names of the cases with a repetition that did not pass."""
        return [name for name, case in self.cases.items() if case.status != "passed"]

    @property
    def usage(self) -> CaseUsage:
        """The sum of all runs."""
        return CaseUsage.sum(one.usage for one in self.results)

    @property
    def changes(self) -> EvaluationChanges | None:
        """The differences from the baseline; None without one."""
        return None if self.baseline is None else EvaluationChanges.between(self.baseline, self)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data; `from_json` reads it, without the baseline."""
        changes = self.changes
        return {
            "format": FORMAT,
            "evaluation_id": self.evaluation_id,
            "name": self.name,
            "agent": self.agent,
            "agent_version": self.agent_version,
            "passed": self.passed,
            "cases": {
                name: {"status": one.status, "passed": one.passed, "of": len(one.results)}
                for name, one in self.cases.items()
            },
            "usage": asdict(self.usage),
            "not_run": list(self.not_run),
            "stopped": self.stopped,
            "cancelled": self.cancelled,
            "changes": None if changes is None else asdict(changes),
            "results": [result.as_json() for result in self.results],
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read a report that `as_json` wrote. Raises ConfigError for other data."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ConfigError(
                "this is no report of an evaluation: give what `orchestrator eval --json` printed"
            )
        try:
            return cls(
                evaluation_id=str(data["evaluation_id"]),
                name=str(data["name"]),
                agent=str(data["agent"]),
                agent_version=str(data.get("agent_version", "")),
                results=tuple(map(CaseResult.from_json, data["results"])),
                not_run=tuple(map(str, data.get("not_run", ()))),
                stopped=str(data.get("stopped", "")),
                cancelled=bool(data.get("cancelled")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"the report of an evaluation is damaged ({type(error).__name__}): make it again"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationChanges:
    """How an evaluation differs from an earlier one. Usage is compared for the cases that both have."""

    evaluation_id: str
    """Run id of the earlier one."""
    newly_failing: tuple[str, ...] = ()
    """Cases that passed, and now have a repetition that does not."""
    newly_passing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    """Cases that the earlier one did not run."""
    gone: tuple[str, ...] = ()
    """Cases that only the earlier one ran."""
    requests: float = 0.0
    """Difference for one run of each case, averaged over its repetitions; more is positive."""
    tokens: float = 0.0
    cost: float | None = None
    """None unless both know the cost."""
    seconds: float = 0.0

    @classmethod
    def between(cls, before: EvaluationReport, now: EvaluationReport) -> Self:
        """Compare two evaluations."""
        old, new = before.cases, now.cases
        both = [name for name in new if name in old]
        first, second = (_averages([side[name] for name in both]) for side in (old, new))
        cost = None if first["cost"] is None or second["cost"] is None else second["cost"] - first["cost"]
        if before.usage.currency != now.usage.currency:
            cost = None
        return cls(
            evaluation_id=before.evaluation_id,
            newly_failing=tuple(one for one in both if _passes(old[one]) and not _passes(new[one])),
            newly_passing=tuple(one for one in both if _passes(new[one]) and not _passes(old[one])),
            new=tuple(one for one in new if one not in old),
            gone=tuple(one for one in old if one not in new and one not in now.not_run),
            requests=(second["requests"] or 0) - (first["requests"] or 0),
            tokens=(second["tokens"] or 0) - (first["tokens"] or 0),
            cost=cost,
            seconds=(second["seconds"] or 0) - (first["seconds"] or 0),
        )


def _passes(case: CaseSummary) -> bool:
    return case.status == "passed"


def _averages(cases: Sequence[CaseSummary]) -> dict[str, float | None]:
    """Return the usage of one run of each case, averaged over its repetitions."""
    found: dict[str, float | None] = {}
    for name in ("requests", "tokens", "cost", "seconds"):
        each = [(getattr(case.usage, name), len(case.results)) for case in cases]
        known = [value / count for value, count in each if value is not None]
        found[name] = sum(known) if known or not cases else None
    return found


def junit_xml(report: EvaluationReport) -> str:
    """Return the report as an XML document. Characters that XML cannot have are escaped."""
    failures = sum(one.status == "failed" for one in report.results)
    errors = sum(one.status == "error" for one in report.results)
    counts = {
        "tests": str(len(report.results) + len(report.not_run)),
        "failures": str(failures),
        "errors": str(errors),
        "skipped": str(len(report.not_run)),
        "time": f"{report.usage.seconds:.3f}",
    }
    root = Element("testsuites", {"name": escape(report.name), **counts})
    suite = SubElement(root, "testsuite", {"name": escape(report.name), **counts})
    about = {"evaluation": report.evaluation_id, "agent": report.agent, "agent_version": report.agent_version}
    _properties(suite, about)
    for result in report.results:
        _add_result(suite, report, result)
    for name in report.not_run:
        case = SubElement(
            suite, "testcase", {"name": escape(name), "classname": escape(report.name), "time": "0.000"}
        )
        SubElement(case, "skipped", {"message": escape(report.stopped)})
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_result(suite: Element, report: EvaluationReport, result: CaseResult) -> None:
    several = len(report.cases[result.case].results) > 1
    name = f"{result.case} [{result.repetition}]" if several else result.case
    named = {"name": escape(name), "classname": escape(report.name), "time": f"{result.usage.seconds:.3f}"}
    case = SubElement(suite, "testcase", named)
    usage = result.usage
    _properties(
        case,
        {
            "run": result.run_id,
            "outcome": result.outcome,
            "requests": str(usage.requests),
            "tokens": str(usage.tokens),
            "cost": "" if usage.cost_micros is None else amount(usage.cost_micros, usage.currency),
        },
    )
    if result.status == "passed":
        return
    lines = [result.error] if result.error else [f"{check.name}: {check.why}" for check in result.faults]
    fault = SubElement(
        case,
        "error" if result.status == "error" else "failure",
        {"message": escape(lines[0]), "type": result.outcome or "error"},
    )
    fault.text = escape("\n".join(lines))


def _properties(parent: Element, values: dict[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in values.items():
        if value:
            SubElement(properties, "property", {"name": name, "value": escape(value)})
