"""The report of a backtest as tables and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.cli.output import say, shown
from orchestrator.cli.runs.phrase import many, span, table
from orchestrator.runtime.backtest.comparison import RunComparison, Saving
from orchestrator.runtime.backtest.report import Report
from orchestrator.runtime.backtest.report_table import CHANGE_WORDS, SWEEP_COLUMNS, report_rows
from orchestrator_guards.money import in_currency

CSV_COLUMNS: Final = (
    *("run_id", "agent", "outcome", "reason", "change", "effect", "guard", "observed", "limit", "turn"),
    *("requests", "tokens", "cost", "seconds", "assumed_effect", "assumed_guard", "assumed_turn", "left_out"),
)
_SAVED: Final = ("requests", "tokens", "cost", "time")
_RIGHT: Final = ("runs", *_SAVED)


def csv_row(run: RunComparison) -> tuple[object, ...]:
    """Return the cells of CSV_COLUMNS."""
    found, later, saved = run.difference, run.assumed, run.saved
    return (
        *(run.run_id, run.agent, run.outcome, run.reason, run.change, run.effect or ""),
        *((found.guard, found.observed, found.limit, found.turn) if found else ("", "", "", "")),
        *(saved.requests, saved.tokens, in_currency(saved.cost_micros), round(saved.seconds, 3)),
        *(run.assumed_effect or "", later.guard if later else "", later.turn if later else ""),
        run.left_out,
    )


def print_report(report: Report, first: Sequence[RunComparison]) -> None:
    """Print the report of one policy, and the first runs with a difference."""
    say(f"{many(report.runs, 'run')} evaluated" if report.runs else "no run was evaluated")
    if report.runs:
        rows = [(row.name, f"{row.runs:,}", *_cells(row.saved)) for row in report_rows(report)]
        for line in table(("first difference", "runs", *_SAVED), rows, right=_RIGHT):
            say(line)
    _print_guards(report)
    _print_runs(report, first)
    _print_left_out(report)


def _cells(saved: Saving | None) -> tuple[str, str, str, str]:
    if saved is None:
        return "", "", "", ""
    return (
        f"{saved.requests:,}",
        f"{saved.tokens:,}",
        f"{in_currency(saved.cost_micros):g}",
        span(saved.seconds),
    )


def _print_guards(report: Report) -> None:
    if not report.guards:
        return
    rows = [(guard, CHANGE_WORDS[change], f"{runs:,}") for (guard, change), runs in report.by_guard]
    say("")
    for line in table(("guard", "change", "runs"), rows, right=("runs",)):
        say(line)


def _print_runs(report: Report, first: Sequence[RunComparison]) -> None:
    if not first:
        return
    rows = [
        (
            run.run_id,
            run.outcome or "(open)",
            CHANGE_WORDS[run.change],
            run.effect or "",
            run.difference.guard if run.difference else "",
            str(run.difference.turn) if run.difference else "",
        )
        for run in first
    ]
    say("")
    for line in table(("run", "outcome", "change", "effect", "guard", "turn"), rows, right=("turn",)):
        say(line)
    if (more := report.runs - report.unchanged - len(first)) > 0:
        say(f"  … and {many(more, 'run')} more: --csv prints all")


def _print_left_out(report: Report) -> None:
    for reason, one in report.left_out.items():
        say(f"left out: {many(one.runs, 'run')} ({shown(one.first, 80)}): {shown(reason, 300)}")
    if report.damage:
        say(f"left out: {shown(report.damage, 300)}")


# ---- a sweep ----

SWEEP_HEADS: Final = ("value", *SWEEP_COLUMNS)


def sweep_row(report: Report) -> tuple[object, ...]:
    """Return the cells of SWEEP_HEADS."""
    return report.label, *(value(report) for value in SWEEP_COLUMNS.values())


def print_sweep(name: str, reports: Sequence[Report]) -> None:
    """Print one row for each value."""
    heads = (name, *SWEEP_COLUMNS)
    rows = [tuple(str(cell) for cell in sweep_row(report)) for report in reports]
    for line in table(heads, rows, right=heads):
        say(line)
    _print_left_out(reports[0])
