"""SIGUSR1 to an engine that signals end: it says where everything stands, and nothing else happens."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType

import pytest

from orchestrator.engines.process import first_signal
from tests.engines.process import Outside, Start
from tests.engines.test_process import all_steps


def ignored(name: str) -> None:
    raise AssertionError(f"nobody sent {name}")


@pytest.mark.canary
def test_a_worker_says_where_it_stands_and_goes_on(start: Start, outside: Outside) -> None:
    worker = start("held")
    worker.process.send_signal(signal.SIGUSR1)
    assert worker.process.stderr is not None
    said = ""
    while "thread 'MainThread'" not in said:
        line = worker.process.stderr.readline()
        assert line, said
        said += line
    assert said.startswith("stacks at ")
    outside.go(*all_steps("held"))
    outside.until(lambda: outside.reason("held") == "none")
    worker.process.send_signal(signal.SIGTERM)
    worker.process.communicate(timeout=60)
    assert worker.process.returncode == 0


async def test_the_signal_is_caught_in_the_block_and_free_again_after_it() -> None:
    with first_signal(ignored):
        assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


async def test_a_handler_of_the_host_stays_whenever_it_was_set() -> None:
    def hosts(_number: int, _frame: FrameType | None) -> None: ...

    try:
        signal.signal(signal.SIGUSR1, hosts)
        with first_signal(ignored):
            assert signal.getsignal(signal.SIGUSR1) is hosts
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        with first_signal(ignored):
            signal.signal(signal.SIGUSR1, hosts)
        assert signal.getsignal(signal.SIGUSR1) is hosts
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


FAULTHANDLER = """
import asyncio, faulthandler, signal
from orchestrator.engines.process import first_signal

async def main():
    faulthandler.register(signal.SIGUSR1)
    with first_signal(print):
        signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)

asyncio.run(main())
"""


def test_a_handler_that_python_does_not_know_of_stays() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTHANDLER], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("(most recent call first)") == 2
    assert "stacks at " not in done.stderr
