from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.kernel.clock import Alarm, SystemClock


class Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class HandClock:
    """A clock that is set by hand and whose timers are rung by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, callback))
        return self.timers[-1]

    def move(self, now: float) -> None:
        self.now = now
        for timer in list(self.timers):
            callback, due = timer.callback, timer.due
            if callback is not None and due <= now:
                timer.cancel()
                callback()

    @property
    def live(self) -> list[float]:
        return [timer.due for timer in self.timers if timer.callback is not None]


def rung() -> tuple[HandClock, Alarm, list[float]]:
    clock, rings = HandClock(), list[float]()
    return clock, Alarm(clock, lambda _: rings.append(clock.now), None), rings


def test_it_rings_once_at_its_time() -> None:
    clock, alarm, rings = rung()
    alarm.set(5.0)
    clock.move(4.9)
    assert rings == []
    clock.move(5.0)
    clock.move(50.0)
    assert rings == [5.0]


def test_moving_it_later_takes_no_new_timer_and_rings_at_the_later_time() -> None:
    clock, alarm, rings = rung()
    for due in range(5, 1000):
        alarm.set(float(due))
    assert len(clock.timers) == 1
    clock.move(5.0)
    assert rings == []
    assert clock.live == [999.0]
    clock.move(999.0)
    assert rings == [999.0]


def test_moving_it_earlier_replaces_the_timer() -> None:
    clock, alarm, rings = rung()
    alarm.set(100.0)
    alarm.set(3.0)
    assert clock.live == [3.0]
    clock.move(3.0)
    assert rings == [3.0]


def test_set_to_none_it_does_not_ring_and_can_be_set_again() -> None:
    clock, alarm, rings = rung()
    alarm.set(5.0)
    alarm.set(None)
    clock.move(6.0)
    assert rings == []
    alarm.set(9.0)
    clock.move(9.0)
    assert rings == [9.0]


def test_cancelled_it_leaves_no_timer() -> None:
    clock, alarm, rings = rung()
    alarm.set(5.0)
    alarm.cancel()
    assert clock.live == []
    clock.move(6.0)
    assert rings == []


def test_a_time_that_has_passed_rings_at_the_next_turn() -> None:
    clock, alarm, rings = rung()
    clock.now = 10.0
    alarm.set(4.0)
    assert clock.live == [10.0]
    clock.move(10.0)
    assert rings == [10.0]


async def test_the_systems_clock_wakes_on_the_running_loop() -> None:
    clock = SystemClock()
    woken = asyncio.Event()
    before = clock.monotonic()
    clock.call_later(0.001, woken.set)
    await woken.wait()
    await clock.sleep(0)
    assert clock.monotonic() > before
    assert clock.time() > 1e9
