"""The memory in a SQLite file does what a dict would."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.journal.sqlite.conversation import SqliteMemory
from orchestrator.llm.message import Message
from tests.journal.memory_stage import exchange, failure, texts
from tests.tiers import examples

# ---- against a model of it ----

KEYS = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("store"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("fail"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("compact"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("erase"), KEYS, st.just(0)),
    st.tuples(st.just("reopen"), KEYS, st.just(0)),
)


class Model:
    """The same in a dict: key -> (kind, texts) in order."""

    def __init__(self) -> None:
        self.kept: dict[str, list[tuple[str, tuple[str, ...]]]] = {"a": [], "b": []}

    def step(self, what: str, key: str, number: int) -> None:
        kept = self.kept[key]
        if what == "erase":
            kept.clear()
        elif what == "store":
            self._add(kept, "exchange", tuple(texts(exchange(number))))
        elif what == "compact":
            last = max((place for place, (kind, _) in enumerate(kept) if kind == "exchange"), default=-1)
            kept[:] = [one for place, one in enumerate(kept) if place < last or one[0] != "summary"]
            self._add(kept, "summary", (f"summary {number}",))
        elif what == "fail":
            self._add(kept, "failure", (f"boom {number}",))
            failures = [one for one in kept if one[0] == "failure"]
            if len(failures) > 2:
                kept.remove(failures[0])

    @staticmethod
    def _add(kept: list[tuple[str, tuple[str, ...]]], kind: str, said: tuple[str, ...]) -> None:
        same = [one for one in kept if one[0] == kind]
        if not same or same[-1] != (kind, said):
            kept.append((kind, said))

    def shown(self, key: str) -> tuple[list[str], list[str]]:
        kept = self.kept[key]
        last = max((place for place, (kind, _) in enumerate(kept) if kind == "exchange"), default=-1)
        failures = [said[0] for kind, said in kept[last + 1 :] if kind == "failure"]
        window: list[tuple[str, ...]] = []
        for kind, said in reversed(kept):
            if kind == "failure":
                continue
            if sum(map(len, window)) + len(said) > 6:
                break
            window.append(said)
        return [text for said in reversed(window) for text in said], failures[::-1]


@settings(max_examples=examples(60))
@given(st.lists(STEPS, max_size=30))
def test_it_does_what_a_dict_would(steps: list[tuple[str, str, int]]) -> None:
    async def play(folder: str) -> None:
        path = Path(folder) / "memory.db"
        memory, model = SqliteMemory(path, max_messages=6, max_failures=2), Model()
        for what, key, number in steps:
            model.step(what, key, number)
            match what:
                case "store":
                    await memory.store(key, exchange(number))
                case "fail":
                    await memory.store_failure(key, failure(number))
                case "compact":
                    await memory.compact(key, Message("system", f"summary {number}"))
                case "erase":
                    await memory.erase(key)
                case _:
                    await memory.close()
                    memory = SqliteMemory(path, max_messages=6, max_failures=2)
            for each in ("a", "b"):
                said, failures = model.shown(each)
                found = texts(await memory.prepare(each, ()))
                told = found.pop() if failures else ""
                assert found == said
                assert [line[13:-1] for line in told.splitlines()[1:]] == failures
        await memory.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(folder))
