"""One command on one project: its planner and limits, the recovery, the work, the state, and the end."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from orchestrator.cli import option as given
from orchestrator.cli.approval import status as status_view
from orchestrator.cli.approval.progress import Steps
from orchestrator.cli.exit import Exit
from orchestrator.cli.launch import Launch, limited, model_of, rebuilt
from orchestrator.cli.load import actor_name, params_from
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import coloured, complain, say, say_json, shown
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.trust.consent import project_settings, refuse_untrusted_run
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError, Held, StoreDown
from orchestrator.machines.approval.fault import ApprovalError, GateRefused
from orchestrator.machines.approval.limits import ApprovalLimits, PlanCaps
from orchestrator.machines.approval.model import ApprovalState
from orchestrator.machines.approval.plan import ApprovalPlanner
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.plan_file import PlanFile
from orchestrator.runtime.approval.planner import ModelPlanner
from orchestrator.runtime.approval.project_journal import folder_of
from orchestrator.runtime.approval.status import Status
from orchestrator.settings import build
from orchestrator_guards import BlockedGate

Need: TypeAlias = Literal["needed", "wanted", "none"]
"""Purpose of a command's planner: to make a plan; to check that it can be reached; no planner."""

LONGEST_PACE = 60.0
"""Seconds between steps."""
_NONE = "there is no planner: give --plan FILE or --model SPEC, or set ORCHESTRATOR_MODEL"


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """The planner of a command."""

    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="The plan, as JSON or TOML: no model is asked."),
    ] = None
    model: given.Model = None
    base_url: given.BaseUrl = None
    structured: given.Structured = None
    reasoning_field: given.ReasoningField = None
    params: given.Params = ()

    @property
    def said(self) -> bool:
        """Whether the command line names a planner."""
        return self.plan is not None or self.model is not None


@dataclass(frozen=True, slots=True)
class PlannerSpec:
    """A planner and its stored launch data, without keys and without passwords of addresses."""

    planner: ApprovalPlanner | None
    launch: Mapping[str, Any]


@asynccontextmanager
async def planner_of(
    named: PlannerOptions, root: Path, kept: Mapping[str, Any], caps: PlanCaps, need: Need
) -> AsyncIterator[PlannerSpec]:
    """Yield the planner: of the command line, else the one the project was started with, else of the settings.

    Commands that need no planner get none: a key is not necessary to show a plan or to cancel it. Raises ConfigError,
    also if a planner is needed and none is named; OSError or ImportError of a model.
    """
    if need == "none":
        yield PlannerSpec(None, kept)
        return
    if named.plan is not None and named.model is not None:
        raise ConfigError("--plan and --model both make the plan: give one of them")
    if named.plan is not None:
        if not named.plan.is_file():
            what = "is no regular file" if named.plan.exists() else "there is no such file"
            raise ConfigError(f"--plan {named.plan}: {what}")
        file = named.plan.absolute()
        yield PlannerSpec(PlanFile(file), {"plan": str(file)})
    elif not named.said and kept.get("plan"):
        yield PlannerSpec(PlanFile(Path(kept["plan"])), {"plan": str(Path(kept["plan"]))})
    else:
        async with _from_model(named, root, kept, caps, needed=need == "needed") as made:
            yield made


@asynccontextmanager
async def _from_model(
    named: PlannerOptions, root: Path, kept: Mapping[str, Any], caps: PlanCaps, *, needed: bool
) -> AsyncIterator[PlannerSpec]:
    settings = project_settings()
    if not named.said and kept.get("model"):
        launch, parts = rebuilt(
            Launch.of({"launch": kept}), root.name, given.ReplacementOptions(base_url=named.base_url)
        )
        model = parts.model
    elif named.model is None and settings.model is None:
        if needed:
            raise ConfigError(_NONE)
        yield PlannerSpec(None, dict(kept))
        return
    else:
        launch = Launch.here(
            settings,
            model=named.model,
            base_url=named.base_url,
            structured=named.structured,
            reasoning_field=named.reasoning_field,
            params=named.params,
        )
        model = model_of(launch.model, launch.form)
    try:
        made = ModelPlanner(limited(model.llm, settings), root, caps=caps, params=launch.params)
        yield PlannerSpec(made, launch.plain())
    finally:
        if (close := getattr(model.llm, "aclose", None)) is not None:
            await close()


_CAPS = frozenset(item.name for item in fields(PlanCaps))


def limits_of(members: Mapping[str, Any]) -> ApprovalLimits:
    """Return limits of members by name; limits of one plan have the same names. Raises ConfigError."""
    known = sorted((_CAPS | {item.name for item in fields(ApprovalLimits)}) - {"caps"})
    if strange := [name for name in members if name not in known]:
        raise ConfigError(f"unknown limit {strange[0]!r}; known: {', '.join(known)}")
    caps = {name: value for name, value in members.items() if name in _CAPS}
    own = {name: value for name, value in members.items() if name not in _CAPS}
    return build(ApprovalLimits, {**own, "caps": build(PlanCaps, caps, "limits")}, "limits")


Work = Callable[[Approval], Awaitable[Status]]


@dataclass(frozen=True, kw_only=True)
class ProjectOptions:
    """The project, the actor, and the format of the output."""

    project: Annotated[
        Path | None,
        typer.Option(
            "--project", "-C", metavar="DIR", help="The folder that is worked on. Default: this one."
        ),
    ] = None
    by: given.By = None
    json: given.Json = False

    @property
    def root(self) -> Path:
        """The folder of the project. Raises ConfigError if it does not exist."""
        root = Path.cwd() if self.project is None else self.project.absolute()
        if not root.is_dir():
            raise ConfigError(f"--project {self.project}: there is no such folder")
        return root

    @property
    def given(self) -> str | None:
        """The folder as it was typed, for the commands that are printed."""
        return None if self.project is None else str(self.project)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command on a project."""

    work: Work
    planner: Need = "none"
    """Whether it takes a planner."""
    anew: bool = False
    """It starts a request: the planner and the limits of the previous request do not apply."""
    on_signal: Literal["cancel", "pause"] = "cancel"
    """The effect of the first Ctrl-C."""
    elsewhere: Callable[[Path], Awaitable[Status]] | None = None
    """Called instead while another process works on the project; None: the command is refused."""
    asks: bool = False
    """`elsewhere` only sends a request to that process: without one, it is not called."""
    looks: bool = False
    """The command is allowed in a project without a request."""
    show: Callable[[Status], None] | None = None
    """Prints the result for a person; None: the state of the project."""
    data: Callable[[Status], Any] | None = None
    """Returns the data for --json; None: the state of the project."""
    judge: Callable[[Status], int] = status_view.code


def run_command(
    options: ProjectOptions,
    command: Command,
    *,
    planner: PlannerOptions | None = None,
    limits: tuple[str, ...] = (),
    pace: float = 0.0,
) -> int:
    """Carry out one command on a project and return the exit code. A refusal is printed with the next action.

    `limits` override those of the request. `pace` are the seconds to wait before each step.
    """
    planner = planner or PlannerOptions()
    params_from(planner.params)  # a wrong one is refused also if another planner is taken
    members = params_from(limits)
    limits_of(members)
    if not math.isfinite(pace) or not 0 <= pace <= LONGEST_PACE:
        raise ConfigError(
            f"--pace {pace:g} is not valid: give 0 to {LONGEST_PACE:g} seconds before each step"
        )
    return run_async(_CommandRun(options, command, planner, members, pace).out())


class _CommandRun:
    """One run of a command; a signal, or a closed output pipe, stops it between steps."""

    def __init__(
        self,
        options: ProjectOptions,
        command: Command,
        planner: PlannerOptions,
        limits: Mapping[str, Any],
        pace: float,
    ) -> None:
        self._options = options
        self._planner = planner
        self._limits = limits
        self._command = command
        self._steps = Steps(self._lose, pace=pace, quiet=options.json)
        self._approval: Approval | None = None
        self._lost = self._stopped = False

    async def out(self) -> int:
        """Run the command and return the exit code."""
        options = self._options
        root = options.root
        try:
            found = await Approval.look(root)
            if not self._command.anew and not found.run_id and found.error is None:
                return self._never_begun(found)
            if found.run_id:
                # Opening the store of a request that another person started may restore files.
                what = f"request {shown(found.run_id, 80)} of {shown(str(root), 300)}"
                journal = folder_of(root) / "journal.db"
                look = words("runs", "events", found.run_id, "--content", "--journal", str(journal))
                does = f"carry out, or take back, the plan that `{look}` shows"
                refuse_untrusted_run(found.launch, what, journal, does=does)
            waits = self._command.anew and await self._plan_waits(root, found)
            kept = found.launch if waits or not self._command.anew else {}
            limits = {**(kept.get("limits") or {}), **({} if waits else self._limits)}
            caps, need = limits_of(limits).caps, self._command.planner
            async with planner_of(self._planner, root, kept, caps, need) as made:
                return await self._opened(root, made, limits)
        except GateRefused as refused:
            return status_view.print_refusal(refused, options.given, json=options.json)
        except ApprovalError as faulted:
            return status_view.print_faults(faulted, json=options.json)

    async def _plan_waits(self, root: Path, found: Status) -> bool:
        """Return whether a plan still waits for a person: then a new request is refused.

        The limits of the new request could expire that plan, so it is checked with its own limits.
        """
        if found.state is not ApprovalState.AWAITING_APPROVAL:
            return False
        with suppress(Held):
            limits = limits_of(found.launch.get("limits") or {})
            async with Approval(
                root, limits=limits, observers=(), by=actor_name(self._options.by)
            ) as approval:
                self._print_recovery(approval)
                found = await approval.status()
        return found.state is ApprovalState.AWAITING_APPROVAL

    def _never_begun(self, found: Status) -> int:
        """Report that there is no request, without creating a folder in a wrong place."""
        if self._command.looks:
            return self._print_status(found, None)
        raise GateRefused(
            BlockedGate("state", "nothing was submitted here yet", found.actions, code="ST-001")
        )

    async def _opened(self, root: Path, made: PlannerSpec, limits: Mapping[str, Any]) -> int:
        options = self._options
        approval = Approval(
            root,
            made.planner,
            limits=limits_of(limits),
            observers=(),
            by=actor_name(options.by),
            launch=signed({**made.launch, **({"limits": dict(limits)} if limits else {})}),
            on_step=self._steps,
        )
        try:
            with on_signal(self._stop):
                async with approval:
                    return await self._done(approval)
        except Held as held:
            if self._command.elsewhere is None:
                return status_view.print_busy(held, options.given, json=options.json)
            return self._print_status(await self._command.elsewhere(root), None)
        except StoreDown as down:
            # Showing the state is possible without write access, even if the recovery cannot be written.
            if self._command.elsewhere is None or self._command.asks or self._approval is not None:
                raise
            complain(f"{down}; nothing can be done here, and this is how it was left:")
            return self._print_status(await self._command.elsewhere(root), None)

    async def _done(self, approval: Approval) -> int:
        self._print_recovery(approval)
        if self._stopped:
            raise KeyboardInterrupt
        self._approval = approval
        with self._steps.showing() if self._command.on_signal == "pause" else nullcontext():
            status = await self._command.work(approval)
        if self._lost:
            return Exit.PIPE
        code = self._print_status(status, approval)
        if status.state is ApprovalState.FAILED and status.run_id:
            await approval.shown()
        return Exit.CANCELLED if self._is_cancelled() else code

    def _print_recovery(self, approval: Approval) -> None:
        if approval.recovered is not None and not self._options.json:
            for line in status_view.recovery_lines(
                approval.recovered, self._options.given, colour=coloured()
            ):
                say(line)

    def _print_status(self, status: Status, approval: Approval | None) -> int:
        options = self._options
        recovered = None if approval is None else approval.recovered
        if options.json:
            say_json(
                status_view.status_json(status, recovered)
                if self._command.data is None
                else self._command.data(status)
            )
        elif self._command.show is not None:
            self._command.show(status)
        else:
            last = status.recovery
            if recovered is None and last is not None and last.now == status.state:
                for line in status_view.recovery_lines(last, options.given, colour=coloured()):
                    say(line)
            for line in status_view.lines(status, options.given, colour=coloured()):
                say(line)
        return self._command.judge(status)

    # ---- stopping ----

    def _is_cancelled(self) -> bool:
        """Return whether a signal stopped the command without pausing the plan."""
        return self._stopped and self._command.on_signal == "cancel"

    def _stop(self) -> None:
        self._stopped = True
        pausing = self._command.on_signal == "pause"
        what = "pausing after the step" if pausing else "cancelling after the answer"
        complain(
            f"{what} that is being made; a second signal ends the process at once, and the next start recovers"
        )
        self._ask()

    def _lose(self) -> None:
        self._lost = True
        self._ask()

    def _ask(self) -> None:
        self._steps.hurry()
        if self._approval is not None and self._command.on_signal == "pause":
            self._approval.ask_pause()
        elif self._approval is not None:
            self._approval.ask_cancel()
