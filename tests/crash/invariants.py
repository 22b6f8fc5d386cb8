"""What "nothing is lost" means, checked after every fault: one function, `check`.

A worker writes a client log: `TRY` before it asks, `ACK` when it was told that it is durable. Bodies follow from
names, so the log need not hold them. Of durability.md §8, at the level of the store:

I1 each acknowledged record is there with the same bytes; I2 records are 0..n, their chain and head right;
I7 epochs never decrease; I8 an append is wholly there or wholly absent.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.errors import RunUnknown
from orchestrator.kernel.journal import NO_HASH, Draft, Journal, Record, chained

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


def check_chain(run: str, records: list[Record]) -> None:
    """I2 and I7, with the hashes computed anew."""
    before, epoch = NO_HASH, 0
    for number, record in enumerate(records):
        assert record.seq == number, f"I2 {run}: record {number} is {record.seq}"
        before = chained(before, run, number, record.epoch, record.kind, orjson.dumps(record.body))
        assert record.hash == before, f"I2 {run}: chain breaks at {number}"
        assert record.epoch >= epoch, f"I7 {run}: epoch {record.epoch} after {epoch}"
        epoch = record.epoch


def check_batches(run: str, records: list[Record], log: Log) -> None:
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
