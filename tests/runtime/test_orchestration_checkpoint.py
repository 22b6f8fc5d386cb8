"""Checkpoints of the facade: what was saved comes back, what was damaged does not."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import (
    CheckpointManager,
    ConfigError,
    MemoryJournal,
    OrchestrationState,
    OrchestrationStateMachine,
    RunError,
    SqliteJournal,
    StateTransition,
)
from orchestrator.errors import Corrupt, Held, StoreDown, TooNew
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.runtime.pipeline.orchestration import GRAPH, KIND
from orchestrator.telemetry import Metrics, TransitionLog
from tests.telemetry.sampling import sampled

S = OrchestrationState


def machine() -> OrchestrationStateMachine:
    sm = OrchestrationStateMachine(5, max_refinements=2, observers=())
    sm.transition(S.PLANNING, {"try": 1, "plan": object()}, "go", 0.5, 3)
    sm.transition(S.VALIDATING, duration_seconds=2.0, tokens_consumed=700)
    sm.transition(S.IMPLEMENTING)
    return sm


def loaded(store: CheckpointManager) -> OrchestrationStateMachine:
    sm = store.load_state_machine(observers=())
    assert sm is not None
    return sm


def bodies(store: CheckpointManager) -> list[dict[str, Any]]:
    records = asyncio.run(store._journal.load(store.name))  # type: ignore[union-attr]
    return [dict(record.body) for record in records if record.kind == KIND]


# ---- there and back ----


def test_nothing_was_saved_yet(tmp_path: Path) -> None:
    assert CheckpointManager().load_state_machine() is None
    assert CheckpointManager(tmp_path / "journal.db").load_state_machine() is None


@pytest.mark.parametrize("kind", ["memory", "sqlite", "path"])
def test_a_machine_comes_back_with_history_counters_limits_and_metrics(kind: str, tmp_path: Path) -> None:
    places: dict[str, Any] = {
        "memory": MemoryJournal(),
        "sqlite": SqliteJournal(tmp_path / "journal.db"),
        "path": str(tmp_path / "journal.db"),
    }
    store, sm = CheckpointManager(places[kind], "job-1"), machine()
    store.save_state_machine(sm)
    again = loaded(store)
    assert again.history[0].context == {"try": 1}
    sm.history[0].context = {"try": 1}
    assert again.history == sm.history
    assert (again.current_state, again.iteration_count, again.run_id) == (S.IMPLEMENTING, 1, sm.run_id)
    assert (again.max_iterations, again.max_refinements) == (5, 2)
    assert again.metrics_json() == sm.metrics_json()
    assert again.format_metrics_report() == sm.format_metrics_report()


def test_the_loaded_machine_goes_on_and_is_saved_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    CheckpointManager(path).save_state_machine(machine())
    sm = loaded(CheckpointManager(path))
    sm.transition(S.JUDGING, duration_seconds=1.0)
    sm.transition(S.SUCCEEDED)
    CheckpointManager(path).save_state_machine(sm)
    again = loaded(CheckpointManager(path))
    assert [one.to_state for one in again.history[2:]] == [S.IMPLEMENTING, S.JUDGING, S.SUCCEEDED]
    assert again.transition(S.PLANNING) is False


def test_going_on_is_told_as_a_resume_and_nothing_is_told_twice() -> None:
    store = CheckpointManager()
    store.save_state_machine(machine())
    stream, registry = io.StringIO(), CollectorRegistry()
    sm = store.load_state_machine(observers=[TransitionLog(stream), Metrics(registry)])
    assert sm is not None
    assert stream.getvalue() == ""
    sm.transition(S.JUDGING)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["msg"], line.get("seq")) for line in lines] == [
        ("run.resumed", None),
        ("fsm.transition", 4),
    ]
    started = {"machine": "pipeline", "origin": "resumed"}
    assert sampled(registry, "orchestrator_runs_started_total", **started) == 1


def test_each_checkpoint_holds_only_what_the_one_before_does_not() -> None:
    store, sm = CheckpointManager(), machine()
    store.save_state_machine(sm)
    sm.transition(S.JUDGING)
    store.save_state_machine(sm)
    store.save_state_machine(sm)
    assert [(body["after"], len(body["history"])) for body in bodies(store)] == [(0, 3), (3, 1), (4, 0)]
    assert loaded(store).current_state == S.JUDGING


def test_a_reset_machine_replaces_what_was_saved() -> None:
    store, sm = CheckpointManager(), machine()
    store.save_state_machine(sm)
    sm.reset()
    sm.transition(S.FAILED)
    store.save_state_machine(sm)
    assert [one.to_state for one in loaded(store).history] == [S.FAILED]


def test_what_was_set_by_hand_is_no_damage() -> None:
    store, sm = CheckpointManager(), machine()
    sm.current_state = S.PLANNING
    sm.iteration_count = 4
    sm.transition(S.VALIDATING)
    sm.current_state = S.JUDGING
    store.save_state_machine(sm)
    again = loaded(store)
    assert (again.current_state, again.iteration_count, len(again.history)) == (S.JUDGING, 5, 4)


def test_it_works_inside_an_event_loop(tmp_path: Path) -> None:
    async def inside() -> tuple[Any, Any]:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            store = CheckpointManager(journal)
            store.save_state_machine(machine())
            await store.save(machine())
            return store.load_state_machine(observers=()), await store.load(observers=())

    one, other = asyncio.run(inside())
    assert one.current_state == other.current_state == S.IMPLEMENTING


def test_two_names_are_two_machines_and_a_run_is_no_checkpoint() -> None:
    journal = MemoryJournal()
    CheckpointManager(journal, "a").save_state_machine(machine())
    assert CheckpointManager(journal, "b").load_state_machine() is None
    asyncio.run(journal.create("run", "me", {"graph": "llm_loop"}))
    with pytest.raises(Corrupt, match="'run' is a run of graph 'llm_loop', not a checkpoint"):
        CheckpointManager(journal, "run").load_state_machine()


def test_a_checkpoint_that_somebody_writes_now_is_held() -> None:
    journal = MemoryJournal()
    store = CheckpointManager(journal)
    store.save_state_machine(machine())
    asyncio.run(journal.claim(KIND, "somebody"))
    with pytest.raises(Held):
        store.save_state_machine(machine())


# ---- damage ----


def written(change: Callable[[dict[str, Any]], None]) -> CheckpointManager:
    """A journal whose only checkpoint was changed by `change` before it was written."""
    good, sm = CheckpointManager(), machine()
    good.save_state_machine(sm)
    body = json.loads(json.dumps(bodies(good)[0]))
    change(body)
    journal = MemoryJournal()
    lease = asyncio.run(journal.create(KIND, "me", {"graph": GRAPH}))
    journal.append(lease, [Draft(KIND, body)])
    return CheckpointManager(journal)


def signed(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Make a change, and a checksum that fits it: the history itself has to be found out."""
    from orchestrator.runtime.pipeline.orchestration import _checksum

    def changed(body: dict[str, Any]) -> None:
        change(body)
        body["checksum"] = _checksum({k: v for k, v in body.items() if k not in {"after", "at", "checksum"}})

    return changed


def test_an_unchanged_body_is_loaded() -> None:
    assert loaded(written(lambda body: None)).current_state == S.IMPLEMENTING
    assert loaded(written(signed(lambda body: None))).current_state == S.IMPLEMENTING


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a state": (lambda body: body.update(current_state="judging"), "checksum does not match"),
    "a figure": (lambda body: body["history"][1].update(tokens_consumed=1), "checksum does not match"),
    "a transition gone": (lambda body: body["history"].pop(), "checksum does not match"),
    "no checksum": (lambda body: body.pop("checksum"), "checksum does not match"),
    "no history": (lambda body: body.pop("history"), "a part of its history is missing"),
    "a part gone": (lambda body: body.update(after=2), "a part of its history is missing"),
    "another end": (signed(lambda body: body.update(current_state="judging")), "leads to 'implementing' and not"),
    "a jump": (
        signed(lambda body: body["history"][2].update(from_state="judging")),
        "transition 3 leaves 'judging' in state 'validating'",
    ),
    "no edge": (
        signed(lambda body: body["history"][2].update(to_state="succeeded")),
        "transition 3, 'validating' → 'succeeded', has no edge",
    ),
    "a state that is none": (signed(lambda body: body["history"][0].update(to_state="x")), "cannot be read"),
    "iterations": (signed(lambda body: body.update(iteration_count=3)), "it has 1 iterations"),
    "refinements": (signed(lambda body: body.update(refinement_count=1)), "not 1 and 1"),
    "no limits": (signed(lambda body: body.pop("iterations_set")), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence_and_nothing_is_used(name: str) -> None:
    change, said = DAMAGE[name]
    with pytest.raises(Corrupt) as error:
        written(change).load_state_machine(observers=())
    text = str(error.value)
    assert said in text
    assert text.endswith("; nothing of it is used")
    assert "\n" not in text
    assert text.startswith("checkpoint 'state_machine' ")
    assert isinstance(error.value, RunError)


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(TooNew, match="has version 2; this version reads up to 1"):
        written(lambda body: body.update(version=2)).load_state_machine()


def test_a_byte_changed_on_disk_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    CheckpointManager(path).save_state_machine(machine())
    with sqlite3.connect(path) as db:
        changed = db.execute(
            "UPDATE record SET body = CAST(replace(CAST(body AS TEXT), :was, :now) AS BLOB) WHERE kind = :kind",
            {"was": '"tokens_consumed":700', "now": '"tokens_consumed":701', "kind": KIND},
        )
        assert changed.rowcount == 1
    db.close()
    with pytest.raises(Corrupt, match="nothing of the run is used"):
        CheckpointManager(path).load_state_machine(observers=())


def test_a_history_that_the_host_spoilt_is_not_saved() -> None:
    store, sm = CheckpointManager(), machine()
    store.save_state_machine(sm)
    sm.history.append(StateTransition(S.JUDGING, S.PLANNING, 0.0))
    with pytest.raises(
        ConfigError, match=r"not saved.*transition 4 leaves 'judging' in state 'implementing'"
    ):
        store.save_state_machine(sm)
    assert len(loaded(store).history) == 3


def test_what_kept_a_machine_from_being_saved_is_what_is_said() -> None:
    class Full(MemoryJournal):
        def append(self, *about: Any, **more: Any) -> Any:
            raise StoreDown("the disk is full")

        async def release(self, lease: Lease) -> None:
            raise StoreDown("the journal is closed")

    with pytest.raises(StoreDown, match="the disk is full"):
        CheckpointManager(Full()).save_state_machine(machine())


def test_a_checkpoint_is_kept_in_a_database(database: str) -> None:
    machine = OrchestrationStateMachine(observers=())
    CheckpointManager(database).save_state_machine(machine)
    found = CheckpointManager(database).load_state_machine(observers=())
    assert found is not None
    assert found.current_state == machine.current_state
    assert asyncio.run(CheckpointManager(database, "another").load()) is None
