"""SIGTERM and SIGINT for an engine: the first asks it to drain, the second ends the process at once.

Whoever leaves these to the engine gets SIGUSR1 with them, which prints where everything stands and harms nothing.
The journal stands at every instruction, so ending at once loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from orchestrator.errors import ConfigError
from orchestrator.telemetry.watchdog import on_signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def first_signal(act: Callable[[str], None], signals: Collection[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Within the block the first of these signals calls `act` with its name on the running loop.

    SIGUSR1, where nobody else has it, prints all stacks to stderr meanwhile, unless `signals` is empty.
    Handlers of Python's own, not of the loop: the second signal has to work while something blocks the loop. Raises
    ConfigError off the main thread, where there are any.
    """
    if signals and threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "only the main thread can wait for signals; call `engine.drain()` from yours instead"
        )
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(act, signal.Signals(number).name)

    before = {each: signal.signal(each, handle) for each in signals}
    try:
        with on_signal() if signals and _free() else nullcontext():
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _free() -> bool:
    """Tell whether SIGUSR1 would end the process. Python knows no handler that C code set, as faulthandler does."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None or signal.getsignal(number) is not signal.SIG_DFL:
        return False
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # no such file on this system: what Python knows is all there is to know
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return not caught >> (number - 1) & 1


def checked(signals: Iterable[int]) -> tuple[signal.Signals, ...]:
    """Return signals that can ask an engine to drain. Raises ConfigError for others."""
    found = tuple(dict.fromkeys(signals))
    if any(each not in SIGNALS for each in found):
        raise ConfigError(f"signals is {found!r}; an engine listens to SIGTERM and SIGINT only")
    return tuple(signal.Signals(each) for each in found)
