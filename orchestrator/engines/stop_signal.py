"""SIGTERM and SIGINT for a process that waits in `run_until_signal`: the first one drains, the second one ends at once.

Meanwhile SIGUSR1 prints all stacks and has no other effect. The journal is durable at every instruction, so ending at
once loses no acknowledged record.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from orchestrator.errors import ConfigError
from orchestrator.telemetry.watchdog import on_signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def first_signal(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of the first SIGTERM or SIGINT, on the running loop, while the block is active.

    If SIGUSR1 has no handler, it prints all stacks to stderr meanwhile. The handlers are Python's own, not the loop's:
    the second signal has to work while the loop is blocked. Raises ConfigError outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("only the main thread can wait for signals; call `engine.drain()` in other threads")
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(act, signal.Signals(number).name)

    before = {each: signal.signal(each, handle) for each in SIGNALS}
    try:
        with on_signal() if _free() else nullcontext():
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _free() -> bool:
    """Return whether SIGUSR1 has no handler. Python does not see handlers of C code, such as faulthandler's."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None or signal.getsignal(number) is not signal.SIG_DFL:
        return False
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # this system has no such file: Python's knowledge has to do
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return not caught >> (number - 1) & 1
