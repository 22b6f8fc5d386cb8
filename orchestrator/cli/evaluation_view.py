"""The report of an evaluation as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.cli.output import TextColor, coloured, painted, say, shown
from orchestrator.cli.runs.phrase import heading, many, span, table
from orchestrator.runtime.evaluation.report import (
    CaseResult,
    CaseSummary,
    EvaluationChanges,
    EvaluationReport,
)

_HEADS: Final = ("result", "case", "passed", "requests", "tokens", "cost", "time")
_RIGHT: Final = ("passed", "requests", "tokens", "cost", "time")
_LONGEST: Final = 1_000
"""Most characters of a line about a fault."""


def print_result(result: CaseResult) -> None:
    """Print one line about a result, while others are still running."""
    line = f"{result.status}  {shown(result.case, 120, keep='')}  {span(result.usage.seconds)}"
    say(painted(line, TextColor.FAINT, colour=coloured()))


def print_report(report: EvaluationReport) -> None:
    """Print the table of the cases, the faults, the differences from the evaluation before, and the totals."""
    cases = list(report.cases.values())
    head, *rows = table(_HEADS, [_row(case) for case in cases], right=_RIGHT)
    say(heading(head))
    for case, row in zip(cases, rows[-len(cases) :] if cases else (), strict=True):
        paint = TextColor.ADDED if case.status == "passed" else TextColor.REMOVED
        say(painted(row, paint, colour=coloured()))
    for result in report.results:
        if result.status != "passed":
            _print_faults(result, report.cases[result.case])
    if (changes := report.changes) is not None:
        _print_changes(changes)
    _print_totals(report)


def _row(case: CaseSummary) -> tuple[str, ...]:
    usage = case.usage
    cost = "" if usage.cost is None else f"{usage.cost:g}"
    of = f"{case.passed}/{len(case.results)}"
    return case.status, case.name, of, f"{usage.requests:,}", f"{usage.tokens:,}", cost, span(usage.seconds)


def _print_faults(result: CaseResult, case: CaseSummary) -> None:
    which = f" ({result.repetition} of {len(case.results)})" if len(case.results) > 1 else ""
    say("")
    say(heading(f"{result.status}: {shown(result.case, 200, keep='')}{which}, run {result.run_id}"))
    if result.error:
        say(f"  {shown(result.error, _LONGEST, keep='')}")
    for check in result.faults:
        say(f"  {shown(check.name, 200, keep='')}: {shown(check.why, _LONGEST, keep='')}")


def _print_changes(changes: EvaluationChanges) -> None:
    say("")
    say(heading(f"compared with {shown(changes.evaluation_id, 100, keep='')}"))
    for what in ("newly_failing", "newly_passing", "new", "gone"):
        if names := getattr(changes, what):
            say(f"  {what.replace('_', ' ')}: {_named(names)}")
    cost = "" if changes.cost is None else f", cost {changes.cost:+g}"
    used = f"requests {changes.requests:+g}, tokens {changes.tokens:+,g}{cost}, time {changes.seconds:+.3f} s"
    say(f"  one run of each case: {used}")


def _named(names: Sequence[str]) -> str:
    return ", ".join(shown(name, 200, keep="") for name in names)


def _print_totals(report: EvaluationReport) -> None:
    usage, cases = report.usage, report.cases.values()
    passed = sum(case.status == "passed" for case in cases)
    cost = "" if usage.cost is None else f", cost {usage.cost:g}"
    say("")
    say(
        f"{passed} of {many(len(cases) + len(set(report.not_run) - report.cases.keys()), 'case')} passed: "
        f"{many(usage.requests, 'request')}, {many(usage.tokens, 'token')}{cost}, {span(usage.seconds)}"
        f"; evaluation {report.evaluation_id}"
    )
    if earlier := sum(result.earlier for result in report.results):
        say(f"{many(earlier, 'result')} of an earlier process of this evaluation")
    if report.not_run:
        then = "" if report.cancelled else "; the same command with a larger --budget continues"
        say(f"not run: {_named(report.not_run)}: {report.stopped}{then}")
