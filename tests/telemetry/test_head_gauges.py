"""The gauges of journals: each store once, labels that no process decides alone, and a store that fails."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import Agent, MemoryJournal, SqliteJournal
from orchestrator.kernel.journal import PARKED, RUNNING, Draft, HeadCount, HeadCounts
from orchestrator.telemetry.instrument import CAPS, HeadGauges, JournalReader, Values
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import ScriptedLLM


class Store:
    """A journal with these runs, which takes `seconds` to read."""

    backend = "postgres"

    def __init__(
        self, *counts: HeadCount, name: str = "1f2e3d4c", address: str = "postgresql://db/a"
    ) -> None:
        self.counts, self.name, self.address = counts, name, address
        self.reads = 0
        self.error: Exception | None = None
        self.clock = 0.0
        self.seconds = 0.0

    def head_counts(self) -> HeadCounts:
        self.reads += 1
        self.clock += self.seconds
        if self.error is not None:
            raise self.error
        return HeadCounts(self.name, self.counts)

    def now(self) -> float:
        return self.clock


def asks(
    runs: int = 1, agent: str = "support", machine: str = "llm_loop", reason: str = "approval"
) -> HeadCount:
    return HeadCount(machine, agent, PARKED, reason, runs, 50.0)


def gauges_of(*stores: Store) -> HeadGauges:
    found = HeadGauges()
    for store in stores:
        found.add(store)
    for reader in found._readers.values():
        reader._now = lambda: 0.0  # each read is quick, however long the machine takes for it
    return found


def runs(gauges: HeadGauges) -> Values:
    return gauges.collect()["journal_runs"]


def test_runs_are_counted_with_these_labels_and_the_time_of_the_oldest() -> None:
    store = Store(asks(2), HeadCount("llm_loop", "", RUNNING, "", 3, 60.0))
    found = gauges_of(store).collect()
    assert found == {
        "journal_runs": {
            ("1f2e3d4c", "llm_loop", "support", "parked", "approval"): 2,
            ("1f2e3d4c", "llm_loop", "_none", "running", "none"): 3,
        },
        "journal_oldest_update_timestamp_seconds": {
            ("1f2e3d4c", "llm_loop", "support", "parked", "approval"): 50.0,
            ("1f2e3d4c", "llm_loop", "_none", "running", "none"): 60.0,
        },
        "journal_info": {("1f2e3d4c", "postgres", "postgresql://db/a"): 1},
        "journal_read_failures_total": {(): 0.0},
    }


def test_several_journals_of_one_store_are_read_once_and_two_addresses_of_one_store_count_once() -> None:
    first, same, alias = Store(asks()), Store(asks()), Store(asks(), address="postgresql://10.0.0.3/a")
    gauges = gauges_of(first, same, alias)
    assert sum(runs(gauges).values()) == 1
    assert (first.reads, same.reads, alias.reads) == (1, 0, 1)
    assert len(gauges.collect()["journal_info"]) == 2


async def test_the_journals_in_memory_of_a_process_are_one() -> None:
    journals = [MemoryJournal(), MemoryJournal()]
    metrics = Metrics(CollectorRegistry())
    for journal in journals:
        metrics.count_runs(journal)
        lease = await journal.create(
            "r", "me", {"schema": 1, "graph": "llm_loop", "fingerprint": "f", "at": 1.0}
        )
        journal.append(lease, [Draft("parked", {"reason": "approval"})])
        await journal.release(lease)
    (sample,) = [
        one
        for family in metrics.registry.collect()
        for one in family.samples
        if one.name == "orchestrator_journal_runs"
    ]
    assert (sample.value, sample.labels["status"]) == (2, "parked")


def test_two_processes_with_other_agents_give_one_run_the_same_labels() -> None:
    counts = [asks(agent=f"agent-{number:03}") for number in range(CAPS["agent"] + 9)]
    here, there = Store(*counts), Store(*reversed(counts))
    one, other = gauges_of(here), gauges_of(there)
    assert runs(one) == runs(other)
    assert len(runs(one)) == CAPS["agent"] + 1
    assert sum(runs(one).values()) == len(counts)


def test_names_and_reasons_that_are_no_labels_become_other() -> None:
    store = Store(asks(machine="https://example.test/?token=1"), asks(reason="of the host"))
    assert runs(gauges_of(store)) == {
        ("1f2e3d4c", "_other", "support", "parked", "approval"): 1,
        ("1f2e3d4c", "llm_loop", "support", "parked", "_other"): 1,
    }


def test_journals_beyond_the_cap_are_counted_together() -> None:
    stores = [
        Store(asks(), name=f"{number:08}", address=f"db-{number}") for number in range(CAPS["journal"] + 3)
    ]
    gauges = gauges_of(*stores)
    runs(gauges)  # the first read tells the identities
    found = runs(gauges)
    assert len({labels[0] for labels in found}) == CAPS["journal"] + 1
    assert sum(found.values()) == len(stores)


def test_a_store_that_fails_is_absent_and_counted_and_still_has_a_name_and_an_address() -> None:
    down, up = Store(asks()), Store(asks(), name="5a6b7c8d", address="postgresql://db/b")
    gauges = gauges_of(down, up)
    assert len(runs(gauges)) == 2
    down.error = RuntimeError("gone")
    found = gauges.collect()
    assert {labels[0] for labels in found["journal_runs"]} == {"5a6b7c8d"}
    assert found["journal_read_failures_total"] == {(): 1.0}
    assert ("1f2e3d4c", "postgres", "postgresql://db/a") in found["journal_info"]


def test_a_store_that_was_never_read_is_named_without_an_identity() -> None:
    down = Store()
    down.error = OSError("gone")
    assert gauges_of(down).collect()["journal_info"] == {("_unknown", "postgres", "postgresql://db/a"): 1}


@pytest.mark.parametrize("fails", [False, True])
def test_a_slow_read_is_not_repeated_before_twenty_times_its_duration(fails: bool) -> None:
    store = Store(asks())
    store.error = OSError("slow") if fails else None
    store.seconds = 2.0
    reader = JournalReader(store, store.now)
    first = reader.read()
    assert (first is None) is fails
    for seconds, reads in ((1.0, 1), (38.0, 1), (1.5, 2)):
        store.clock += seconds
        assert reader.read() == first
        assert store.reads == reads
    assert reader.failures == (2 if fails else 0)


def test_a_quick_read_is_repeated_at_each_scrape() -> None:
    store = Store(asks())
    reader = JournalReader(store, store.now)
    assert [reader.read() is not None for _ in range(3)] == [True] * 3
    assert store.reads == 3


def test_a_journal_that_is_gone_has_no_series_and_its_failures_stay_counted() -> None:
    store = Store(asks())
    gauges = gauges_of(store)
    store.error = OSError("gone")
    assert gauges.collect()["journal_read_failures_total"] == {(): 1.0}
    del store
    gc.collect()
    assert gauges.collect() == {
        "journal_runs": {},
        "journal_oldest_update_timestamp_seconds": {},
        "journal_info": {},
        "journal_read_failures_total": {(): 1.0},
    }


async def test_agents_on_one_journal_share_its_count_and_a_run_that_ends_is_gone(tmp_path: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        agents = [
            Agent(ScriptedLLM(["Hello."]), name=name, journal=journal, observers=[metrics])
            for name in ("support", "sales")
        ]
        for agent in agents:
            await agent.run("hi")
        await journal.create(
            "left", "me", {"schema": 1, "graph": "llm_loop", "fingerprint": "f", "agent": "sales"}
        )
        found = [
            (one.labels["agent"], one.labels["status"], one.value)
            for family in metrics.registry.collect()
            for one in family.samples
            if one.name == "orchestrator_journal_runs"
        ]
    assert found == [("sales", "running", 1)]
