"""Ownership of runs: the agent whose runs a journal has, and the live runs of this process.

Two agents that share a journal differ in their names, or in their versions. What an agent may do are its tools, so
they are its definition: name, schema, effect and approval flag of each. It is stored with each run. An agent of the
same name and the same version, but with other tools, neither resumes the run nor starts one of its own while such a run
is open: it is another agent, or another version that does not say so. A new `version=` says so; then the graph decides
who may continue a run, and a person decides about each announced call whose tool changed.

The model, the instructions and the output type are not part of the stored definition: a run has its instructions in its
records, and a host may change the others at any time. Tools of MCP servers are not part of it either, because the
server changes them. In one process instructions and output types are compared too, because no deploy explains a
difference there.

A variant (`Agent.replace`) and a copy for child runs belong to their agent and are not compared at construction.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from orchestrator.errors import ConfigError, Held, JournalError, OtherAgent, RunExists, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.record import Fact, Transition
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.run_feed import RunFeed
from orchestrator.tools.spec import SERVER

_SHOWN: Final = 5
_SEARCHED: Final = 50
"""Open runs of an agent that are compared with it before its first run."""
_JOINING: ContextVar[bool] = ContextVar("joining", default=False)


class AgentIdentity(NamedTuple):
    """Name, version and tools of an agent."""

    graph: str
    name: str = ""
    version: str = ""
    definition: Mapping[str, str] | None = None
    """Tools, name -> digest; None if the runs of the agent do not store them."""

    @property
    def described(self) -> str:
        """The agent as the subject of a sentence."""
        version = f" (version {self.version!r})" if self.version else ""
        return f"agent {self.name!r}{version}" if self.name else f"an agent without a name{version}"

    def changes(self, version: str, definition: Mapping[str, str] | None) -> str:
        """Return how the tools differ from those of another agent of this name; "" if that agent is this one.

        Another version may have other tools.
        """
        if self.version != version:
            return ""
        return difference(definition, self.definition)

    def taking(self, stored: StoredRun, from_agent: str | None) -> dict[str, Any]:
        """Return what a `resumed` record says about this agent, if another agent or version drove the run before."""
        moved = from_agent is not None and from_agent != self.name
        same = self.definition is None or self.definition == stored.definition
        if not moved and same and self.version == stored.agent_version:
            return {}
        body: dict[str, Any] = {"agent": self.name, "agent_version": self.version}
        if self.definition is not None:
            body["definition"] = self.definition
        return body | ({"from_agent": from_agent} if moved else {})


class OtherDefinition(OtherAgent):
    """A stored run belongs to an agent of this name and version with other tools."""

    def __init__(self, run_id: str, here: AgentIdentity, changes: str) -> None:
        super().__init__(run_id, here.name, here.name)
        said = (
            f"run {run_id!r} belongs to {here.described} with other tools ({changes}): give this agent a `version=` of "
            "its own to continue the runs of the other one, or another `name=`, or transfer the run with "
            f"resume({run_id!r}, from_agent={here.name!r})"
        )
        self.args = (said,)


class LocalDefinition(NamedTuple):
    """What tells two agents of one name apart in one process."""

    tools: Mapping[str, str]
    instructions: str = ""
    output: str = ""

    @classmethod
    def of(cls, tools: Mapping[str, str], *parts: object) -> LocalDefinition:
        """Return a definition. Functions count as equal, because each construction may make another one."""
        texts = ("a function" if callable(part) else repr(getattr(part, "schema", part)) for part in parts)
        return cls(tools, *texts)

    def changes(self, other: LocalDefinition) -> str:
        """Return how another agent differs; "" if it does not."""
        parts = [difference(other.tools, self.tools)]
        parts += [
            f"{what} differ"
            for what, at in (("instructions", 1), ("output types", 2))
            if self[at] != other[at]
        ]
        return ", ".join(filter(None, parts))


def difference(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Return how the tools of an agent differ, for a person; "" if they do not, or if one side is not known."""
    if before is None or now is None:
        return ""
    old, new = _own(before), _own(now)
    found = [f"{name!r} changed" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    found += [f"{name!r} is new" for name in sorted(new.keys() - old.keys())]
    found += [f"{name!r} is missing" for name in sorted(old.keys() - new.keys())]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _own(tools: Mapping[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in tools.items() if not digest.startswith(SERVER)}


# ---- in one process ----

_Agents = WeakKeyDictionary[Any, LocalDefinition]
_AGENTS: Final[WeakKeyDictionary[Journal, dict[tuple[str, str, str], _Agents]]] = WeakKeyDictionary()
_CHECKED: Final[WeakKeyDictionary[Journal, set[str]]] = WeakKeyDictionary()


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Inside the block, make agents that are parts of another one: their names are not compared."""
    token = _JOINING.set(True)
    try:
        yield
    finally:
        _JOINING.reset(token)


def register(agent: object, journal: Journal, identity: AgentIdentity, local: LocalDefinition) -> None:
    """Keep the agents of each journal as long as they live. Raises ConfigError for two that share a name."""
    if _JOINING.get() or not _is_known(journal):
        return
    known = _AGENTS.setdefault(journal, {}).setdefault(identity[:3], WeakKeyDictionary())
    if _conflict(known, local):
        gc.collect()  # agents that are not used any more may wait for it
    if changes := _conflict(known, local):
        named = f"are named {identity.name!r}" if identity.name else "have no name"
        both = f" and have version {identity.version!r}" if identity.version else ""
        raise ConfigError(
            f"two agents of graph {identity.graph!r} on one journal {named}{both}, but they are not the same "
            f"({changes}): give each its own `name=`, or the new one another `version=`"
        )
    known[agent] = local


def _is_known(journal: Journal) -> bool:
    """Return whether a journal can be a key here; a host's class may forbid that."""
    try:
        return bool(ref(journal)) and isinstance(hash(journal), int)
    except TypeError:
        return False


def _conflict(known: _Agents, local: LocalDefinition) -> str:
    return next(filter(None, (local.changes(other) for other in list(known.values()))), "")


# ---- in a journal ----


async def refuse_second(journal: Journal, identity: AgentIdentity) -> None:
    """Raise ConfigError if an open run belongs to another agent of this name and version. Looks once per journal."""
    if identity.definition is None or not _is_known(journal):
        return
    checked, key = _CHECKED.setdefault(journal, set()), repr(identity)
    if key in checked:
        return
    checked.add(key)
    with contextlib.suppress(JournalError):  # the first record of the run reports it
        found = await _other(journal, identity)
        if found is not None:
            checked.discard(key)
            head, changes = found
            raise ConfigError(
                f"{identity.described} has other tools ({changes}) than the agent of this name that started run "
                f"{head.run_id!r}, which has not ended: give it a `version=` of its own, or another `name=`"
            )


async def _other(journal: Journal, identity: AgentIdentity) -> tuple[RunHead, str] | None:
    """Return the newest open run of another agent of this name and version, and how its tools differ."""
    for status in ("open", "parked"):
        about: Any = {"graph": identity.graph, "agent": identity.name, "status": status}
        async for head in journal.runs(**about, descending=True, limit=_SEARCHED):
            if head.parent_run_id is None and head.agent_version == identity.version:
                created = (await journal.load(head.run_id))[0].body
                if "deposited" in created:
                    continue
                changes = difference(created.get("definition"), identity.definition)
                return (head, changes) if changes else None
    return None


class RunRegistry:
    """The live runs by id. As an observer it keeps their last transitions for `Result.transitions`.

    The follower of a run also follows its child runs.
    """

    def __init__(self, kept: int = 10_000) -> None:
        self._kept = kept
        self._runs: dict[str, Run[Any, Any]] = {}
        self._paths: dict[str, list[Transition]] = {}
        self._earlier: dict[str, Iterable[Transition]] = {}
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self._taken: set[str] = set()
        self._talking: set[str | None] = set()
        self._awaited: dict[str, set[asyncio.Future[None]]] = {}
        """Id of a run -> those that wait until it is live here."""

    def open(self, run: Run[Any, Any], path: Iterable[Transition] = ()) -> None:
        """Add a run, with its path so far. Raises RunExists if its id is active, ConfigError if its conversation is."""
        conversation = run.ctx.conversation_id
        if run.run_id in self._runs:
            raise RunExists(run.run_id)
        if conversation in self._talking:
            raise ConfigError(f"conversation {conversation!r} has an active run; wait for its end")
        if conversation is not None:
            self._talking.add(conversation)
        parent = None if run.parent_run_id is None else self._runs.get(run.parent_run_id)
        readers = (run.control.follower, parent.control.follower if parent is not None else None)
        awaited = self._awaited.pop(run.run_id, ())
        if any(readers) or awaited:
            run.follow(RunFeed(run.run_id, filter(None, readers)))
        self._runs[run.run_id] = run
        self._paths[run.run_id] = []
        if path:
            self._earlier[run.run_id] = path
        for waiting in awaited:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_for(self, run_id: str, seconds: float) -> None:
        """Return when a run has become live here, and streams from then on; or after `seconds`."""
        opened = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(run_id, set()).add(opened)
        try:
            await asyncio.wait((opened,), timeout=seconds)
        finally:
            others = self._awaited.get(run_id, set())
            others.discard(opened)
            if not others:
                self._awaited.pop(run_id, None)

    @contextlib.contextmanager
    def taking(self, run_id: str) -> Iterator[None]:
        """Exclude other resumptions of the run in this process, which has only one owner name. Raises Held."""
        if run_id in self._taken or run_id in self._runs:
            raise Held(run_id, "this process: it is active here")
        self._taken.add(run_id)
        try:
            yield
        finally:
            self._taken.discard(run_id)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def find(self, run_id: str) -> Run[Any, Any] | None:
        """Return a live run, or None."""
        return self._runs.get(run_id)

    def end_of(self, run_id: str) -> asyncio.Future[Any]:
        """Return a future for the Result of a live run."""
        self.get(run_id)
        return self._ends.setdefault(run_id, asyncio.get_running_loop().create_future())

    def ended(self, run_id: str, result: object) -> None:
        """Pass the Result, or the error, to the other waiters of this process."""
        end = self._ends.pop(run_id, None)
        if end is None or end.done():
            return
        if isinstance(result, BaseException):
            end.set_exception(result)
        else:
            end.set_result(result)

    def feed_of(self, run_id: str) -> RunFeed | None:
        """Return the feed of a live run, which streams from then on; None if the run is not live here."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        feed = run.control.follower
        if not isinstance(feed, RunFeed):
            feed = RunFeed(run_id)
            run.follow(feed)
        return feed

    def get(self, run_id: str) -> Run[Any, Any]:
        """Return a run. Raises RunUnknown."""
        if run_id not in self._runs:
            raise RunUnknown(run_id)
        return self._runs[run_id]

    def close(self, run: Run[Any, Any]) -> tuple[Transition, ...]:
        """Remove a run; return its path."""
        del self._runs[run.run_id]
        feed = run.control.follower
        run.follow(None)
        if isinstance(feed, RunFeed):
            feed.close()
        self._talking.discard(run.ctx.conversation_id)
        path = (*self._earlier.pop(run.run_id, ()), *self._paths.pop(run.run_id))
        return path[-self._kept :]

    def hears(self, kind: type[Fact]) -> Callable[[Transition], None] | None:
        """Return the function for facts of a kind, or None: only transitions are kept."""
        return self._keep if kind is Transition else None

    def observe(self, fact: Fact) -> None:
        """Keep a transition."""
        if type(fact) is Transition:
            self._keep(fact)

    def _keep(self, fact: Transition) -> None:
        path = self._paths[fact.run_id]
        path.append(fact)
        if len(path) > self._kept + self._kept // 10:
            del path[: -self._kept]
