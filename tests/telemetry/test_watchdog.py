from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError
from orchestrator.kernel.fact import RunParked, RunStarted
from orchestrator.telemetry import watchdog
from orchestrator.telemetry.catalogue import PREFIX
from orchestrator.telemetry.live import LiveRuns
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.watchdog import Watchdog, dump, on_signal, put
from orchestrator.testing import FakeClock
from tests.ending import rest
from tests.telemetry.loop import CANARY
from tests.telemetry.sampling import sampled
from tests.telemetry.test_log import VALIDATOR


class Hands:
    """A clock that stands still until the test moves it: no stall of the machine makes a loop late by it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """The clock of every watchdog."""
    made = Hands()
    monkeypatch.setattr(watchdog, "time", made)
    return made


class Looks:
    """Counts how often the thread of a watchdog has looked for a heartbeat."""

    def __init__(self, dog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, age = 0, dog.age

        def counted() -> float | None:
            self.count += threading.current_thread().name == "orchestrator watchdog"
            return age()

        monkeypatch.setattr(dog, "age", counted)

    async def two(self) -> None:
        """Wait for two more looks, of which the first has had its effect."""
        seen = self.count
        await until(lambda: self.count >= seen + 2)


def block(until: Callable[[], bool], *, secret: str = CANARY) -> str:
    """Do nothing in the way that keeps an event loop from moving."""
    ends = time.monotonic() + 20
    while not until() and time.monotonic() < ends:
        time.sleep(0.005)
    return secret


async def until(ready: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not ready():  # noqa: ASYNC110 - what is waited for is another thread's
            await asyncio.sleep(0.005)


async def test_the_lag_of_the_loop_is_measured_while_it_is_watched_and_then_no_more() -> None:
    metrics = Metrics(CollectorRegistry())
    dog = Watchdog(metrics, interval=0.01)

    def beats() -> float:
        return metrics.registry.get_sample_value(f"{PREFIX}event_loop_lag_seconds_count") or 0

    assert dog.age() is None
    async with dog:
        assert (dog.age() or 0.0) >= 0.0
        await until(lambda: beats() >= 3)
        thread = dog._thread
    counted = beats()
    assert dog.age() is None
    assert thread is not None
    assert not thread.is_alive()
    await asyncio.sleep(0.05)
    assert beats() == counted
    assert dog.incidents == 0


async def test_a_blocked_loop_is_told_once_for_each_time_with_all_stacks_and_no_values(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics(CollectorRegistry())
    printed, lines = io.StringIO(), io.BytesIO()
    log = TransitionLog(lines)
    dog = Watchdog(metrics, interval=0.01, blocked_after=0.2, stream=printed, logger=log.logger)
    looks = Looks(dog, monkeypatch)
    async with dog:
        waiting = asyncio.create_task(asyncio.Event().wait(), name="somebody")
        await asyncio.sleep(0)
        for incident in (1, 2):
            hands.now += 1
            block(lambda wanted=incident: lines.getvalue().count(b"\n") >= wanted)  # type: ignore[misc]
            await until(lambda: dog.age() == 0)
            await looks.two()
        waiting.cancel()
    assert dog.incidents == 2
    assert metrics.registry.get_sample_value(f"{PREFIX}event_loop_blocked_total") == 2
    text = printed.getvalue()
    assert text.count("the event loop has been blocked for") == 2
    assert " block" in text
    assert "'somebody'" in text
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [line["msg"] for line in told] == ["loop.blocked"] * 2
    for line in told:
        VALIDATOR.validate(line)
        assert any(frame.endswith(" block") for frame in line["stack"])
    assert CANARY not in text + lines.getvalue().decode()


async def test_a_cancelled_heart_is_no_blocked_loop(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    dog = Watchdog(interval=0.01, blocked_after=0.05, stream=io.StringIO())
    looks = Looks(dog, monkeypatch)
    async with dog:
        assert dog._task is not None
        dog._task.cancel()
        await until(lambda: dog.age() is None)
        hands.now += 1
        await looks.two()
    assert dog.incidents == 0


async def test_meters_that_break_do_not_stop_the_heart() -> None:
    class Broken:
        def loop_lag(self, seconds: float) -> None:
            raise RuntimeError(CANARY)

        def loop_blocked(self) -> None:
            raise RuntimeError(CANARY)

        def watch_loop(self, age: Callable[[], float | None]) -> None:
            self.age = age

        def unwatch_loop(self, age: Callable[[], float | None]) -> None:
            assert age() is not None

    dog = Watchdog(Broken(), interval=0.01, blocked_after=0.2, stream=io.StringIO())
    async with dog:
        block(lambda: dog.incidents == 1)
        await until(lambda: (dog.age() or 1) < 0.1)


async def test_whoever_is_cancelled_while_watching_gets_its_cancellation() -> None:
    dog = Watchdog(interval=0.01)

    async def watch() -> None:
        async with dog:
            await asyncio.Event().wait()

    task = asyncio.create_task(watch())
    await until(lambda: dog.age() is not None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dog.age() is None


async def test_a_watchdog_watches_one_loop_at_a_time_and_can_be_used_again() -> None:
    dog = Watchdog()
    async with dog:
        with pytest.raises(ConfigError, match="already running"):
            dog.start()
    async with dog:
        assert dog.age() is not None
    await dog.stop()


@pytest.mark.parametrize(("interval", "after"), [(0, 5), (-1, 5), (5, 5), (6, 5)])
def test_times_that_are_none_are_refused(interval: float, after: float) -> None:
    with pytest.raises(ConfigError, match="interval"):
        Watchdog(interval=interval, blocked_after=after)


def test_importing_starts_nothing() -> None:
    program = (
        "import threading, signal, orchestrator.telemetry.watchdog, orchestrator.telemetry.log\n"
        "assert threading.active_count() == 1\n"
        "assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- on a signal ----


def test_a_dump_names_live_runs_their_state_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveRuns()
    clock = FakeClock()
    now = clock.time()
    monkeypatch.setattr(watchdog, "time", clock)
    live.observe(RunStarted("loop", "r1", now - 100, state="think", dwell=5.0, elapsed=20.0))
    live.observe(RunStarted("loop", "r2", now, state="think"))
    live.observe(RunParked("loop", "r2", "ask", "approval", now - 30))
    text = dump(live.current_runs())
    assert "2 live runs" in text
    assert "run r1 of loop: think for 105.0 s, run 120.0 s" in text
    assert "run r2 of loop: ask for 30.0 s" in text
    assert "parked: approval" in text
    assert "thread 'MainThread'" in text


SIGNALLED = """
import asyncio, os, signal, sys
from orchestrator.kernel.fact import RunStarted
from orchestrator.telemetry.live import LiveRuns
from orchestrator.telemetry.watchdog import on_signal

async def deep():
    secret = sys.argv[1]
    await asyncio.Event().wait()

async def main():
    live = LiveRuns()
    live.observe(RunStarted("loop", "r1", 0.0, state="think"))
    with on_signal(live):
        task = asyncio.create_task(deep(), name="run r1")
        await asyncio.sleep(0)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.01)
        task.cancel()
    print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)

asyncio.run(main())
"""


def test_a_signal_prints_runs_threads_and_tasks_and_the_process_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, CANARY], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert done.stderr.count("run r1 of loop: think for") == 2
    assert "task 'run r1'" in done.stderr
    assert " deep" in done.stderr
    assert CANARY not in done.stderr


def test_a_dump_with_text_from_outside_controls_no_terminal(tmp_path: Path) -> None:
    with (tmp_path / "err").open("w+") as file:
        put("run \x1b[2J\u202e\ud83d\n", file)
        buffered = io.TextIOWrapper(text := io.BytesIO(), encoding="ascii")
        put("task \x9b\n", buffered)
    assert (tmp_path / "err").read_bytes() == b"run \\x1b[2J\\u202e\\ud83d\n"
    assert text.getvalue() == b"task \\x9b\n", "and is not left in a buffer"


def test_off_the_main_thread_there_is_nothing_to_install() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    seen: list[object] = []

    def elsewhere() -> None:
        with on_signal():
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_handler_from_before_is_back_after_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: calls.append(number))
    try:
        with on_signal():
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [signal.SIGUSR1]
    said = capfd.readouterr().err
    assert said.startswith("stacks at ")
    assert "live runs" not in said  # nobody said which there are, so none are counted


HANGING = f"""
import asyncio

class Hanging:
    model, double = "hanging", True

    async def complete(self, request):
        secret = {CANARY!r}
        print("asked", flush=True)
        await asyncio.Event().wait()

hanging = Hanging()
"""


def test_a_run_of_the_command_line_says_on_a_signal_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(HANGING, encoding="utf-8")
    command = [sys.executable, "-m", "orchestrator", "run", CANARY, "--json", "--run-id", "r1"]
    command += ["--model", "python:models:hanging", "--journal", str(tmp_path / "j.db")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "asked" in process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        said = ""
        while "Hanging.complete" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "run r1 of llm_loop: await_llm for" in said
        process.send_signal(signal.SIGTERM)
        said += rest(process)[1]
    assert process.returncode == 6
    assert CANARY not in said


async def test_the_age_of_the_loop_is_scraped_while_it_stands_still() -> None:
    metrics = Metrics(CollectorRegistry())
    assert sampled(metrics.registry, "event_loop_age_seconds") is None
    dog = Watchdog(metrics, interval=0.01, blocked_after=60)
    async with dog:
        block(
            lambda: (sampled(metrics.registry, "event_loop_age_seconds") or 0) > 0.3
        )  # from this very thread
        await until(lambda: (sampled(metrics.registry, "event_loop_age_seconds") or 1) < 0.2)
    assert sampled(metrics.registry, "event_loop_age_seconds") is None
