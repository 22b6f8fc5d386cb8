"""`orchestrator eval`: run an evaluation set against an agent, and print the report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.fleet import made, named_target
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import (
    TextColor,
    coloured,
    complain,
    is_terminal,
    output_on_stderr,
    painted,
    say,
    say_json,
    shown,
)
from orchestrator.cli.run import logging_to
from orchestrator.cli.runs.phrase import heading, many, span, table
from orchestrator.cli.runs.store import OpenStore, journal_file
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
from orchestrator.files.atomic import atomic_write
from orchestrator.files.bounded import read_file
from orchestrator.files.named_object import imported
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.kernel.fact import Observer
from orchestrator.runtime.evaluation.case import EvaluationCase
from orchestrator.runtime.evaluation.case_file import load_cases
from orchestrator.runtime.evaluation.check import named_judges
from orchestrator.runtime.evaluation.evaluation import (
    CaseSelection,
    EvaluationBudget,
    evaluate,
    stored_report,
)
from orchestrator.runtime.evaluation.report import CaseResult, CaseSummary, EvaluationReport, junit_xml
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.settings import build
from orchestrator_guards.money import amount

_HEADS: Final = ("result", "case", "passed", "requests", "tokens", "cost", "time")
_RIGHT: Final = ("passed", "requests", "tokens", "cost", "time")
_LONGEST: Final = 1_000
"""Most characters of a line about a fault."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions(given.DisplayOptions):
    """The command line of `eval`."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The cases: *.yaml, *.yml or *.jsonl.", show_default=False)
    ]
    agent: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The agent: a function of the journal, or of the journal and the observers.",
        ),
    ]
    judges: Annotated[
        tuple[str, ...],
        typer.Option(
            "--judge",
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function of a CaseRun: a bool, a score or a Judgement. Repeatable.",
        ),
    ] = ()
    cases: Annotated[
        tuple[str, ...], typer.Option("--case", metavar="NAME", help="Only this case; repeatable.")
    ] = ()
    tags: Annotated[
        tuple[str, ...], typer.Option("--tag", metavar="TAG", help="Only cases with this tag; repeatable.")
    ] = ()
    repeat: Annotated[int, typer.Option(metavar="N", help="Run each case N times.")] = 1
    concurrency: Annotated[int, typer.Option(metavar="N", help="Most runs at once.")] = 4
    budget: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=VALUE",
            help="Start no case after this is used up: cost, tokens or seconds. Repeatable.",
        ),
    ] = ()
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the evaluation. Default: that of the file.", show_default=False
        ),
    ] = None
    new: Annotated[
        bool, typer.Option("--new", help="Start again, instead of continuing an interrupted evaluation.")
    ] = False
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|RUN",
            help="Compare with this report of --json, or this evaluation of the journal. Default: the last one.",
            show_default=False,
        ),
    ] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML to a file, which is replaced.")
    ] = None


@spread
def run_evaluation(options: EvalOptions) -> int:
    """Run an evaluation set against an agent.

    Each case of FILE is a run in the journal, whose outcome, output, path, tools and usage are checked; judges are
    functions of yours. An interrupted evaluation is continued by the same command: cases with a result are not run
    again. The report is compared with the last evaluation. The exit code is 0 if every case passed, 1 if one did not,
    4 if a budget was used up, 6 after Ctrl-C.
    """
    settings = project_settings()
    judges = [(name, imported(target, "judge")) for name, target in map(named_target, options.judges)]
    if len(dict(judges)) < len(judges):
        raise ConfigError("two judges have one name; give one another name: --judge NAME=MODULE:FUNCTION")
    named = named_judges(dict(judges))
    limits = {}
    for pair in options.budget:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"budget {shown(pair, 80)!r} is not of the form NAME=VALUE, as cost=1.50")
        limits[name.strip()] = value.strip()
    selection = CaseSelection(names=options.cases, tags=options.tags, repeat=options.repeat)
    parts: dict[str, Any] = {
        "name": options.name or options.file.stem,
        "judges": named,
        "concurrency": options.concurrency,
        "budget": build(EvaluationBudget, limits, "budget"),
        "selection": selection,
        "new": options.new,
        "each": print_result if is_terminal() and not options.json else None,
    }
    if options.junit is not None and (options.junit.is_dir() or not options.junit.parent.is_dir()):
        raise ConfigError(f"--junit {options.junit} is no file in a folder that exists")
    cases = load_cases(options.file)
    selection.of(cases)
    with logging_to(options.log, settings.log_level) as logs:
        return run_async(_evaluation(options, cases, parts, logs))


async def _evaluation(
    options: EvalOptions, cases: Sequence[EvaluationCase], parts: dict[str, Any], logs: Sequence[Observer]
) -> int:
    async def work() -> EvaluationReport:
        journal = journal_at(journal_file(options.journal))
        with beginning():
            await journal.__aenter__()
        try:
            baseline = await _baseline(options.baseline, OpenStore(journal, options.journal))
            with output_on_stderr():  # the log of the agent, and what its tools print
                report = await evaluate(_agent(options.agent, journal, logs), cases, **parts)
            return report if baseline is None else replace(report, baseline=baseline)
        finally:
            await journal.close()

    working = asyncio.ensure_future(work())
    with on_signal(working.cancel):
        try:
            report = await working
        except asyncio.CancelledError:
            if not working.cancelled():  # the command itself was cancelled
                working.cancel()
                raise
            complain("stopped; the same command continues the evaluation, --new starts another one")
            return Exit.CANCELLED
    if options.junit is not None:
        atomic_write(options.junit, junit_xml(report).encode())
    if options.json:
        say_json(report.as_json())
    else:
        print_report(report)
    if report.cancelled:
        return Exit.CANCELLED
    if report.failing:
        return Exit.FAILED
    return Exit.BUDGET_EXCEEDED if report.not_run else Exit.COMPLETED


def _agent(target: str, journal: StoredJournal, logs: Sequence[Observer]) -> Any:
    """Return the agent. Raises ConfigError if its runs cannot be evaluated in this journal."""
    agent = made(target, journal, list(logs))
    if not isinstance(agent, Agent):
        raise ConfigError(
            f"agent {target!r} is of the class {type(agent).__name__}; an evaluation is of an Agent"
        )
    if agent.hosting.journal is not journal:
        raise ConfigError(f"agent {target!r} has another journal than the one that it is given")
    return agent


async def _baseline(given: str | None, store: OpenStore) -> EvaluationReport | None:
    """Return the report that a file or a run of the journal has. Raises ConfigError, OSError."""
    if given is None:
        return None
    found = _report_in(Path(given))
    return await stored_report(await store.run(given), store.journal) if found is None else found


def _report_in(file: Path) -> EvaluationReport | None:
    """Return the report in a file; None if there is no such file. Raises ConfigError, OSError."""
    if not file.is_file():
        return None
    try:
        data = json.loads(read_file(file))
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not JSON; give what `orchestrator eval --json` printed") from None
    try:
        return EvaluationReport.from_json(data)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


# ---- the report ----


def print_result(result: CaseResult) -> None:
    """Print one line about a result, while others are still running."""
    line = f"{result.status}  {shown(result.case, 120, keep='')}  {span(result.usage.seconds)}"
    say(painted(line, TextColor.FAINT, colour=coloured()))


def print_report(report: EvaluationReport) -> None:
    """Print the table of the cases, the faults, the differences from the evaluation before, and the totals."""
    cases = list(report.cases.values())
    rows = []
    for case in cases:
        usage = case.usage
        cost = "" if usage.cost_micros is None else amount(usage.cost_micros, usage.currency)
        counts = (f"{case.passed}/{len(case.results)}", f"{usage.requests:,}", f"{usage.tokens:,}")
        rows.append((case.status, case.name, *counts, cost, span(usage.seconds)))
    head, *lines = table(_HEADS, rows, right=_RIGHT)
    say(heading(head))
    for case, line in zip(cases, lines[-len(cases) :] if cases else (), strict=True):
        paint = TextColor.ADDED if case.status == "passed" else TextColor.REMOVED
        say(painted(line, paint, colour=coloured()))
    for result in report.results:
        if result.status != "passed":
            _print_faults(result, report.cases[result.case])
    if (changes := report.changes) is not None:
        say("")
        say(heading(f"compared with {shown(changes.evaluation_id, 100, keep='')}"))
        for what in ("newly_failing", "newly_passing", "new", "gone"):
            if names := getattr(changes, what):
                say(f"  {what.replace('_', ' ')}: {_named(names)}")
        cost = "" if changes.cost is None else f", cost {changes.cost:+g} {report.usage.currency}".rstrip()
        used = f"requests {changes.requests:+g}, tokens {changes.tokens:+,g}{cost}, time {changes.seconds:+.3f} s"
        say(f"  one run of each case: {used}")
    _print_totals(report)


def _print_faults(result: CaseResult, case: CaseSummary) -> None:
    which = f" ({result.repetition} of {len(case.results)})" if len(case.results) > 1 else ""
    say("")
    say(heading(f"{result.status}: {shown(result.case, 200, keep='')}{which}, run {result.run_id}"))
    if result.error:
        say(f"  {shown(result.error, _LONGEST, keep='')}")
    for check in result.faults:
        say(f"  {shown(check.name, 200, keep='')}: {shown(check.why, _LONGEST, keep='')}")


def _named(names: Sequence[str]) -> str:
    return ", ".join(shown(name, 200, keep="") for name in names)


def _print_totals(report: EvaluationReport) -> None:
    usage, cases = report.usage, report.cases.values()
    passed = sum(case.status == "passed" for case in cases)
    cost = "" if usage.cost_micros is None else f", cost {amount(usage.cost_micros, usage.currency)}"
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
