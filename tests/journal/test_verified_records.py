"""The records of a run are decoded when they are read, and are then those of a list of all of them."""

from __future__ import annotations

import asyncio
import gc
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Corrupt
from orchestrator.journal.codec import (
    Row,
    VerifiedRecords,
    chained,
    drafts_of,
    encoded_append,
    records_of,
    status_after,
)
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import NO_HASH, Draft, Record, RunHead
from orchestrator.testing.journal_contract import BODY, write
from tests.tiers import examples

RUN = "run"


def body(draw: random.Random) -> dict[str, Any]:
    """Return a body with values of each type, and with text that looks like JSON."""
    quoting = '},{"kind":"x"}'
    values: tuple[Any, ...] = (
        None,
        True,
        draw.random(),
        2**53,
        quoting,
        "größer ☃",
        [1, [2]],
        {"a": {"b": []}},
    )
    return {f"n{number}": draw.choice(values) for number in range(draw.randrange(4))}


def appends(draw: random.Random) -> list[list[Draft]]:
    """Return the drafts of some appends, the first of which is the creation of the run."""
    return [
        [Draft("created", {**BODY, **body(draw)})],
        *(
            [Draft(draw.choice(("note", "done", "parked")), body(draw)) for _ in range(draw.randint(1, 5))]
            for _ in range(draw.randrange(8))
        ),
    ]


def stored(written: list[list[Draft]]) -> tuple[list[Row], RunHead]:
    """Return the rows of these appends, and the head of their run."""
    rows: list[Row] = []
    before = NO_HASH
    for seq, drafts in zip(accumulate(map(len, written)), written, strict=True):
        kinds, content = encoded_append(drafts)
        before = chained(before, RUN, seq - 1, 1, kinds, content)
        rows.append((seq - 1, 1, kinds, content, before))
    return rows, head(rows[-1][0], written[-1][-1])


def head(seq: int, last: Draft) -> RunHead:
    """Return the head of a run whose last record this is."""
    status = status_after(*last)
    return RunHead(
        RUN, BODY["graph"], BODY["fingerprint"], status.status, seq, 1, None, 0.0, 0.0, status.reason
    )


def decoded(rows: list[Row]) -> list[Record]:
    """Return the records of all rows."""
    return [
        Record(number, epoch, kind, content, digest)
        for last, epoch, kinds, joined, digest in rows
        for number, (kind, content) in enumerate(drafts_of(kinds, joined), last - kinds.count(","))
    ]


def test_verified_records_are_a_sequence_of_all_records_from_a_number_on(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(examples(200)):
        rows, of_run = stored(appends(draw))
        whole = decoded(rows)
        since = draw.choice((0, draw.randrange(-2, len(whole) + 3)))
        found, expected = records_of(RUN, rows, of_run, rows[-1][-1], since), whole[max(0, since) :]
        assert len(found) == len(expected)
        assert [*found] == [*found] == expected == found
        assert [*found.drafts()] == [(record.kind, record.body) for record in expected]
        assert [*reversed(found)] == expected[::-1]
        for index in range(-len(expected), len(expected)):
            assert found[index] == expected[index]
        for index in (len(expected), -len(expected) - 1):
            with pytest.raises(IndexError):
                found[index]
        bounds = (None, *range(-2, len(expected) + 2))
        cut = slice(draw.choice(bounds), draw.choice(bounds), draw.choice((None, 1, 2, 3, -1, -2)))
        part = found[cut]
        assert [*part] == expected[cut] == part
        inner = slice(draw.choice(bounds), draw.choice(bounds))
        assert [*part[inner]] == expected[cut][inner]
        assert (found == expected[1:]) is (not expected)


def test_a_run_read_from_verified_records_is_the_run_read_from_a_list_of_them(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(examples(100)):
        rows, of_run = stored(appends(draw))
        records = records_of(RUN, rows, of_run, rows[-1][-1])
        assert StoredRun.of(RUN, records) == StoredRun.of(RUN, decoded(rows))


def damaged(draw: random.Random, rows: list[Row]) -> list[Row]:
    """Return the rows with one of them changed, lost, repeated or at another place."""
    at = draw.randrange(len(rows))
    seq, epoch, kinds, joined, digest = rows[at]
    byte = draw.randrange(len(joined))
    flipped = joined[:byte] + bytes([joined[byte] ^ 1 << draw.randrange(8)]) + joined[byte + 1 :]
    other = f"{digest[:-1]}{'0' if digest[-1] != '0' else '1'}"
    changes: list[list[Row]] = [
        [(seq + draw.choice((-1, 1)), epoch, kinds, joined, digest)],
        [(seq, epoch + draw.choice((-1, 1)), kinds, joined, digest)],
        [(seq, epoch, draw.choice((f"{kinds},note", "x", "")), joined, digest)],
        [(seq, epoch, kinds, flipped, digest)],
        [(seq, epoch, kinds, joined, other)],
        [],
        [rows[at]] * 2,
        [*rows[at + 1 : at + 2], rows[at], rows[at]],
    ]
    return [*rows[:at], *draw.choice(changes), *rows[at + 1 :]]


def test_damage_to_any_row_is_reported_before_a_record_is_read(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(examples(300)):
        rows, of_run = stored(appends(draw))
        with pytest.raises(Corrupt):
            records_of(RUN, damaged(draw, rows), of_run, rows[-1][-1], draw.randrange(4))


def test_a_run_without_records_is_reported() -> None:
    with pytest.raises(Corrupt, match="0 records, 0 were written"):
        records_of(RUN, [], head(-1, Draft("note", {})), NO_HASH)


@pytest.mark.parametrize("content", [b"{", b"[{}]", b'[{},{},{"n":1}]', b"\xff", b"", b"7"])
def test_an_append_that_cannot_be_decoded_is_reported_when_it_is_read(content: bytes) -> None:
    """No writer makes such a row: its hash is right, and it lies between others."""
    rows, _ = stored([[Draft("created", BODY)], [Draft("note", {}), Draft("note", {})], [Draft("note", {})]])
    changed: list[Row] = []
    before = NO_HASH
    for seq, _, kinds, joined, _ in rows:
        kept = content if kinds == "note,note" else joined
        before = chained(before, RUN, seq, 1, kinds, kept)
        changed.append((seq, 1, kinds, kept, before))
    records = records_of(RUN, changed, head(3, Draft("note", {})), before)
    assert len(records) == 4, "no record is left out"
    for read in (list, lambda records: records[1], lambda records: StoredRun.of(RUN, records)):
        with pytest.raises(Corrupt, match=f"{RUN!r}.*record 1 "):
            read(records)
    assert records[3].kind == "note"


def test_a_loaded_run_keeps_no_object_that_the_garbage_collector_examines(tmp_path: Path) -> None:
    """It examines a record, and forgets a plain tuple without other objects."""

    async def kept() -> tuple[int, int]:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            lease = await journal.create(RUN, "me", BODY)
            for number in range(100):
                await write(journal, lease, *[Draft("note", {"n": [number], "of": {"a": {}}})] * 5)
            await journal.load(RUN)
            gc.collect()
            before = len(gc.get_objects())
            records = await journal.load(RUN)
            gc.collect()
            return len(gc.get_objects()) - before, len(records)

    objects, records = asyncio.run(kept())
    assert records == 501
    assert objects < 50, "some for the call, none for each of 101 appends"


def test_verified_records_show_what_they_are() -> None:
    rows, _ = stored([[Draft("created", BODY)]])
    records = VerifiedRecords(RUN, rows, range(1))
    assert repr(records) == repr(decoded(rows))
    assert records != object()
