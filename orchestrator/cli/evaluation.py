"""`orchestrator eval`: run an evaluation set against an agent, and print the report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.cli.evaluation_option import EvalOptions
from orchestrator.cli.evaluation_view import print_report, print_result
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.load import imported
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import complain, is_terminal, output_on_stderr, say_json, shown
from orchestrator.cli.run import logging_to
from orchestrator.cli.runs.store import OpenStore, journal_file
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.worker import made, named_target
from orchestrator.errors import ConfigError
from orchestrator.files.atomic import atomic_write
from orchestrator.files.bounded import read_file
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.kernel.record import Observer
from orchestrator.runtime.evaluation.case import EvaluationCase
from orchestrator.runtime.evaluation.case_file import load_cases
from orchestrator.runtime.evaluation.evaluation import CaseSelection, EvaluationBudget, evaluate
from orchestrator.runtime.evaluation.judge import named_judges
from orchestrator.runtime.evaluation.junit import junit_xml
from orchestrator.runtime.evaluation.ledger import stored_report
from orchestrator.runtime.evaluation.report import EvaluationReport
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.settings import build


def run_evaluation(options: EvalOptions) -> int:
    """Run the evaluation, print its report, and return the exit code. Raises ConfigError before anything is run."""
    settings = project_settings()
    given: dict[str, Any] = {
        "name": options.name or options.file.stem,
        "judges": _judges(options.judges),
        "concurrency": options.concurrency,
        "budget": _budget(options.budget),
        "selection": CaseSelection(names=options.cases, tags=options.tags, repeat=options.repeat),
        "new": options.new,
        "each": print_result if is_terminal() and not options.json else None,
    }
    if options.junit is not None and (options.junit.is_dir() or not options.junit.parent.is_dir()):
        raise ConfigError(f"--junit {options.junit} is no file in a folder that exists")
    cases = load_cases(options.file)
    given["selection"].of(cases)
    with logging_to(options.log, settings.log_level) as logs:
        return run_async(_evaluation(options, cases, given, logs))


async def _evaluation(
    options: EvalOptions, cases: Sequence[EvaluationCase], given: dict[str, Any], logs: Sequence[Observer]
) -> int:
    working = asyncio.ensure_future(_report(options, cases, given, logs))
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


async def _report(
    options: EvalOptions, cases: Sequence[EvaluationCase], given: dict[str, Any], logs: Sequence[Observer]
) -> EvaluationReport:
    journal = journal_at(journal_file(options.journal))
    with beginning():
        await journal.__aenter__()
    try:
        baseline = await _baseline(options.baseline, OpenStore(journal, options.journal))
        with output_on_stderr():  # the log of the agent, and what its tools print
            report = await evaluate(_agent(options.agent, journal, logs), cases, **given)
        return report if baseline is None else replace(report, baseline=baseline)
    finally:
        await journal.close()


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


def _judges(specs: Sequence[str]) -> dict[str, Callable[..., Any]]:
    pairs = [(name, imported(target, "judge")) for name, target in map(named_target, specs)]
    if len(dict(pairs)) < len(pairs):
        raise ConfigError("two judges have one name; give one another name: --judge NAME=MODULE:FUNCTION")
    return named_judges(dict(pairs))


def _budget(pairs: Sequence[str]) -> EvaluationBudget:
    members = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"budget {shown(pair, 80)!r} is not of the form NAME=VALUE, as cost=1.50")
        members[name.strip()] = value.strip()
    return build(EvaluationBudget, members, "budget")
