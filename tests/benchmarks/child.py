"""A contestant's process: requests come as JSON lines on standard input, answers go out as JSON lines.

    {"do": "journalled", "folder": "…", "runs": 32, "turns": 30}  ->  {"turns_per_s": …, …}

An answer may instead be {"error": "what went wrong"}. Standard library only.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
Task = Callable[..., Awaitable[Answer]]


def serve(tasks: Mapping[str, Task]) -> None:
    """Carry out requests until standard input ends, each in an event loop of its own."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever a library prints must not get between the answers
        for line in sys.stdin:
            request = json.loads(line)
            gc.collect()
            try:
                answer = asyncio.run(_done(tasks[request.pop("do")], request))
            except Exception as error:  # noqa: BLE001  the other cases go on
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


async def _done(task: Task, options: Mapping[str, Any]) -> Answer:
    return await task(**options)


def journalled(seconds: float, turns: int, spans: Sequence[float], folder: str) -> Answer:
    """Return the figures of so many turns in so many seconds; `spans` are the seconds of each write."""
    ordered = sorted(spans)
    return {
        "turns_per_s": turns / seconds,
        "write_p95_ms": ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)] * 1e3,
        "writes_per_turn": len(ordered) / turns,
        "bytes_per_turn": size(folder) / turns,
    }


def size(folder: str) -> int:
    """Return the bytes of all files under a folder. Ask when the store is closed and its log is gone."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
