"""The records of a context: what changed since the last one, and nothing else."""

from __future__ import annotations

import copy
import gc
from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.journal.codec import plain
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from tests.tiers import examples


class Point(NamedTuple):
    x: int
    name: str


@dataclass(slots=True)
class Slots:
    numbers: list[int] = field(default_factory=list)


@dataclass
class Account:
    point: Point = Point(0, "")  # noqa: RUF009 - it cannot be changed
    by_name: dict[str, int] = field(default_factory=dict)
    inner: Slots | None = None


@dataclass
class Context:
    iteration: int = 0
    point: Point | None = None
    account: Account = field(default_factory=Account)
    maybe: Account | None = None
    slots: Slots = field(default_factory=Slots)
    window: tuple[Point, ...] = ()
    recent: deque[int] = field(default_factory=deque)
    anything: Any = None


class Stage:
    """A run as far as a codec looks at it, and what its records say."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.saved: Any = None
        self.codec = ContextCodec(Context, windows=("window",))
        self.records = [Record(0, 1, "created", as_stored(self.codec.opening(self)), "")]  # type: ignore[arg-type]

    def changes(self) -> dict[str, Any]:
        changed = self.codec.changes(self)  # type: ignore[arg-type]
        self.records.append(Record(len(self.records), 1, "context", as_stored(changed), ""))
        return changed

    @property
    def stored(self) -> Any:
        return StoredRun.of("r", self.records).context


def as_stored(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, plain))


def whole(ctx: Context) -> Any:
    return as_stored(copy.deepcopy(ctx))


SMALL = st.integers(0, 2)
POINTS = st.builds(Point, SMALL, st.sampled_from("ab"))
SLOTS = st.builds(Slots, st.lists(SMALL, max_size=3))
ACCOUNTS = st.builds(
    Account, POINTS, st.dictionaries(st.sampled_from("ab"), SMALL, max_size=2), st.none() | SLOTS
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "iteration": SMALL,
    "point": st.none() | POINTS,
    "account": ACCOUNTS,
    "maybe": st.none() | ACCOUNTS,
    "slots": SLOTS,
    "window": st.lists(POINTS, max_size=5).map(tuple),
    "recent": st.lists(SMALL, max_size=5).map(deque),
    "anything": st.none()
    | st.lists(SMALL | SLOTS, max_size=2)
    | st.dictionaries(st.sampled_from("ab"), SLOTS),
}
ASSIGNMENTS = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name]))
IN_PLACE: dict[str, Any] = {
    "account.point": lambda ctx, n: setattr(ctx.account, "point", Point(n, "a")),
    "account.by_name": lambda ctx, n: ctx.account.by_name.update(a=n),
    "account.inner": lambda ctx, n: ctx.account.inner and ctx.account.inner.numbers.extend([n]),
    "maybe.by_name": lambda ctx, n: ctx.maybe and ctx.maybe.by_name.update(b=n),
    "slots.numbers": lambda ctx, n: ctx.slots.numbers.append(n),
    "window, moved on": lambda ctx, n: setattr(ctx, "window", (*ctx.window[-3:], Point(n, "b"))),
    "recent, moved on": lambda ctx, n: ctx.recent.append(n),
    "recent, one of the middle": lambda ctx, n: (
        ctx.recent and ctx.recent.__setitem__(len(ctx.recent) // 2, n)
    ),
    "anything, longer": lambda ctx, n: (
        isinstance(ctx.anything, list) and ctx.anything.append(n)  # type: ignore[func-returns-value]
    ),
}
EDITS = ASSIGNMENTS | st.tuples(st.sampled_from(sorted(IN_PLACE)), SMALL)


def edit(ctx: Context, name: str, value: Any) -> None:
    if name in IN_PLACE:
        IN_PLACE[name](ctx, value)
    else:
        setattr(ctx, name, value)


@settings(max_examples=examples(150))
@given(st.lists(st.lists(EDITS, max_size=3), max_size=8))
def test_the_records_of_a_context_give_the_context(turns: list[list[tuple[str, Any]]]) -> None:
    stage = Stage(Context())
    for edits in turns:
        before = whole(stage.ctx)
        for name, value in edits:
            edit(stage.ctx, name, copy.deepcopy(value))
        now = whole(stage.ctx)
        written = stage.changes()
        assert {name.partition(".")[0] for name in written} == {
            name for name in now if now[name] != before[name]
        }
        assert stage.stored == now
    assert stage.changes() == {}


def generic_changes(before: Context, now: Context) -> dict[str, Any]:
    """What a record has of a change, found by a loop over the fields of two copies of a context."""
    changed: dict[str, Any] = {}
    in_place = [one.name for one in fields(Context) if one.name not in {"iteration", "point"}]
    for name in ("iteration", "point", *in_place):  # values that cannot be changed in place come first
        was, one = getattr(before, name), getattr(now, name)
        if type(was) is type(one) and was == one:
            continue
        if name == "account":
            parts = (
                (part.name, getattr(was, part.name), getattr(one, part.name)) for part in fields(Account)
            )
            changed.update({f"account.{part}": value for part, other, value in parts if value != other})
        elif name in {"window", "recent"}:
            old, new = list(was), list(one)
            most = min(len(old), len(new)) - (len(old) == len(new))
            kept = next(n for n in range(most, -1, -1) if new[:n] == old[len(old) - n :])
            changed[name] = {"last": kept, "add": new[kept:]}
        else:
            changed[name] = one
    return changed


@settings(max_examples=examples(150))
@given(st.lists(st.lists(EDITS, max_size=3), max_size=8))
def test_the_generated_comparison_writes_byte_for_byte_what_a_loop_over_the_fields_finds(
    turns: list[list[tuple[str, Any]]],
) -> None:
    stage = Stage(Context())
    for edits in turns:
        before = copy.deepcopy(stage.ctx)
        for name, value in edits:
            edit(stage.ctx, name, copy.deepcopy(value))
        expected = orjson.dumps(generic_changes(before, stage.ctx), plain)
        assert orjson.dumps(stage.changes(), plain) == expected


@dataclass
class Noted(Account):
    """A class of a host, in place of the declared one."""

    note: str = ""


def test_a_value_of_a_subclass_is_written_with_the_fields_of_its_own_class() -> None:
    stage = Stage(Context())
    for value in (Noted(note="a"), Noted(note="b"), None, Account(), Account(by_name={"a": 1})):
        stage.ctx.account = value  # type: ignore[assignment]
        written = stage.changes()
        assert stage.stored == whole(stage.ctx)
        assert stage.changes() == {}
    assert written == {"account.by_name": {"a": 1}}


def test_two_contexts_of_one_class_are_compared_apart() -> None:
    one, other = Stage(Context()), Stage(Context())
    one.ctx.account.by_name["a"] = 1
    assert one.changes() == {"account.by_name": {"a": 1}}
    assert other.changes() == {}


def test_a_record_of_a_context_leaves_its_values_without_a_dict() -> None:
    # Python reads the attributes of an instance whose `__dict__` was asked for several times as slowly.
    stage = Stage(Context())
    stage.ctx.account.point = Point(1, "a")
    stage.changes()
    dicts = [one for one in gc.get_referents(stage.ctx.account) if isinstance(one, dict)]
    assert dicts == [stage.ctx.account.by_name]


def test_what_is_written_stays_as_it_was() -> None:
    stage = Stage(Context(account=Account(inner=Slots([1]))))
    stage.ctx.account.by_name["a"] = 1
    changed = stage.changes()
    written = as_stored(changed)
    stage.ctx.account.by_name["a"] = 2
    assert stage.ctx.account.inner is not None
    stage.ctx.account.inner.numbers.append(2)
    assert as_stored(changed) == written


def test_a_window_is_written_as_what_came_and_how_much_was_kept() -> None:
    stage = Stage(
        Context(window=(Point(1, "a"), Point(2, "a"), Point(3, "a")), recent=deque((1, 2, 3), maxlen=3))
    )
    stage.ctx.window = (*stage.ctx.window[1:], Point(4, "a"))
    stage.ctx.recent.append(4)
    moved = {"last": 2, "add": [[4, "a"]]}
    assert as_stored(stage.changes()) == {"window": moved, "recent": {"last": 2, "add": [4]}}


def test_a_field_that_becomes_a_value_of_another_class_is_written() -> None:
    stage = Stage(Context())
    stage.ctx.account = None  # type: ignore[assignment]
    assert stage.changes() == {"account": None}
    assert stage.changes() == {}
    stage.ctx.account = Account()
    assert as_stored(stage.changes()) == {"account": as_stored(Account())}


def test_a_changed_part_of_a_dataclass_is_written_alone_and_the_record_before_it_stays_as_it_is() -> None:
    stage = Stage(Context(account=Account(by_name={"a": 1})))
    stage.ctx.account.by_name["b"] = 2
    assert stage.changes() == {"account.by_name": {"a": 1, "b": 2}}
    stage.ctx.account.point = Point(3, "c")
    assert as_stored(stage.changes()) == {"account.point": [3, "c"]}
    assert stage.stored == whole(stage.ctx)
    assert stage.records[0].body["context"]["account"] == {
        "point": [0, ""],
        "by_name": {"a": 1},
        "inner": None,
    }


def test_a_whole_field_of_an_older_record_replaces_its_parts() -> None:
    stage = Stage(Context())
    stage.ctx.account.by_name["a"] = 1
    stage.changes()
    whole_account = as_stored(Account(by_name={"old": 5}))
    stage.records.append(Record(2, 1, "context", {"account": whole_account}, ""))
    stage.records.append(Record(3, 1, "context", {"account.point": [7, "z"]}, ""))
    assert stage.stored["account"] == {**whole_account, "point": [7, "z"]}
    assert whole_account["point"] == [0, ""]
