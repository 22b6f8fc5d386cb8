"""Engine-only interface of an Approval, whose runs work on the folder of a project in this process."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.fact import Fact
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.mailbox import Kind
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.runtime.approval.session import ApprovalSession
from orchestrator.runtime.approval.status import WORKING
from orchestrator.runtime.service.hosting import BeginRun, CheckRun, Host, Hosting, LiveRunInfo
from orchestrator.runtime.service.recovery import OpenRun
from orchestrator.runtime.service.runtime import Runtime


class ApprovalHosting(Hosting):
    """Engine-only interface of an Approval.

    An engine starts its requests and resumes them when asked. It resumes none by itself: only a process that has the
    project's folder can. The planner's requests to its model are not subject to operator commands.
    """

    def __init__(
        self, session: ApprovalSession, runtime: Runtime, *, check: CheckRun, begin: BeginRun
    ) -> None:
        self.clock, self.check, self.begin = runtime.clock, check, begin
        self._session = session
        self._observers = runtime.observers
        self._host: Host | None = None

    @property
    def journal(self) -> Journal:  # type: ignore[override]  # the journal of a project opens with it
        """The journal of the project. Raises ConfigError while it is not open."""
        found = self._session.store
        if found is None:
            raise ConfigError(
                "the journal of the project is not open; enter it before: `async with approval`, or give Approval a "
                "runtime with a journal"
            )
        return found

    @property
    def graph(self) -> str:
        """Name of the graph of its runs."""
        return APPROVAL.name

    @property
    def agent(self) -> str:
        """Name of the agent; empty if it has none."""
        return self._session.agent

    @property
    def version(self) -> str:
        """Version of the agent; empty if it has none."""
        return self._session.version

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its present table; while that is invalid, of the last valid one."""
        return self._session.machine.valid_graph.fingerprint

    @property
    def owner(self) -> str:
        """Owner of its runs in the journal; empty while the project is not open."""
        return self._session.driver.owner if self._session.is_open else ""

    def attach(self, host: Host) -> None:
        """Attach a host. Raises RunError if another one is attached."""
        if self._host is not None:
            raise RunError("this Approval has an engine already; make another Approval, or leave that engine")
        self._host = host

    def detach(self) -> None:
        """Detach the host."""
        self._host = None

    def obey(self, host: Host | None) -> None:
        """Do nothing: see `tree`."""

    def tree(self) -> Sequence[Hosting]:
        """Return nothing: its planner's requests are not subject to operator commands."""
        return ()

    def publish(self, fact: Fact) -> None:
        """Publish a fact to the observers."""
        for observer in self._observers:
            observer.observe(fact)

    def watched(self, engine: object, *, watch: bool) -> None:
        """Start or stop showing an engine in the observers that show the load of engines."""
        for observer in self._observers:
            show = getattr(observer, "watch" if watch else "unwatch", None)
            if show is not None:
                show(engine)

    def live(self, run_id: str) -> LiveRunInfo | None:
        """Return the state of the current request if it has this id, or None."""
        run = self._session.run
        if run is None or run.run_id != run_id or not run.control.driving:
            return None
        return LiveRunInfo(run.cursor.state, begun=True, paused=False)

    def ask(self, run_id: str, kind: Kind, *, by: str, why: str) -> bool:
        """Request cancel or pause of the plan that is executed here; return False if there is none."""
        return kind in {"cancel", "pause"} and self._session.request(run_id, kind, by=by, why=why)

    def is_over(self, head: RunHead) -> bool:
        """Return whether a request has a Status for its caller: it is over, or waits for a person."""
        return super().is_over(head) or head.state not in WORKING

    async def refuse_same_name(self) -> None:
        """Do nothing: a project has one request at a time."""

    async def park_for_graph(self, head: RunHead) -> None:
        """Do nothing: a person continues a request."""

    async def open_runs(self) -> list[OpenRun]:
        """Return nothing: a person continues a request."""
        return []

    async def described(self, head: RunHead) -> OpenRun:
        """Return the state of a stored request, which only a person continues."""
        will = "a person continues it in its project"
        return OpenRun(
            head.run_id,
            head.status,
            head.state,
            head.reason or "",
            will,
            head.owner,
            head.fingerprint,
            agent=head.agent,
        )
