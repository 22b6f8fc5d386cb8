"""`orchestrator backtest`: the effect that another policy would have had on recorded runs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import limits_from
from orchestrator.cli.output import check_picture, save_picture, say, say_json, say_more, shown
from orchestrator.cli.runs.export import FORMAT
from orchestrator.cli.runs.listing import FilterOptions
from orchestrator.cli.runs.phrase import many, seconds_in, span, table
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file, read_lines
from orchestrator.files.named_object import imported
from orchestrator.kernel.branch import Join, JoinRule
from orchestrator.runtime.backtest.backtest import sweep
from orchestrator.runtime.backtest.comparison import RunComparison, Saving
from orchestrator.runtime.backtest.joins import JoinChange, JoinComparison, JoinReport, backtest_joins
from orchestrator.runtime.backtest.policy import Policy, SweepRange
from orchestrator.runtime.backtest.report import (
    CHANGE_WORDS,
    SWEEP_COLUMNS,
    Report,
    backtest_svg,
    report_rows,
)
from orchestrator.runtime.backtest.trace import RunTrace
from orchestrator_guards.money import amounts, in_currency

_NAMED: Final = 20
"""Most runs that the table names."""
_FORMULA: Final = frozenset("=+-@")
CSV_COLUMNS: Final = (
    *("run_id", "agent", "outcome", "reason", "change", "effect", "guard", "observed", "limit", "turn"),
    *(
        "requests",
        "tokens",
        "cost",
        "currency",
        "seconds",
        "assumed_effect",
        "assumed_guard",
        "assumed_turn",
        "left_out",
    ),
)
JOIN_COLUMNS: Final = (
    *("run_id", "state", "visit", "outcome", "change", "recorded", "observed", "limit"),
    *("tested", "tested_observed", "tested_limit", "left_out"),
)
_JOIN: Final = re.compile(
    r"(?P<state>[^=]+)=(?:(?P<rule>all|any|ended)|(?P<counted>first|quorum|ended):(?P<count>[1-9][0-9]{0,8}))"
)
_JOIN_CHANGES: Final[Mapping[JoinChange, str]] = {
    "none": "none",
    "enough": "enough, and were too few",
    "too_few": "too few, and were enough",
}
_NONE: Final = "none"
"""In place of a guardrail: the policy has none."""
_SAVED: Final = ("requests", "tokens", "cost", "time")


@dataclass(frozen=True, kw_only=True)
class BacktestOptions(FilterOptions, given.JournalOptions):
    """The command line of `backtest`."""

    files: Annotated[
        tuple[Path, ...],
        typer.Argument(
            metavar="FILE",
            help="Runs that `runs export` wrote, instead of those of the journal.",
            show_default=False,
        ),
    ] = ()
    limits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="Limits of the policy: the members of Limits, or a table [limits]."
        ),
    ] = None
    set: Annotated[
        tuple[str, ...],
        typer.Option(
            "--set", metavar="NAME=VALUE", help="One limit of the policy, e.g. max_iterations=30; 0 is off."
        ),
    ] = ()
    guard: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="MODULE:FUNCTION", help="A guard of yours, asked at each decision about another turn."
        ),
    ] = ()
    input_guard: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="MODULE:NAME",
            help="A guardrail in place of those of the inputs; `none` for no guardrail.",
        ),
    ] = ()
    output_guard: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="MODULE:NAME",
            help="A guardrail in place of those of the outputs; `none` for no guardrail.",
        ),
    ] = ()
    join: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="STATE=JOIN",
            help="Another join of a state with branches, instead of a policy: all, any, first:N, quorum:N, ended or "
            "ended:N.",
        ),
    ] = ()
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=A..B", help="One row for each value of a limit, e.g. max_no_progress=2..8."
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Runs that started in the last 90s, 15m, 12h, 7d.")
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw benefit against harm: *.svg or *.png."),
    ] = None
    csv: Annotated[
        bool,
        typer.Option("--csv", help="Print one row for each run, decision of --join, or value of --sweep."),
    ] = False


@spread
def backtest_runs(options: BacktestOptions) -> int:
    """Evaluate another policy on recorded runs.

    No model and no tool is called. The guards of each run are evaluated again on their recorded inputs, in order, up
    to the first decision or message to the model that differs. The report says which runs would have stopped earlier,
    split into those that had completed (harm) and those that had failed, stalled or run out (benefit), and what that
    saves. With --join it is about the decisions on the branches of a state, in the runs of any machine.
    """
    if options.csv and options.json:
        raise ConfigError("--csv prints rows and --json prints the report: give one of them")
    if options.plot is not None:
        check_picture(options.plot)
    joins = joins_of(options)
    policies = {} if joins else policies_of(options)
    since = None if options.since is None else time.time() - seconds_in(options.since)
    if options.files and (since is not None or any(one is not None for one in options.conditions.values())):
        raise ConfigError("conditions select runs of a journal; give FILE or conditions, not both")
    if joins:
        return _backtest_joins(options, joins, since)
    first: list[RunComparison] = []  # with a difference, for the table

    def take(run: RunComparison) -> None:
        if options.csv:
            _print_row(csv_row(run))
        elif run.change != "none" and len(first) < _NAMED:
            first.append(run)

    each = None if options.sweep else take
    if options.csv:
        _print_row(("value", *SWEEP_COLUMNS) if options.sweep else CSV_COLUMNS)

    async def work(store: OpenStore) -> list[Report]:
        return await sweep(store.runs, policies, since=since, each=each, **options.conditions)

    if options.files:
        reports = asyncio.run(sweep(exported(options.files), policies, each=each))
    else:
        reports = at_journal(options.journal, work, only_reads=True)
    _print(options, next(iter(policies.values())), reports, first)
    if options.plot is not None:
        save_picture(options.plot, backtest_svg(reports, options.sweep or ""))
    return Exit.COMPLETED


def policies_of(options: BacktestOptions) -> dict[str, Policy]:
    """Return label -> policy: one for each value of a sweep, else one without a label. Raises ConfigError, OSError."""
    given: dict[str, Any] = {}
    if (file := options.limits) is not None:
        try:
            members: object = tomllib.loads(read_file(file).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not TOML ({error})") from None
        if isinstance(members, dict) and isinstance(members.get("limits"), dict):
            members = members["limits"]
        if not isinstance(members, dict) or not members:
            raise ConfigError(f"{file} has no limits: give members of Limits, as max_iterations = 30")
        limits = limits_from((), members)
        given |= {name: getattr(limits, name) for name in members}
    limits = limits_from(options.set, {})
    names = (pair.partition("=")[0].strip() for pair in options.set)
    given |= {name: getattr(limits, name) for name in names}
    stages = _guardrails(options.input_guard), _guardrails(options.output_guard)
    policy = Policy(given, [imported(spec, "guard") for spec in options.guard], *stages)
    if options.sweep is not None:
        return SweepRange.of(options.sweep).policies(policy)
    if not given and not options.guard and stages == (None, None):
        raise ConfigError(
            "no policy to test: give --set, --limits, --guard, --input-guard, --output-guard, --sweep or --join"
        )
    return {"": policy}


def _guardrails(specs: Sequence[str]) -> list[Any] | None:
    """Return the guardrails of a stage; None to keep those of the runs. Raises ConfigError."""
    if _NONE in specs and len(specs) > 1:
        raise ConfigError(f"{_NONE!r} means no guardrail; give it alone, or only guardrails")
    return None if not specs else [imported(spec, "guardrail") for spec in specs if spec != _NONE]


def joins_of(options: BacktestOptions) -> dict[str, Join]:
    """Return state -> join to test. Raises ConfigError."""
    joins: dict[str, Join] = {}
    for text in options.join:
        found = _JOIN.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"join {text!r:.80} is not of the form STATE=JOIN; a join is all, any, first:N, quorum:N, ended or "
                "ended:N with N from 1, as mapping=ended:90"
            )
        if found["state"] in joins:
            raise ConfigError(f"state {found['state']!r} has two joins; give --join once for each state")
        rule = cast("JoinRule", found["rule"] or found["counted"])
        joins[found["state"]] = Join(rule, int(found["count"] or 0))
    if joins:
        options_of_policies = (
            "limits",
            "set",
            "guard",
            "input_guard",
            "output_guard",
            "sweep",
            "plot",
            "files",
        )
        for name in options_of_policies:
            if getattr(options, name):
                other = "FILE" if name == "files" else f"--{name.replace('_', '-')}"
                raise ConfigError(
                    f"--join tests joins of a journal, without {other}: run the command for each"
                )
    return joins


def exported(files: Iterable[Path]) -> Iterator[RunTrace]:
    """Yield the trace of each exported run, one line after the other. Raises ConfigError, or OSError."""
    for file in files:
        for number, line in enumerate(read_lines(file), 1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"{where}: this is not JSON; give files that `runs export` wrote") from None
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise ConfigError(
                    f"{where}: this is no exported run; give files that `runs export` wrote without --content"
                )
            if (trace := data.get("trace")) is None:
                raise ConfigError(
                    f"{where}: an older version exported this run, without its decisions; export it again"
                )
            try:
                yield RunTrace.from_json(trace)
            except ValueError as error:
                raise ConfigError(f"{where}: {shown(str(error), 200)}") from None


# ---- joins ----


def _backtest_joins(options: BacktestOptions, joins: Mapping[str, Join], since: float | None) -> int:
    first: list[JoinComparison] = []  # with another decision, for the table
    conditions = options.conditions
    if since is not None:
        conditions["started_since"] = since

    def take(one: JoinComparison) -> None:
        if options.csv:
            _print_row(join_row(one))
        elif one.change != "none" and len(first) < _NAMED:
            first.append(one)

    if options.csv:
        _print_row(JOIN_COLUMNS)

    async def work(store: OpenStore) -> JoinReport:
        return await backtest_joins(store.runs, joins, each=take, **conditions)

    report = at_journal(options.journal, work, only_reads=True)
    if options.json:
        tested = {state: str(join) for state, join in joins.items()}
        say_json({"joins": tested} | report.as_json())
    elif not options.csv:
        print_joins(report, first)
    return Exit.COMPLETED


def join_row(one: JoinComparison) -> tuple[object, ...]:
    """Return the cells of JOIN_COLUMNS."""
    before, after = one.recorded, one.tested
    decided = ("", "", "") if before is None else (before.ok, before.observed, before.limit)
    tested = ("", "", "") if after is None else (after.ok, after.observed, after.limit)
    return one.run_id, one.state, one.visit, one.outcome, one.change, *decided, *tested, one.left_out


def print_joins(report: JoinReport, first: Sequence[JoinComparison]) -> None:
    """Print the report about joins, and the first decisions that would be others."""
    say(
        f"{many(report.decisions, 'decision')} evaluated" if report.decisions else "no decision was evaluated"
    )
    if report.decisions:
        rows = [
            (state, _JOIN_CHANGES[change], f"{count:,}")
            for (state, change), count in sorted(report.changes.items())
        ]
        for line in table(("state", "change", "decisions"), rows, right=("decisions",)):
            say(line)
    if first:
        named = [
            (
                one.run_id,
                one.outcome or "(open)",
                one.state,
                str(one.visit),
                *("" if verdict is None else verdict.explain() for verdict in (one.recorded, one.tested)),
            )
            for one in first
        ]
        say("")
        for line in table(
            ("run", "outcome", "state", "visit", "recorded", "tested"), named, right=("visit",)
        ):
            say(line)
        if (more := report.enough + report.too_few - len(first)) > 0:
            say(f"  … and {many(more, 'decision')} more: --csv prints all")
    for reason, count in sorted(report.left_out.items()):
        say(f"left out: {many(count, 'decision')}: {shown(reason, 300)}")
    if report.damage:
        say(f"left out: {shown(report.damage, 300)}")


# ---- output ----


def _print(
    options: BacktestOptions, policy: Policy, reports: Sequence[Report], first: Sequence[RunComparison]
) -> None:
    swept = (options.sweep or "").partition("=")[0]
    if options.csv:
        for report in reports if options.sweep else ():
            _print_row(sweep_row(report))
    elif options.json:
        limits = {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in policy.limits.items()
            if name != swept
        }
        plain: dict[str, Any] = {"limits": limits, "ignored": list(policy.ignored)}
        if options.sweep:
            say_json(plain | {"sweep": options.sweep, "values": [report.as_json() for report in reports]})
        else:
            say_json(plain | reports[0].as_json())
    elif options.sweep:
        heads = (swept, *SWEEP_COLUMNS)
        for line in table(heads, [tuple(map(str, sweep_row(report))) for report in reports], right=heads):
            say(line)
        _print_left_out(reports[0])
    else:
        print_report(reports[0], first)
    if policy.ignored and not options.json and not options.csv:
        say(f"not evaluated, because no decision depends on it: {', '.join(policy.ignored)}")


def _print_row(cells: Iterable[object]) -> None:
    """Print a line of CSV whose cells no spreadsheet evaluates as a formula."""
    text = io.StringIO()
    safe = [f"'{cell}" if isinstance(cell, str) and cell[:1] in _FORMULA else cell for cell in cells]
    csv.writer(text, lineterminator="\n").writerow(safe)
    say_more(text.getvalue())


def csv_row(run: RunComparison) -> tuple[object, ...]:
    """Return the cells of CSV_COLUMNS."""
    found, later, saved = run.difference, run.assumed, run.saved
    return (
        *(run.run_id, run.agent, run.outcome, run.reason, run.change, run.effect or ""),
        *((found.guard, found.observed, found.limit, found.turn) if found else ("", "", "", "")),
        *(saved.requests, saved.tokens, in_currency(sum(saved.costs.values()))),
        *(", ".join(saved.costs), round(saved.seconds, 3)),
        *(run.assumed_effect or "", later.guard if later else "", later.turn if later else ""),
        run.left_out,
    )


def sweep_row(report: Report) -> tuple[object, ...]:
    """Return the label and the figures of one value of a sweep."""
    return report.label, *(value(report) for value in SWEEP_COLUMNS.values())


def print_report(report: Report, first: Sequence[RunComparison]) -> None:
    """Print the report of one policy, and the first runs with a difference."""

    def cells(saved: Saving | None) -> tuple[str, str, str, str]:
        if saved is None:
            return "", "", "", ""
        return f"{saved.requests:,}", f"{saved.tokens:,}", amounts(saved.costs), span(saved.seconds)

    say(f"{many(report.runs, 'run')} evaluated" if report.runs else "no run was evaluated")
    if report.runs:
        rows = [(row.name, f"{row.runs:,}", *cells(row.saved)) for row in report_rows(report)]
        for line in table(("first difference", "runs", *_SAVED), rows, right=("runs", *_SAVED)):
            say(line)
    if report.guards:
        counts = [(guard, CHANGE_WORDS[change], f"{runs:,}") for (guard, change), runs in report.by_guard]
        say("")
        for line in table(("guard", "change", "runs"), counts, right=("runs",)):
            say(line)
    if first:
        named = [
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
        for line in table(("run", "outcome", "change", "effect", "guard", "turn"), named, right=("turn",)):
            say(line)
        if (more := report.runs - report.unchanged - len(first)) > 0:
            say(f"  … and {many(more, 'run')} more: --csv prints all")
    _print_left_out(report)


def _print_left_out(report: Report) -> None:
    for reason, one in report.left_out.items():
        say(f"left out: {many(one.runs, 'run')} ({shown(one.first, 80)}): {shown(reason, 300)}")
    if report.damage:
        say(f"left out: {shown(report.damage, 300)}")
