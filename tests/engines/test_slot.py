"""Slots: never more runs than there are, none left lying, nobody forgotten or starved; under any order of events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.run_queue import Slots
from orchestrator.errors import ConfigError

Step = tuple[str, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("submit", "end", "park", "wake", "cancel", "wake_and_cancel", "limit", "turn")),
        st.integers(0, 7),
    ),
    max_size=60,
)


class World:
    """Runs as the engine has them, and what must hold of them between any two steps."""

    def __init__(self, limit: int) -> None:
        self.queue: deque[int] = deque()
        self.running: list[int] = []
        self.parked: list[int] = []
        self.returning: dict[int, asyncio.Task[None]] = {}
        self.begun: list[int] = []
        self.most = 0
        self.slots = Slots(limit, self.begin)

    def begin(self) -> bool:
        if not self.queue:
            return False
        run = self.queue.popleft()
        self.begun.append(run)
        self.running.append(run)
        return True

    async def come_back(self, run: int) -> None:
        await self.slots.back()
        del self.returning[run]
        self.running.append(run)

    def do(self, step: str, number: int) -> None:
        match step:
            case "submit":
                self.queue.append(len(self.begun) + len(self.queue))
                self.slots.fill()
            case "end" if self.running:
                del self.running[number % len(self.running)]
                self.slots.give()
            case "park" if self.running:
                self.parked.append(self.running.pop(number % len(self.running)))
                self.slots.give()
            case "wake" if self.parked:
                run = self.parked.pop(number % len(self.parked))
                self.returning[run] = asyncio.create_task(self.come_back(run))
            case "cancel" if self.returning:
                run = list(self.returning)[number % len(self.returning)]
                self.returning.pop(run).cancel()
            case "wake_and_cancel" if self.running and self.returning:
                run = next(iter(self.returning))
                self.running.pop()
                self.slots.give()  # may wake the very one that is cancelled now
                self.returning.pop(run).cancel()
            case "limit":
                self.slots.limit = 1 + number % 4
            case _:
                pass

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)


@given(limit=st.integers(1, 4), steps=STEPS)
async def test_slots_are_never_exceeded_and_never_lie_idle_while_somebody_waits(
    limit: int, steps: list[Step]
) -> None:
    world = World(limit)
    allowed = limit
    for step, number in steps:
        before = len(world.running)
        world.do(step, number)
        allowed = world.slots.limit
        assert len(world.running) <= max(allowed, before), "I: too many runs"
        if step == "turn":
            await world.settle()
    await world.settle()
    assert world.slots.taken == len(world.running)
    assert len(world.running) >= min(allowed, len(world.running) + len(world.queue) + len(world.returning))
    while world.running or world.returning or world.queue:  # everybody gets a turn in the end
        assert world.running, "a wake-up was lost"
        world.do("end", 0)
        await world.settle()
    assert world.slots.taken == 0
    assert world.begun == sorted(world.begun)


@given(new=st.integers(0, 8), back=st.integers(0, 8), limit=st.integers(1, 3))
async def test_new_runs_and_returning_ones_take_turns(new: int, back: int, limit: int) -> None:
    order: list[str] = []
    left = new

    def begin() -> bool:
        nonlocal left
        if not left or not begun:
            return False
        left -= 1
        order.append("new")
        return True

    begun = False
    slots = Slots(limit, begin)
    slots.taken = limit
    tasks = [asyncio.create_task(_back(slots, order)) for _ in range(back)]
    await asyncio.sleep(0)
    begun = True
    for _ in range(new + back):
        slots.give()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    shared = 2 * min(new, back)
    assert order[:shared] == ["new", "back"] * (shared // 2)
    assert order[shared:] == ["new" if new > back else "back"] * (new + back - shared)


async def _back(slots: Slots, order: list[str]) -> None:
    await slots.back()
    order.append("back")


async def test_who_is_woken_and_cancelled_at_once_hands_the_slot_on() -> None:
    slots = Slots(1, lambda: False)
    slots.taken = 1
    first, second = (asyncio.create_task(slots.back()) for _ in range(2))
    await asyncio.sleep(0)
    slots.give()
    first.cancel()
    await second
    assert first.cancelled()
    assert slots.taken == 1


async def test_after_the_freeze_those_in_line_get_their_turn_and_nobody_else() -> None:
    slots = Slots(1, lambda: False)
    slots.taken = 1
    early = asyncio.create_task(slots.back())
    await asyncio.sleep(0)
    slots.freeze()
    late = asyncio.create_task(slots.back())
    await asyncio.sleep(0)
    slots.give()
    await early
    slots.give()
    await asyncio.sleep(0)
    assert not late.done()
    assert slots.taken == 0
    late.cancel()
    await asyncio.wait((late,))


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_what_is_no_number_of_slots_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number, 1 or more"):
        Slots(limit, lambda: False)
    slots = Slots(1, lambda: False)
    with pytest.raises(ConfigError):
        slots.limit = limit
    assert slots.limit == 1
