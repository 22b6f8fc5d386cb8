"""One command on one project: open it, show the recovery, execute the command, show the state, close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.cli.approval import plain, refusal
from orchestrator.cli.approval import status as status_view
from orchestrator.cli.approval.limit import limits_of
from orchestrator.cli.approval.planner import Need, PlannerChoice, PlannerSpec, planner_of
from orchestrator.cli.approval.progress import Steps
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import actor_name
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import coloured, complain, say, say_json, shown
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError, Held, StoreDown
from orchestrator.machines.approval.fault import ApprovalError, GateRefused
from orchestrator.machines.approval.graph import ApprovalState
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.project_journal import folder_of
from orchestrator.runtime.approval.status import Status
from orchestrator_guards import BlockedGate

Work = Callable[[Approval], Awaitable[Status]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalOptions:
    """Options of all commands of the group."""

    project: Path | None = None
    json: bool = False
    by: str | None = None
    named: PlannerChoice = field(default_factory=PlannerChoice)
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits given to this command, by name; they override those of the request."""
    pace: float = 0.0

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


def _refuse_untrusted(found: Status, root: Path) -> None:
    """Raise ConfigError for a request that another person started: opening its store alone may restore files."""
    what = f"request {shown(found.run_id, 80)} of {shown(str(root), 300)}"
    journal = folder_of(root) / "journal.db"
    look = words("runs", "events", found.run_id, "--content", "--journal", str(journal))
    does = f"carry out, or take back, the plan that `{look}` shows"
    refuse_untrusted_run(found.launch, what, journal, does=does)


def run_command(options: ApprovalOptions, command: Command) -> int:
    """Carry out one command on a project and return the exit code. A refusal is printed with the next action."""
    return run_async(_CommandRun(options, command).out())


class _CommandRun:
    """One run of a command; a signal, or a closed output pipe, stops it between steps."""

    def __init__(self, options: ApprovalOptions, command: Command) -> None:
        self._options = options
        self._command = command
        self._steps = Steps(self._lose, pace=options.pace, quiet=options.json)
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
                _refuse_untrusted(found, root)
            waits = self._command.anew and await self._plan_waits(root, found)
            kept = found.launch if waits or not self._command.anew else {}
            limits = {**(kept.get("limits") or {}), **({} if waits else options.limits)}
            caps, need = limits_of(limits).caps, self._command.planner
            async with planner_of(options.named, root, kept, caps, need) as made:
                return await self._opened(root, made, limits)
        except GateRefused as refused:
            return refusal.print_refusal(refused, options.given, json=options.json)
        except ApprovalError as faulted:
            return refusal.faulted(faulted, json=options.json)

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
                return refusal.busy(held, options.given, json=options.json)
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
                plain.status(status, recovered) if self._command.data is None else self._command.data(status)
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
