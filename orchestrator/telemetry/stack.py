"""Dump the stacks of a live process: threads, and the tasks of an event loop. No values, no source."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from orchestrator.kernel.abandonment import driven_by

_DEEPEST = 60
"""Maximum frames of one stack."""
_NAMED = 5
"""Maximum names of tasks with the same stack."""


def stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return the stack of each thread, and of each task of an event loop, outermost call first.

    Tasks with the same stack are listed together. Frames have file, line and function: no values of variables, no
    source.
    """
    blocks = [f"stacks at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}", *_threads()]
    blocks += ["tasks: no event loop is known here"] if loop is None else _tasks(loop)
    return "\n\n".join(blocks) + "\n"


def _threads() -> Iterator[str]:
    frames = sys._current_frames()  # noqa: SLF001 - documented, and there is no other way
    for thread in sorted(threading.enumerate(), key=lambda one: one.name):
        lines = _called(frames[thread.ident]) if thread.ident in frames else []
        yield "\n".join([f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}", *lines])


def _called(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < _DEEPEST:
        lines.append(_line(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return lines[::-1]


def _tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    places: dict[tuple[str, ...], list[str]] = {}
    for task in _all_tasks(loop):
        places.setdefault(tuple(_awaited(task.get_coro())), []).append(task.get_name())
    return ["\n".join([_heading(names), *place]) for place, names in sorted(places.items(), key=_most)]


def _most(group: tuple[tuple[str, ...], list[str]]) -> int:
    return -len(group[1])


def _all_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    with contextlib.suppress(RuntimeError):  # the loop's thread created a task each time asyncio counted them
        return asyncio.all_tasks(loop)
    return set()


def _heading(names: list[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:_NAMED]))
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"task {shown}{more}" if len(names) == 1 else f"{len(names):,} tasks: {shown}{more}"


def _awaited(waiting: object) -> list[str]:
    """Follow a suspended coroutine to the object that it awaits."""
    lines: list[str] = []
    while waiting is not None and len(lines) < _DEEPEST:
        frame, waiting = _suspended(waiting)
        if frame is None:
            break
        lines.append(_line(frame.f_code, frame.f_lineno))
    return lines or ["  (running, or finished)"]


def _suspended(waiting: object) -> tuple[FrameType | None, object]:
    """Return the frame of a coroutine, generator or async generator, and the object that it awaits."""
    for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
        frame = getattr(waiting, f"{kind}_frame", None)
        if frame is not None:
            return frame, getattr(waiting, inner, None) or driven_by(frame)
    return None, None


def _line(code: CodeType, number: int | None) -> str:
    return f"  {code.co_filename}:{number} {code.co_qualname}"
