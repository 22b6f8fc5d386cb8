"""Code that all stores share: the head of a run and appends as rows, the hash chain, blobs by digest, a run's status.

A store calls `head_change` for each append and writes the result into the run's row, in the same transaction. Nothing
is decoded for it. The tokens and the cost are the totals that the guards count: those of the run and of its child runs,
with the estimates for lost answers.

The records of one append are one row: encoded once, hashed once, stored once. A row of one record has the form that
format 1 gave to every record, so that the rows of a journal of format 1 are valid rows of format 2, and one chain
covers both. Verification needs only the bytes of the rows. An append is decoded when its records are read, and its
records live as long as their reader needs them: a run of 1,000 turns has 9,003, which most readers pass over once, and
the garbage collector examines all that are kept.
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

import orjson

from orchestrator.errors import Corrupt, JournalError, TooNew
from orchestrator.kernel.journal import (
    ENDING_KINDS,
    NO_HASH,
    PARKING_KINDS,
    RECORD_SCHEMA,
    Draft,
    Record,
    RunHead,
)
from orchestrator.llm.usage import Usage

T = TypeVar("T")

OPEN: Final = "open"
PARKED: Final = "parked"
ENDED: Final = "ended"

LONGEST: Final = 200
"""Most characters of `waiting`."""
_NO_STATE: Final = frozenset(("created", "context"))
_CHANGES: Final = _NO_STATE | {"resumed", "migrated", "recovered"}
"""Kinds with changes of the context: the body of `context`, the member `context` of the others."""
HEAD_KINDS: Final = _CHANGES | {"transition", "asked", *PARKING_KINDS, *ENDING_KINDS}
"""Kinds that change the head of a run."""


Used: TypeAlias = tuple[int, int | None]
"""Tokens, and the cost in millionths of the currency."""
NOTHING: Final[Used] = (0, None)


class RunStatus(NamedTuple):
    """Status of a run by its last record."""

    status: str = OPEN
    reason: str = ""
    outcome: str = ""
    waiting: str = ""


class Fixed(NamedTuple):
    """The values of a head that rarely change: by a migration, a changed table, or a resumption by another agent."""

    run_id: str
    graph: str
    fingerprint: str
    created_at: float
    parent_run_id: str | None
    conversation_id: str | None
    agent: str = ""
    agent_version: str = ""
    tags: str = "{}"
    currency: str = ""

    @classmethod
    def of(cls, run_id: str, body: Mapping[str, Any], now: float) -> Fixed:
        """Return the values from the body of the `created` record."""
        return cls(
            run_id,
            str(body.get("graph", "")),
            str(body.get("fingerprint", "")),
            float(body.get("at", now)),
            body.get("parent_run_id"),
            body.get("conversation_id"),
            str(body.get("agent") or ""),
            str(body.get("agent_version") or ""),
            orjson.dumps(dict(body.get("tags") or {}), option=orjson.OPT_SORT_KEYS).decode(),
            str(body.get("currency") or ""),
        )


def total(
    tokens: int | None, cost: int | None, child_tokens: int, child_cost: int | None
) -> tuple[int | None, int | None]:
    """Return tokens and cost with those of child runs. An unknown cost counts as 0 if the other is known."""
    known = [one for one in (cost, child_cost) if one is not None]
    return None if tokens is None else tokens + child_tokens, sum(known) if known else None


class Identity(NamedTuple):
    """What a run belongs to; None for a part that has not changed."""

    fingerprint: str | None = None
    """Fingerprint of the graph, after a migration or a change of the live machine."""
    agent: str | None = None
    """Name of the agent, after a transfer."""
    agent_version: str | None = None
    """Version of the agent that drives the run, if it is another one."""

    def over(self, before: Identity | None) -> Identity:
        """Return this change after an earlier one."""
        pairs = zip(self, before or Identity(), strict=True)
        return Identity(*(was if now is None else now for now, was in pairs))


class HeadChange(NamedTuple):
    """The change of a head by an append."""

    status: RunStatus
    state: tuple[str, float] | None = None
    """The new state, and the time of its entry; None if the state has not changed."""
    usage: Used | None = None
    """Usage of the run itself so far; None if it has not changed."""
    children: Used | None = None
    """Usage of its child runs so far; None if it has not changed."""
    identity: Identity | None = None
    """What the run belongs to; None if that has not changed."""

    def then(self, later: HeadChange) -> HeadChange:
        """Return both changes as one."""
        return HeadChange(
            later.status,
            later.state or self.state,
            later.usage or self.usage,
            later.children or self.children,
            later.identity.over(self.identity) if later.identity else self.identity,
        )

    @property
    def total(self) -> tuple[int | None, int | None]:
        """Tokens and cost of the run with its child runs; None if they are not known."""
        own, below = self.usage or (None, None), self.children or NOTHING
        return total(own[0], own[1], below[0], below[1])


def status_after(kind: str, body: Mapping[str, Any]) -> RunStatus:
    """Return the status of a run whose last record is this one."""
    if kind in ENDING_KINDS:
        return RunStatus(ENDED, str(body.get("reason") or ""), str(body.get("outcome") or ""))
    if kind in PARKING_KINDS:
        names = body.get("tools") or body.get("questions") or ()
        return RunStatus(PARKED, str(body.get("reason") or ""), "", ", ".join(map(str, names))[:LONGEST])
    return _IS_OPEN


_IS_OPEN: Final = RunStatus()
UNCHANGED: Final = HeadChange(_IS_OPEN)


def head_change(records: Sequence[tuple[str, Mapping[str, Any]]]) -> HeadChange:
    """Return the change by an append: kind and body of each record, encoded or not."""
    state: tuple[str, float] | None = None
    usage: Used | None = None
    children: Used | None = None
    identity: Identity | None = None
    for kind, body in records:
        if kind == "transition":
            if "internal" not in body:
                state = str(body.get("dest", "")), float(body.get("at", 0.0))
            if "fingerprint" in body:
                identity = Identity(str(body["fingerprint"])).over(identity)
        elif kind in PARKING_KINDS:
            if "fingerprint" in body:
                identity = Identity(str(body["fingerprint"])).over(identity)
        elif kind in _CHANGES:
            changes = body if kind == "context" else body.get("context") or {}
            own, below = _used(changes)
            usage, children = own or usage, below or children
            if kind not in _NO_STATE and body.get("state"):
                state = str(body["state"]), float(body.get("at", 0.0))
            changed = _identity(kind, body)
            identity = changed.over(identity) if changed else identity
    return HeadChange(status_after(*records[-1]), state, usage, children, identity)


def _identity(kind: str, body: Mapping[str, Any]) -> Identity | None:
    """Return what a record changes about the graph and the agent of a run; None for nothing."""
    if kind == "migrated":
        return Identity(str(body["to"]))
    if kind != "resumed" or not ("agent" in body or "agent_version" in body):
        return None
    return Identity(None, body.get("agent"), body.get("agent_version"))


def head_of(records: Iterable[tuple[str, Mapping[str, Any]]]) -> HeadChange:
    """Return the head from all records of a run, also from records that do not name the tools of open questions."""
    asked: dict[str, str] = {}
    whole: list[tuple[str, Mapping[str, Any]]] = []
    for kind, body in records:
        if kind == "asked":
            asked[str(body.get("key"))] = str(body.get("tool", ""))
        elif kind in PARKING_KINDS and "tools" not in body:
            body = {**body, "tools": sorted({asked[key] for key in body.get("calls", ()) if key in asked})}  # noqa: PLW2901
        whole.append((kind, body))
    return head_change(whole) if whole else UNCHANGED


def disagreement(head: RunHead, records: Iterable[Record]) -> str:
    """Return a sentence if the head of a run is not that of its records, else ""."""
    change = head_of((record.kind, record.body) for record in records)
    if change.identity and change.identity.agent not in {None, head.agent}:
        return f"run {head.run_id!r}: its row and its records do not agree about its agent"
    found = (*(change.state or ("", None)), *change.total, change.status.outcome)
    if found == (head.state, head.state_since, head.tokens, head.cost_micros, head.outcome):
        return ""
    return (
        f"run {head.run_id!r}: its row and its records do not agree about its state, outcome, tokens or cost"
    )


def _used(context: Mapping[str, Any]) -> tuple[Used | None, Used | None]:
    """Return the usage of the run and of its child runs in changes of a context, None where they have none.

    A host's context may have any form.
    """
    try:
        if "spent" in context:
            spent = context["spent"]
            below = _part(spent, "below")
            return _numbers(_part(spent, "usage")), NOTHING if below is None else _numbers(
                _part(below, "usage")
            )
        own, below = context.get("spent.usage", context.get("usage")), context.get("spent.below")
        if own is None and type(context.get("tokens")) is int:
            own = Usage(context["tokens"])
        return _numbers(own), None if below is None else _numbers(_part(below, "usage"))
    except (TypeError, ValueError, AttributeError):
        return None, None


def _numbers(usage: Any) -> Used | None:
    if usage is None:
        return None
    used = Usage.of(usage)
    return used.input_tokens + used.output_tokens, used.cost_micros


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)


CLAIM_KINDS = frozenset(("claimed", "resumed"))
"""Records that only state the owner of the run; they are not progress (`RunHead.stuck_claims`)."""

SEPARATOR: Final = ","
"""Between the kinds of a row: no kind contains it."""


def chained(before: str, run_id: str, seq: int, epoch: int, kinds: str, body: bytes) -> str:  # noqa: PLR0917
    """Return the hash (hex) of a row: SHA-256 over the hash before it and each of its parts, with their lengths."""
    number = b"%d" % seq
    parts = (_counted(run_id), len(number), number, _counted(epoch), _counted(kinds), len(body), body)
    return hashlib.sha256(b"%s%s%d:%s%s%s%d:%s" % (before.encode(), *parts)).hexdigest()


@functools.lru_cache(maxsize=1_000)
def _counted(part: str | int) -> bytes:
    """Return what is the same in many records with its length before it."""
    text = str(part).encode()
    return b"%d:%s" % (len(text), text)


def encoded(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON. Raises JournalError if it is not plain data.

    The body is encoded when it is appended, so that a later change of it does not change the record, and so that the
    store in memory refuses the same bodies as the others.
    """
    try:
        return orjson.dumps(body, default=plain)
    except TypeError as error:
        raise JournalError(f"a record of kind {kind!r} is not plain data: {error}") from error


def plain(value: object) -> object:
    """Return the JSON form of a value that orjson does not know. Raises TypeError if there is none."""
    if isinstance(value, _SEQUENCES):
        return list(value)
    if isinstance(value, _SETS):
        return (
            sorted(value, key=repr) if len(value) > 1 else list(value)
        )  # the order differs between processes
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_SEQUENCES = (tuple, deque)
"""Concrete classes are asked first: an ABC is ten times as slow, and a union is made anew at each call."""
_SETS = (frozenset, set)


def encoded_append(drafts: Sequence[Draft]) -> tuple[str, bytes]:
    """Return the kinds of the records of one append, joined by commas, and their bodies.

    One body is a JSON object, several are an array of objects. Raises JournalError for a body that is not plain data.
    """
    if len(drafts) == 1:
        kind, body = drafts[0]
        return _joined((kind,)), encoded(kind, body)
    kinds: list[str] = []
    bodies: list[Any] = []
    for kind, body in drafts:  # `zip` takes longer
        kinds.append(kind)
        bodies.append(body)
    joined = _joined(tuple(kinds))
    try:
        return joined, orjson.dumps(bodies, plain)
    except TypeError:  # `encoded` raises the error that names the kind
        return joined, b"[%s]" % b",".join([encoded(kind, body) for kind, body in drafts])


@functools.lru_cache(maxsize=1_000)
def _joined(kinds: tuple[str, ...]) -> str:
    """Return the kinds as one text, the same object for the same kinds. Raises JournalError for a comma in one."""
    for kind in kinds:
        if SEPARATOR in kind:
            raise JournalError(f"the kind of a record is {kind!r}; it must not contain a comma")
    return SEPARATOR.join(kinds)


@functools.lru_cache(maxsize=1_000)
def only_claims(kinds: str) -> bool:
    """Return whether an append of these kinds counts as no progress."""
    return CLAIM_KINDS.issuperset(kinds.split(SEPARATOR))


def check_blob(digest: str, content: bytes) -> None:
    """Raise JournalError for a blob whose name is not the SHA-256 of its content."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise JournalError(f"blob {digest!r} is not named by the SHA-256 of its content")


def verified_blob(digest: str, content: bytes | None) -> bytes:
    """Return the content stored under a digest. Raises Corrupt if it is missing or has another digest."""
    if content is None:
        raise Corrupt(f"blob {digest!r} is not in the journal")
    if hashlib.sha256(content).hexdigest() != digest:
        raise Corrupt(f"blob {digest!r} is damaged: its content has another digest")
    return content


def drafts_of(kinds: str, body: bytes) -> list[Draft]:
    """Decode an append; the opposite of `encoded_append`. Raises Corrupt if there is not one body for each kind."""
    return list(map(Draft, *_split(kinds, body)))


def excerpts_of(rows: Iterable[tuple[str, str, bytes]]) -> dict[str, list[Draft]]:
    """Return the records of each run, from run id, kinds and body of its appends in order.

    A run with an append that cannot be decoded is left out: a listing shows the others, and `load` reports it.
    """
    found: dict[str, list[Draft]] = {}
    damaged: set[str] = set()
    for run_id, kinds, body in rows:
        try:
            found.setdefault(run_id, []).extend(drafts_of(kinds, body))
        except (ValueError, Corrupt):
            damaged.add(run_id)
    return {run_id: drafts for run_id, drafts in found.items() if run_id not in damaged}


def _split(kinds: str, body: bytes) -> tuple[tuple[str, ...], list[Any]]:
    """Return the kinds and the decoded bodies of an append."""
    names, decoded = _names(kinds), orjson.loads(body)
    bodies = decoded if len(names) > 1 else [decoded]
    if not isinstance(bodies, list) or len(bodies) != len(names):
        raise Corrupt(f"an append of {kinds!r} has another number of bodies than of kinds")
    return names, bodies


@functools.lru_cache(maxsize=1_000)
def _names(kinds: str) -> tuple[str, ...]:
    return tuple(kinds.split(SEPARATOR))


Row: TypeAlias = tuple[int, int, str, bytes, str]
"""One append as it is stored: number of its last record, epoch, kinds, body, hash. The hash covers all of its records
and the row before. It is a plain tuple, as stores return it: the garbage collector forgets those that hold no other
object, and it examines named ones for as long as they live."""


def _first(row: Row) -> int:
    """Return the number of the first record of a row."""
    return row[0] - row[2].count(SEPARATOR)


def _records(row: Row) -> Iterator[Record]:
    """Return the records of a row, decoded."""
    seq, epoch, kinds, body, digest = row
    names, bodies = _split(kinds, body)
    numbers = range(seq + 1 - len(names), seq + 1)
    return map(_record, zip(numbers, repeat(epoch), names, bodies, repeat(digest), strict=False))


def _drafts(row: Row) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return kind and body of the records of a row, decoded."""
    return zip(*_split(row[2], row[3]), strict=True)


_record: Callable[[Iterable[Any]], Record] = functools.partial(tuple.__new__, Record)
"""Makes a record of its values. A run has thousands, and the constructor of a NamedTuple takes five times as long."""


class VerifiedRecords(Sequence[Record]):
    """Records of a run, verified by the chain. Each reading decodes them again, so keep a list to read them often.

    Reading raises Corrupt for an append that cannot be decoded.

    Args:
        run_id: The run.
        rows: Its rows in order, at least those of the records.
        numbers: The numbers of the records.
    """

    __slots__ = ("_numbers", "_rows", "_run_id")

    def __init__(self, run_id: str, rows: Sequence[Row], numbers: range) -> None:
        self._run_id = run_id
        self._rows = rows
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Record]:
        return self._each(_records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            numbers = self._numbers[index]
            return self._part(numbers) if numbers.step == 1 else [*self][index]
        number = self._numbers[index]
        return next(iter(self._part(range(number, number + 1))))

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr([*self])

    def drafts(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Return kind and body of each record."""
        return self._each(_drafts)

    def _part(self, numbers: range) -> VerifiedRecords:
        return VerifiedRecords(self._run_id, self._rows, numbers)

    def _each(self, of_row: Callable[[Row], Iterator[T]]) -> Iterator[T]:
        """Return what the rows have for each of the records."""
        numbers = self._numbers
        at = bisect_left(self._rows, numbers.start, key=_last)
        before = numbers.start - _first(self._rows[at]) if numbers else 0
        decoded = map(self._decoded, repeat(of_row), islice(self._rows, at, None))
        return islice(chain.from_iterable(decoded), before, before + len(numbers))

    def _decoded(self, of_row: Callable[[Row], Iterator[T]], row: Row) -> Iterator[T]:
        try:
            return of_row(row)
        except (ValueError, Corrupt) as error:
            raise Corrupt(f"run {self._run_id!r}: record {_first(row)} cannot be decoded: {error}") from error


_last: Callable[[Row], int] = itemgetter(0)


def verified(run_id: str, rows: Iterable[Row], head: RunHead, last_hash: str) -> list[Row]:
    """Return all rows of a run, verified by the chain and the head; nothing is decoded. Raises Corrupt."""
    found = list(rows)
    before, last, last_epoch = NO_HASH, -1, 0
    for seq, epoch, kinds, body, digest in found:
        before = chained(before, run_id, seq, epoch, kinds, body)
        if seq - kinds.count(SEPARATOR) != last + 1 or before != digest or epoch < last_epoch:
            raise Corrupt(f"run {run_id!r}: record {last + 1} is damaged; nothing of the run is used")
        last, last_epoch = seq, epoch
    if not found or last != head.seq or before != last_hash or last_epoch > head.epoch:
        raise Corrupt(
            f"run {run_id!r}: {last + 1} records, {head.seq + 1} were written; nothing of the run is used"
        )
    return found


def records_of(
    run_id: str, rows: Iterable[Row], head: RunHead, last_hash: str, since: int = 0
) -> VerifiedRecords:
    """Return the records from number `since` on, after the whole run was verified. Raises Corrupt or TooNew."""
    proved = verified(run_id, rows, head, last_hash)
    whole = VerifiedRecords(run_id, proved, range(head.seq + 1))
    created, last = whole[0], whole[-1]  # decoded in any case: the head is compared with them
    schema = created.body.get("schema", RECORD_SCHEMA)
    if schema > RECORD_SCHEMA:
        raise TooNew(
            f"run {run_id!r} has records of version {schema}; this version reads up to {RECORD_SCHEMA}"
        )
    made = str(created.body.get("fingerprint", ""))
    if str(created.body.get("graph", "")) != head.graph or (
        made != head.fingerprint and not _has_followed(whole, head.fingerprint)
    ):
        raise Corrupt(
            f"run {run_id!r}: its row and its first record do not agree; nothing of the run is used"
        )
    if status_after(last.kind, last.body)[:2] != (head.status, head.reason):
        raise Corrupt(f"run {run_id!r}: its records and its status do not agree; nothing of the run is used")
    if since <= 0:
        return whole
    wanted = range(since, head.seq + 1)
    return VerifiedRecords(run_id, [row for row in proved if row[0] >= since], wanted)


def drafts_in(records: Iterable[Record]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return kind and body of each record."""
    if isinstance(records, VerifiedRecords):
        return records.drafts()
    return ((record.kind, record.body) for record in records)


_TABLE_OF = {"migrated": "to", "transition": "fingerprint", "parked": "fingerprint"}
"""Kind of a record -> the member that names another version of the graph."""


def _has_followed(records: VerifiedRecords, fingerprint: str) -> bool:
    """Return whether a run was migrated to a version of its graph, or has followed a change of the live machine."""
    return any(body.get(_TABLE_OF.get(kind, "")) == fingerprint for kind, body in records.drafts())
