"""`orchestrator rlm run`: one question about one file, in the journal from its first record on."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import Launch
from orchestrator.cli.load import params_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.pipeline.run import check_output
from orchestrator.cli.rlm.agent_spec import RlmSpec, context_from
from orchestrator.cli.rlm_group import RlmRunOptions
from orchestrator.cli.run import RunView, error_json, logging_to, new_id, note_of, transition_json
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.screen import Screen
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.machines.code_mode.graph import CODE_MODE
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator.machines.tools_mode.graph import TOOLS_MODE
from orchestrator.runtime.rlm.result import RlmResult
from orchestrator.runtime.rlm.rlm import Rlm


@dataclass(frozen=True, slots=True, kw_only=True)
class RlmViewOptions:
    """How a run is shown, and where it is stored."""

    run_id: str
    journal: Address | None = None
    """The journal as the command line names it."""
    log: Path | None = None
    json: bool = False
    output: Path | None = None


Going = Callable[[Rlm], Awaitable[RlmResult]]


def run_file(command_options: RlmRunOptions) -> int:
    """Answer a prompt about a file, show the run or print it as JSON, and return the exit code of its outcome."""
    if not command_options.prompt.strip():
        raise ConfigError("the prompt is empty: say with --prompt what is asked about the file")
    check_output(command_options.output)
    launch = Launch.here(
        project_settings(),
        model=command_options.model,
        base_url=command_options.base_url,
        structured=None,
        tools=command_options.tools,
        instructions=command_options.instructions,
        params=params_from(command_options.params),
    )
    made = RlmSpec(
        launch=launch,
        mode=command_options.mode,
        sub_model=command_options.sub_model,
        least=command_options.least,
        repl_limits=params_from(command_options.repl_limits),
    )
    limits = made.limits(command_options.limits)
    context = context_from(command_options.file, as_json=command_options.as_json)
    run_id = new_id(command_options.run_id)
    view = RlmViewOptions(
        run_id=run_id,
        journal=command_options.journal,
        log=command_options.log,
        json=command_options.json,
        output=command_options.output,
    )
    options: dict[str, Any] = {"run_id": run_id, "conversation_id": command_options.conversation}
    return conducted(view, made, limits, lambda rlm: rlm.run(command_options.prompt, context, **options))


def conducted(view: RlmViewOptions, made: RlmSpec, limits: RlmLimits, go: Going) -> int:
    """Run one question to completion, show its progress, and return the exit code of its outcome."""
    place = journal_file(view.journal)
    journal = journal_at(place)
    graph = CODE_MODE if made.mode == "code" else TOOLS_MODE
    screen = None if view.json else functools.partial(Screen, graph)
    watched: RunView[Rlm, RlmResult] = RunView(graph, view.run_id, place, screen)
    with logging_to(view.log, project_settings().log_level) as logs:
        rlm = made.rlm(limits, journal, [*watched.observers, *logs])
        result = run_async(watched.run(rlm, journal, go))
    if watched.lost:
        return Exit.PIPE
    return print_result(result, view)


# ---- output ----


def print_result(result: RlmResult, view: RlmViewOptions) -> int:
    """Print the result of a run, and return the exit code; the reason of a failure is printed on stderr."""
    if view.output is not None and result.output is not None:
        view.output.write_text(result.output, encoding="utf-8")
    if view.json:
        say_json(as_json(result))
    else:
        if result.output is not None and view.output is None:
            say(f"\n{shown(result.output, 100_000)}")
        reason = "" if result.reason == "none" else f" ({result.reason})"
        say(f"\noutcome: {result.outcome}{reason}; {totals(result)}")
    if (fault := note_of(result)) is not None:
        complain(fault)
    return EXIT_CODES[result.outcome]


def totals(result: RlmResult) -> str:
    """Return the usage of a run in one line."""
    used = result.usage
    cost = "" if used.cost is None else f", cost {used.cost:.4f}"
    return (
        f"{many(result.iterations, 'turn')}, {many(result.sub_calls, 'sub-call')}, "
        f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out{cost}"
    )


def as_json(result: RlmResult) -> dict[str, Any]:
    """Return the whole result as plain data."""
    verdict = result.verdict
    return {
        "run_id": result.run_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "finish_reason": result.finish_reason,
        "state": result.state.name,
        "output": result.output,
        "iterations": result.iterations,
        "sub_calls": result.sub_calls,
        "usage": result.usage.as_json(),
        "verdict": None if verdict is None else verdict._asdict(),
        "error": error_json(result.error),
        "messages": [message.to_openai() for message in result.messages],
        "transitions": [transition_json(one) for one in result.transitions],
    }
