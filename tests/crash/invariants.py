"""What "nothing is lost" means, checked after every fault: `check` for a store, `check_run` for a run of the loop.

A worker writes a client log: `TRY` before it asks, `ACK` when it was told that it is durable. Bodies follow from
names, so the log need not hold them. Of durability.md §8, at the level of the store:

I1 each acknowledged record is there with the same bytes; I2 records are 0..n, their chain and head right;
I7 epochs never decrease; I8 an append is wholly there or wholly absent.

And of a run, beside these: I3 its transitions are a path of the table; I4 each call is done once; I5 none is open at
rest; I6 files are what the journal says (`check_files`); I9 all that a model served is charged; I10 nobody dead holds
it and it says what will happen; I11 the journal says what memory has; I12 the decisions of its guards follow from its
records.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson

from orchestrator.errors import RunUnknown
from orchestrator.journal.codec import chained
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import NO_HASH, Draft, Journal, Record
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.backtest.comparison import compare
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.backtest.trace import trace_of
from orchestrator.runtime.llm_loop.agent import Agent
from tests.crash.effect_invariants import check_effects
from tests.crash.outside import EFFECTS, History

BIG = 1 << 20


def drafts(run: str, batch: str, count: int) -> list[Draft]:
    """Return the drafts of a batch: everything in them follows from the names."""
    return [Draft("note", body(run, batch, part, count)) for part in range(count)]


def body(run: str, batch: str, part: int, count: int) -> dict[str, Any]:
    chance = random.Random(f"{run} {batch} {part}")
    return {"batch": batch, "part": part, "of": count, "text": chance.randbytes(chance.randrange(600)).hex()}


def blob(run: str, batch: str, size: int) -> bytes:
    """Return `size` bytes, cheaply."""
    return (random.Random(f"{run} {batch}").randbytes(1000) * (size // 1000 + 1))[:size]


@dataclass(slots=True)
class Log:
    """The client's history: what was asked, and what was acknowledged."""

    created: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    tried: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    acknowledged: set[tuple[str, str]] = field(default_factory=set)
    posted: set[tuple[str, str]] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Log:
        log = cls()
        for line in lines:
            match line.split():
                case ["ACK", "create", run]:
                    log.created.add(run)
                case ["TRY", "erase", run]:
                    log.erased.add(run)
                case ["TRY", "append", run, batch, count, size]:
                    log.tried[run, batch] = int(count), int(size)
                case ["ACK", "append", run, batch]:
                    log.acknowledged.add((run, batch))
                case ["ACK", "post", run, name]:
                    log.posted.add((run, name))
                case ["COUNT", name, number]:
                    log.numbers[name] = int(number)
        return log


async def check(journal: Journal, log: Log) -> None:
    """Raise AssertionError for the first invariant that does not hold."""
    for run in sorted(log.created - log.erased):
        records = await journal.load(run)
        check_chain(run, records)
        head = await journal.head(run)
        assert head.seq == len(records) - 1, f"I2 {run}: head"
        check_batches(run, records, log)
        await check_blobs(journal, run, log)
        posts = [post.id for post in await journal.inbox(run)]
        assert len(set(posts)) == len(posts), f"I8 {run}: a request twice"
        missing = {name for of, name in log.posted if of == run} - set(posts)
        assert not missing, f"I1 {run}: requests {missing} are lost"
    for run in sorted(log.erased):
        try:
            check_chain(run, await journal.load(run))
        except RunUnknown:
            continue
    async for head in journal.runs():
        if head.run_id not in log.created:
            check_chain(head.run_id, await journal.load(head.run_id))


def check_chain(run: str, records: Sequence[Record]) -> None:
    """I2 and I7, with the hash of each append computed anew."""
    before, epoch = NO_HASH, 0
    for number, record in enumerate(records):
        assert record.seq == number, f"I2 {run}: record {number} is {record.seq}"
        assert record.epoch >= epoch, f"I7 {run}: epoch {record.epoch} after {epoch}"
        epoch = record.epoch
    for stored, group in groupby(records, lambda record: record.hash):
        appended = list(group)
        last = appended[-1]
        bodies = [record.body for record in appended]
        text = orjson.dumps(bodies if len(bodies) > 1 else bodies[0])
        kinds = ",".join(record.kind for record in appended)
        before = chained(before, run, last.seq, last.epoch, kinds, text)
        assert stored == before, f"I2 {run}: chain breaks at {last.seq}"


def check_batches(run: str, records: Sequence[Record], log: Log) -> None:
    """I1 and I8: each batch is whole, once, and what it was; an acknowledged one is there."""
    found: Counter[str] = Counter()
    for record in records:
        if record.kind != "note":
            continue
        batch, part = record.body["batch"], record.body["part"]
        count, _ = log.tried[run, batch]
        assert part == found[batch], f"I8 {run}: batch {batch} is not in order, or twice"
        assert record.body == body(run, batch, part, count), f"I1 {run}: batch {batch} part {part} differs"
        found[batch] += 1
    for (of, batch), (count, _) in log.tried.items():
        if of == run:
            assert found[batch] in (0, count), f"I8 {run}: batch {batch} is there in part"
            assert found[batch] or (of, batch) not in log.acknowledged, f"I1 {run}: batch {batch} is lost"


async def check_blobs(journal: Journal, run: str, log: Log) -> None:
    """A blob is there when its record is acknowledged."""
    for (of, batch), (_, size) in log.tried.items():
        if of == run and size and (of, batch) in log.acknowledged:
            content = blob(run, batch, size)
            assert await journal.blob(hashlib.sha256(content).hexdigest()) == content, f"I1 {run}: blob"


# ---- whole runs ----


@dataclass(frozen=True, slots=True)
class Ran:
    """What `check_run` found."""

    state: StoredRun
    records: Sequence[Record]
    charged: int
    served: int


async def check_run(
    journal: Journal, run: str, history: History, *, agent: Agent, alive: bool = False, older: bool = False
) -> Ran:
    """Raise AssertionError for the first of I1 to I12 that does not hold of a run of the loop.

    To be asked when nobody drives it, unless `alive`: then what only holds at rest is left out. The records of a run
    that an `older` version started have no inputs of guards.
    """
    records = await journal.load(run)
    head = await journal.head(run)
    check_chain(run, records)
    assert head.seq == len(records) - 1, f"I2 {run}: head"
    check_appends(run, records, history)
    check_path(run, records, history)
    check_effects(run, records, rest=not alive and head.status == "ended")
    check_counts(run, records, history)
    if not older:
        check_identity(run, records)
    state = StoredRun.of(run, records)
    ran = Ran(state, records, charged(state), sum(line["tokens"] for line in history.of("served", run)))
    if not alive:
        await check_standing(journal, run, state, agent)
        assert ran.charged >= ran.served or state.asks_the_model, (
            f"I9 {run}: {ran.charged} of {ran.served} charged"
        )
    if head.status == "ended":
        assert ran.charged >= ran.served, f"I9 {run}: {ran.charged} of {ran.served} tokens charged"
        check_memory(run, records, history)
    return ran


def check_identity(run: str, records: Sequence[Record]) -> None:
    """I12: under its own policy a backtest finds no difference in the run."""
    found = compare(trace_of(run, records), Policy())
    assert (found.change, found.left_out) == ("none", ""), f"I12 {run}: {found}"


def charged(state: StoredRun) -> int:
    """Return the tokens that a run was billed for."""
    usage = (state.context.get("spent") or {}).get("usage") or {}
    return int(usage.get("input_tokens", 0)) + int(usage.get("output_tokens", 0))


def check_appends(run: str, records: Sequence[Record], history: History) -> None:
    """I1 and I8: what was acknowledged is there with the same bytes, the rest wholly or not at all."""
    found = {
        (record.epoch, record.seq): [record.kind, orjson.dumps(record.body).decode()] for record in records
    }
    acknowledged = {(line["epoch"], line["first"]) for line in history.of("ack", run)}
    for line in history.of("try", run):
        epoch, first = line["epoch"], line["first"]
        there = [found.get((epoch, first + at)) == body for at, body in enumerate(line["bodies"])]
        assert len(set(there)) == 1, f"I8 {run}: the append at {first} is there in part"
        assert there[0] or (epoch, first) not in acknowledged, f"I1 {run}: the append at {first} is lost"


def check_path(run: str, records: Sequence[Record], history: History) -> None:
    """I3: the transitions are a path of the table; I1: the host was told of no other."""
    edges = {(source, edge.event, edge.dest) for edge in LLM_LOOP.edges for source in edge.sources}
    stands = LLM_LOOP.initial.value
    taken: list[list[str]] = []
    for body in (record.body for record in records if record.kind == "transition"):
        assert body["seq"] == len(taken) + 1, f"I3 {run}: transition {len(taken) + 1} is {body['seq']}"
        edge = (body["source"], body["event"], body["dest"])
        assert body["source"] == stands, f"I3 {run}: {edge} begins elsewhere than in {stands}"
        assert edge in edges, f"I3 {run}: {edge} is in no table"
        stands = body["dest"]
        taken.append([*edge])
    ends = [record.seq for record in records if record.kind == "ended"]
    assert ends in ([], [len(records) - 1]), f"I3 {run}: it went on after its end"
    for line in history.of("told", run):
        assert line["edge"] in taken[line["seq"] - 1 : line["seq"]], f"I1 {run}: the host was told of {line}"


def check_counts(run: str, records: Sequence[Record], history: History) -> None:
    """Finished effects never run twice, and none runs that was not announced."""
    announced = {
        f"{run}:{call['key']}"
        for record in records
        if record.kind == "intent" and record.body.get("effect") == "tool"
        for call in record.body["calls"]
    }
    for tool, effect in EFFECTS.items():
        counts = history.effects(tool, run) if effect != "compensable" else history.outstanding(tool, run)
        assert set(counts) <= announced, f"I4 {run}: {tool} ran without an intent"
        if effect != "pure":
            assert all(count == 1 for count in counts.values()), f"I4 {run}: {tool} took effect {counts}"


async def check_standing(journal: Journal, run: str, state: StoredRun, agent: Agent) -> None:
    """I10: nobody holds it, and it says where it stands, why, and what will happen."""
    head = await journal.head(run)
    assert head.owner is None, f"I10 {run}: {head.owner} still holds it"
    plans = {plan.run_id: plan for plan in await agent.hosting.open_runs()}
    if head.status == "ended":
        assert head.reason, f"I10 {run}: ended without a reason"
        assert run not in plans, f"I10 {run}: it has ended and is listed as open"
        return
    plan = plans[run]
    assert plan.will, f"I10 {run}: nobody knows what will happen"
    assert (plan.status, plan.reason) == (head.status, head.reason)
    assert plan.status == "open" or plan.reason, f"I10 {run}: parked without a reason"
    assert plan.state == (state.state or LLM_LOOP.initial.value)


def check_memory(run: str, records: Sequence[Record], history: History) -> None:
    """I11: the journal says that the exchange is in memory exactly where it is; a run stopped meanwhile cannot know."""
    last = next(record.body for record in reversed(records) if record.kind == "transition")
    if (last["source"], last["event"]) == ("finalize", "failure"):
        return
    said = [record.body["stored"] for record in records if record.kind == "memory"]
    assert said.count(True) <= 1, f"I11 {run}: said {len(said)} times"
    assert bool(said and said[-1]) == bool(history.of("stored", run)), f"I11 {run}: {said}"
