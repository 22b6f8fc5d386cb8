"""`orchestrator backtest`: the effect that another policy would have had on recorded runs."""

from __future__ import annotations

import csv
import io
import json
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orchestrator.cli.backtest_group import BacktestOptions
from orchestrator.cli.backtest_view import (
    CSV_COLUMNS,
    SWEEP_HEADS,
    csv_row,
    print_report,
    print_sweep,
    sweep_row,
)
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import imported, limits_from
from orchestrator.cli.output import say, say_json, say_more, shown
from orchestrator.cli.picture import check_picture, save_picture
from orchestrator.cli.runs.export import FORMAT
from orchestrator.cli.runs.phrase import seconds_in
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file, read_lines
from orchestrator.runtime.backtest.backtest import sweep
from orchestrator.runtime.backtest.comparison import RunComparison
from orchestrator.runtime.backtest.plot import backtest_svg
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.backtest.report import Report
from orchestrator.runtime.backtest.sweep_range import SweepRange
from orchestrator.runtime.backtest.trace import RunTrace

_NAMED: Final = 20
"""Most runs that the table names."""


@dataclass(slots=True)
class _Collected:
    """The first runs with a difference, for the table; every run, for CSV."""

    csv: bool
    first: list[RunComparison] = field(default_factory=list)

    def take(self, run: RunComparison) -> None:
        """Take the comparison of one run."""
        if self.csv:
            say_more(_csv_line(csv_row(run)))
        elif run.change != "none" and len(self.first) < _NAMED:
            self.first.append(run)


def backtest_runs(options: BacktestOptions) -> int:
    """Backtest the policy of the options and print the report. Raises ConfigError before anything is read."""
    if options.csv and options.json:
        raise ConfigError("--csv prints rows and --json prints the report: give one of them")
    if options.plot is not None:
        check_picture(options.plot)
    policies = policies_of(options)
    since = None if options.since is None else time.time() - seconds_in(options.since)
    if options.files and (since is not None or any(one is not None for one in options.conditions.values())):
        raise ConfigError("conditions select runs of a journal; give FILE or conditions, not both")
    collected = _Collected(options.csv)
    each = None if options.sweep else collected.take
    if options.csv:
        say_more(_csv_line(SWEEP_HEADS if options.sweep else CSV_COLUMNS))
    reports = _reports(options, policies, since, each)
    _print(options, policies, reports, collected)
    if options.plot is not None:
        save_picture(options.plot, backtest_svg(reports, options.sweep or ""))
    return Exit.COMPLETED


def _reports(
    options: BacktestOptions,
    policies: Mapping[str, Policy],
    since: float | None,
    each: Callable[[RunComparison], None] | None,
) -> list[Report]:
    if options.files:
        import asyncio

        return asyncio.run(sweep(exported(options.files), policies, each=each))

    async def work(store: OpenStore) -> list[Report]:
        return await sweep(store.runs, policies, since=since, each=each, **options.conditions)

    return at_journal(options.journal, work, only_reads=True)


# ---- the policy ----


def policies_of(options: BacktestOptions) -> dict[str, Policy]:
    """Return label -> policy: one for each value of a sweep, else one without a label. Raises ConfigError."""
    given = {**_limits_in(options.limits), **_limits_set(options.set)}
    guards = [imported(spec, "guard") for spec in options.guard]
    if options.sweep is None:
        if not given and not guards:
            raise ConfigError("no policy to test: give --set, --limits, --guard or --sweep")
        return {"": Policy(given, guards)}
    return SweepRange.of(options.sweep).policies(given, guards)


def _limits_set(pairs: Iterable[str]) -> dict[str, Any]:
    found = limits_from(pairs, {})
    return {name: getattr(found, name) for name in (pair.partition("=")[0].strip() for pair in pairs)}


def _limits_in(file: Path | None) -> dict[str, Any]:
    """Return the limits in a file. Raises ConfigError if it is not TOML or has another member, or OSError."""
    if file is None:
        return {}
    try:
        members: object = tomllib.loads(read_file(file).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML ({error})") from None
    if isinstance(members, dict) and isinstance(members.get("limits"), dict):
        members = members["limits"]
    if not isinstance(members, dict) or not members:
        raise ConfigError(f"{file} has no limits: give members of Limits, as max_iterations = 30")
    found = limits_from((), members)
    return {name: getattr(found, name) for name in members}


# ---- files ----


def exported(files: Iterable[Path]) -> Iterator[RunTrace]:
    """Yield the trace of each exported run, one line after the other. Raises ConfigError, or OSError."""
    for file in files:
        for number, line in enumerate(read_lines(file), 1):
            if line.strip():
                yield _exported(line, f"{file}, line {number}")


def _exported(line: bytes, where: str) -> RunTrace:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: this is not JSON; give files that `runs export` wrote") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(
            f"{where}: this is no exported run; give files that `runs export` wrote without --content"
        )
    trace = data.get("trace")
    if trace is None:
        raise ConfigError(
            f"{where}: an older version exported this run, without its decisions; export it again"
        )
    try:
        return RunTrace.from_json(trace)
    except ValueError as error:
        raise ConfigError(f"{where}: {shown(str(error), 200)}") from None


# ---- output ----


def _print(
    options: BacktestOptions, policies: Mapping[str, Policy], reports: list[Report], collected: _Collected
) -> None:
    first = next(iter(policies.values()))
    swept = (options.sweep or "").partition("=")[0]
    if options.csv:
        for report in reports if options.sweep else ():
            say_more(_csv_line(sweep_row(report)))
    elif options.json:
        plain: dict[str, Any] = {"limits": _plain_limits(first, swept), "ignored": list(first.ignored)}
        if options.sweep:
            say_json(plain | {"sweep": options.sweep, "values": [report.as_json() for report in reports]})
        else:
            say_json(plain | reports[0].as_json())
    elif options.sweep:
        print_sweep(swept, reports)
    else:
        print_report(reports[0], collected.first)
    if first.ignored and not options.json and not options.csv:
        say(f"not evaluated, because no decision depends on it: {', '.join(first.ignored)}")


def _plain_limits(policy: Policy, swept: str) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in policy.limits.items()
        if name != swept
    }


def _csv_line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_safe(cell) for cell in cells])
    return text.getvalue()


def _safe(cell: object) -> object:
    """Return a cell that a spreadsheet does not evaluate as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in _FORMULA else cell


_FORMULA: Final = frozenset("=+-@")
