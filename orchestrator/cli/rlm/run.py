"""`rlm run` and `rlm resume`: one question about one file, in the journal from its first record on."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli import resumption
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import Launch, LoadedParts, in_folder, model_of, price_of
from orchestrator.cli.load import actor_name, context_from, params_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.resumption import check_output
from orchestrator.cli.rlm.isolation import LeastOption, level_of
from orchestrator.cli.run import (
    RunView,
    complain_of_tools,
    error_json,
    logging_to,
    new_id,
    note_of,
    transition_json,
)
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import at_journal, confirm_take_over, journal_file
from orchestrator.cli.screen import Screen
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings, refuse_untrusted_run
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.journal import Journal
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.rlm.code_mode import CODE_MODE
from orchestrator.machines.rlm.model import CODE_LIMITS, TOOLS_LIMITS, RlmLimits
from orchestrator.machines.rlm.tools_mode import TOOLS_MODE
from orchestrator.repl import ReplLimits, Sandbox, WorkerRepl
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.rlm.run_record import RlmResult
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.settings import build
from orchestrator_guards.money import amount


@dataclass(frozen=True, slots=True, kw_only=True)
class RlmSpec:
    """The parts of an Rlm, as plain data; its limits are part of the run itself."""

    launch: Launch
    mode: Literal["code", "tools"] = "code"
    sub_model: str | None = None
    """A model spec for questions of the code; None: the same model."""
    least: str | None = None
    repl_limits: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.launch.tools and self.mode == "code":
            raise ConfigError("--tool goes with --mode tools; in mode code the model has a REPL")
        if "seconds" in self.repl_limits:  # the run sets the timeout of each block
            raise ConfigError("--repl-limit seconds: the wall time of a block is --limit code_seconds=...")

    @classmethod
    def of(cls, created: Mapping[str, Any], model: str | None = None) -> RlmSpec:
        """Return the parts in the first record of a run, optionally with another model. Raises ConfigError."""
        launch = Launch.of(created)
        if model is not None:  # the address belongs to the old model
            launch = replace(launch, model=model, base_url=None, params={})
        if launch.model is None:
            raise ConfigError(
                "it was not started by the command line, so its model is not known: give --model SPEC"
            )
        said = (created.get("launch") or {}).get("rlm") or {}
        known = {name: said[name] for name in ("sub_model", "least", "repl_limits") if name in said}
        return cls(launch=launch, mode="code" if created.get("graph") == CODE_MODE.name else "tools", **known)

    def plain(self) -> dict[str, Any]:
        """Return the data that is stored with the run."""
        own = {name: value for name, value in asdict(self).items() if name != "launch" and value}
        return {**self.launch.plain(), "rlm": own}

    def limits(self, changes: Iterable[str], base: Mapping[str, Any] | None = None) -> RlmLimits:
        """Return limits given as `name=value` over those of a run, else of the mode. Raises ConfigError."""
        own = asdict(CODE_LIMITS if self.mode == "code" else TOOLS_LIMITS) if base is None else base
        return build(RlmLimits, {**own, **params_from(changes)}, "limits")

    def repl(self, limits: RlmLimits) -> partial[WorkerRepl]:
        """Return the factory of the REPL of a run. Raises ConfigError for limits that cannot work."""
        seconds = {"seconds": limits.code_seconds} if limits.code_seconds else {}
        bounds = build(ReplLimits, {**seconds, **self.repl_limits}, "repl limits")
        return partial(WorkerRepl, limits=bounds, sandbox=Sandbox(least=level_of(self.least)))

    def rlm(self, limits: RlmLimits, journal: Journal, observers: Iterable[Observer]) -> Rlm:
        """Construct the Rlm. Raises ConfigError, ReplayError or OSError."""
        settings, launch = project_settings(), self.launch
        parts = LoadedParts.of(launch)
        return Rlm(
            parts.model.llm,
            mode=self.mode,
            sub_model=model_of(self.sub_model, launch.form).llm if self.sub_model else None,
            tools=parts.tools,
            limits=limits,
            retry=build(RetryPolicy, launch.retry, "retry"),
            instructions=launch.instructions,
            repl=self.repl(limits),
            params=launch.params,
            runtime=Runtime(journal=journal, observers=observers, price=price_of(settings.prices)),
            launch=signed(self.plain()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RlmViewOptions:
    """How a run is shown, and where it is stored."""

    run_id: str
    journal: Address | None = None
    """The journal as the command line names it."""
    log: Path | None = None
    json: bool = False
    output: Path | None = None


LimitsOption = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_iterations=10; 0 is off."),
]
OutputOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the answer to a file instead of printing it.")
]


@dataclass(frozen=True, kw_only=True)
class RlmRunOptions(given.DisplayOptions):
    """The command line of `rlm run`."""

    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The text, in UTF-8, that the prompt is about; - reads standard input."
        ),
    ]
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="The question about the file.")]
    mode: Annotated[
        Literal["code", "tools"],
        typer.Option("--mode", help="code: the model writes Python for a REPL. tools: it calls tools."),
    ] = "code"
    model: given.Model = None
    sub_model: Annotated[
        str | None,
        typer.Option(
            "--sub-model", metavar="SPEC", help="For questions of the code. Default: the same model."
        ),
    ] = None
    base_url: given.BaseUrl = None
    tools: Annotated[
        tuple[str, ...],
        typer.Option(
            "--tool", metavar="MODULE:FUNCTION", help="A further tool for --mode tools; repeatable."
        ),
    ] = ()
    instructions: given.Instructions = None
    params: given.Params = ()
    limits: LimitsOption = ()
    repl_limits: Annotated[
        tuple[str, ...],
        typer.Option(
            "--repl-limit", metavar="NAME=VALUE", help="A limit of the REPL, e.g. memory_bytes=1000000000."
        ),
    ] = ()
    least: LeastOption = None
    as_json: Annotated[
        bool,
        typer.Option("--as-json", help="FILE contains JSON: the code gets the data instead of the text."),
    ] = False
    output: OutputOption = None
    run_id: given.NewRunId = None
    conversation: given.Conversation = None


@spread
def run(options: RlmRunOptions) -> int:
    """Answer a prompt about a file of any length.

    --json prints the whole result instead of the answer.

    In mode code the text is the variable `context` of a REPL: the model gets its length, writes Python to read
    it, and asks models about parts of it (`llm_query`). The code runs in a process of its own that the kernel
    restricts (`orchestrator rlm isolation`). In mode tools it reads and searches the text with tools. Every step is
    in the journal before it counts: if the process is killed, `orchestrator rlm resume` continues the run.
    """
    if not options.prompt.strip():
        raise ConfigError("the prompt is empty: say with --prompt what is asked about the file")
    check_output(options.output)
    launch = Launch.here(
        project_settings(),
        model=options.model,
        base_url=options.base_url,
        structured=None,
        tools=options.tools,
        instructions=options.instructions,
        params=options.params,
    )
    spec = RlmSpec(
        launch=launch,
        mode=options.mode,
        sub_model=options.sub_model,
        least=options.least,
        repl_limits=params_from(options.repl_limits),
    )
    limits = spec.limits(options.limits)
    context = context_from(options.file, as_json=options.as_json)
    run_id = new_id(options.run_id)
    view = RlmViewOptions(
        run_id=run_id, journal=options.journal, log=options.log, json=options.json, output=options.output
    )

    def ask(rlm: Rlm) -> Awaitable[RlmResult]:
        return rlm.run(options.prompt, context, run_id=run_id, conversation_id=options.conversation)

    return conducted(view, spec, limits, ask)


@dataclass(frozen=True, kw_only=True)
class RlmResumeOptions(resumption.ResumeOptions):
    """The command line of `rlm resume`."""

    model: given.OtherModel = None
    limits: LimitsOption = ()
    again: Annotated[
        bool,
        typer.Option("--again", help="Call tools again that are irreversible and may have run already."),
    ] = False
    output: OutputOption = None


@spread
def resume(options: RlmResumeOptions) -> int:
    """Resume a run as it was started, or print the result of its end.

    Code starts in a new REPL: the model is informed that its variables are gone.
    """
    graphs = (CODE_MODE.name, TOOLS_MODE.name)
    head, created, stored, _ = at_journal(
        options.journal, lambda store: resumption.found(store, options.run, *graphs)
    )
    view = RlmViewOptions(run_id=head.run_id, **resumption.shown(options))
    if head.owner is not None:
        return resumption.left_to_owner(options, head, changed=bool(options.model))
    confirm_take_over(head, take_over=options.take_over)
    refuse_untrusted_run(created.get("launch"), f"run {head.run_id}", journal_file(options.journal))
    try:
        spec = RlmSpec.of(created, options.model)
    except ConfigError as error:
        raise ConfigError(f"run {head.run_id} cannot be resumed like that: {error}") from error
    limits = spec.limits(options.limits, stored)
    changed, by = limits if options.limits else None, actor_name(options.by)

    def go_on(rlm: Rlm) -> Awaitable[RlmResult]:
        return rlm.resume(head.run_id, limits=changed, by=by, again=options.again)

    with in_folder(spec.launch.cwd):
        return conducted(view, spec, limits, go_on)


def conducted(
    view: RlmViewOptions, spec: RlmSpec, limits: RlmLimits, go: Callable[[Rlm], Awaitable[RlmResult]]
) -> int:
    """Run one question to completion, show its progress, and return the exit code of its outcome."""
    place = journal_file(view.journal)
    journal = journal_at(place)
    graph = CODE_MODE if spec.mode == "code" else TOOLS_MODE
    screen = None if view.json else functools.partial(Screen, graph)
    watched: RunView[Rlm, RlmResult] = RunView(graph, view.run_id, place, screen)
    with logging_to(view.log, project_settings().log_level) as logs:
        rlm = spec.rlm(limits, journal, [*watched.observers, *logs])
        result = run_async(watched.run(rlm, journal, go))
    if watched.lost:
        return Exit.PIPE
    code = print_result(result, view)
    complain_of_tools(watched.tool_errors)
    return code


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
    cost = "" if used.cost_micros is None else f", cost {amount(used.cost_micros)}"
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
