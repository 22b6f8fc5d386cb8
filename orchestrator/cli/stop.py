"""SIGINT, SIGTERM and, on some systems, SIGHUP: the first asks the run to stop, the second ends the process at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from orchestrator.cli.output import show_cursor

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


@contextmanager
def on_signal(act: Callable[[], object], signals: Sequence[signal.Signals] | None = None) -> Iterator[None]:
    """Inside the block the first signal calls `act` on the running loop; the second has its default effect.

    `signals` None means SIGINT, SIGTERM and SIGHUP.

    Plain handlers, not the loop's: the second signal must work while a model's code blocks the loop.
    """
    loop = asyncio.get_running_loop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        show_cursor()  # after a second signal no code shows it again
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(act)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can have handlers; a host program with other threads has its own
        return
    before = {each: signal.getsignal(each) for each in _caught() if signals is None or each in signals}
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _caught() -> tuple[signal.Signals, ...]:
    """Return the signals to handle; an ignored hangup remains ignored, as `nohup` requires."""
    if _HANGUP is None or signal.getsignal(_HANGUP) is signal.SIG_IGN:
        return _SIGNALS
    return (*_SIGNALS, _HANGUP)
