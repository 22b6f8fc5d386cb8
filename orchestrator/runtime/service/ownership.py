"""Ownership of runs: the agent whose runs a journal has.

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

import contextlib
import gc
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from orchestrator.errors import ConfigError, JournalError, OtherAgent
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.llm.port import UNKNOWN_CURRENCY
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
    currency: str | None = None
    """Currency of its costs; None if it has no prices, UNKNOWN_CURRENCY if they do not name it."""

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

    def other_currency(self, run_id: str, currency: str) -> str:
        """Return a sentence if the costs of this agent cannot be added to those of a run; "" if they can.

        `currency` is that of the run; "" if its records name none.
        """
        if not currency or self.currency in {None, currency}:
            return ""
        here = "a currency without a name" if self.currency == UNKNOWN_CURRENCY else self.currency
        return (
            f"run {run_id!r} counts its cost in {currency}, and the prices of {self.described} are in {here}: costs in "
            f"two currencies are never summed, so give it prices in {currency}, "
            f"price_table(..., currency={currency!r})"
        )

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
    old, new = own_tools(before), own_tools(now)
    found = [f"{name!r} changed" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    found += [f"{name!r} is new" for name in sorted(new.keys() - old.keys())]
    found += [f"{name!r} is missing" for name in sorted(old.keys() - new.keys())]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def own_tools(tools: Mapping[str, str]) -> dict[str, str]:
    """Return a definition without the tools of servers, which change them."""
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


async def refuse_same_name(journal: Journal, identity: AgentIdentity) -> None:
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
