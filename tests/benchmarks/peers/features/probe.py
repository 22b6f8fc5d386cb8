"""A process that tries a scenario with one library: `python -m tests.benchmarks.peers.features.burr run FOLDER`.

It prints one JSON object. A module of a library has an async function for each scenario it can do, and a word and a
reason in `UNABLE` for the others. Standard library only: the interpreter of a peer imports this too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULT = "42"
ANSWER = "done"
PROMPT = "go"
TOOL = "pay"
CAP = 30
"""Turns that the scenario `repeat` allows, for all alike."""
TOKENS = 2_000
"""Tokens that the scenario `tokens` allows; a request takes 960, so that the third would exceed it."""
INPUT_TOKENS, OUTPUT_TOKENS = 900, 60

Scenario = Callable[["World"], Awaitable[Mapping[str, Any]]]


class World:
    """The tool and the model of a scenario. Their calls are noted in files, which survive the process."""

    def __init__(self, folder: Path, stop: str = "") -> None:
        self.folder = folder
        self._stop = stop
        self._sleeps = asyncio.Event()
        self.cancelled = False

    async def tool(self) -> str:
        """Take effect; then, where the scenario says so, the process dies or waits before the result is known."""
        self._note("tool")
        await self._stop_at("tool")
        return RESULT

    async def model(self, earlier: int) -> bool:
        """Count a request and return whether the model calls the tool; `earlier` are its answers so far."""
        self._note("model")
        if earlier:
            await self._stop_at("model")
        return earlier == 0

    def count(self, what: str) -> int:
        """Return how often the tool ran or the model was asked, in all processes."""
        file = self.folder / what
        return len(file.read_text(encoding="ascii")) if file.exists() else 0

    def die(self) -> None:
        """End this process as a power cut would."""
        os.kill(os.getpid(), signal.SIGKILL)

    def keep(self, text: str) -> None:
        """Store a text in a file of the host, for a library that leaves this to its user."""
        (self.folder / "host").write_text(text, encoding="utf-8")

    def kept(self) -> str:
        """Return the text that the host stored; empty if there is none."""
        file = self.folder / "host"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    async def sleep(self) -> None:
        """Be a tool that takes long, and note whether it is cancelled."""
        self._sleeps.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def cancel(self, run: Awaitable[Any]) -> dict[str, Any]:
        """Cancel a run while its tool sleeps, and return whether the tool noticed within two seconds."""
        task = asyncio.ensure_future(run)
        inside = asyncio.ensure_future(self._sleeps.wait())
        await asyncio.wait({task, inside}, return_when=asyncio.FIRST_COMPLETED)
        inside.cancel()
        task.cancel()
        await asyncio.wait({task}, timeout=2)
        reached = "reached" if self.cancelled else "did not reach"
        return {"ok": self.cancelled, "observed": f"the cancellation {reached} the tool"}

    def _note(self, what: str) -> None:
        with (self.folder / what).open("a", encoding="ascii") as file:
            file.write("x")
            file.flush()
            os.fsync(file.fileno())

    async def _stop_at(self, place: str) -> None:
        if self._stop == f"kill in {place}":
            self.die()
        if self._stop == f"wait in {place}":
            await asyncio.sleep(600)


def main(module: Mapping[str, Any], packages: tuple[str, ...]) -> None:
    """Carry out the scenario of the command line and print what was observed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop", default="")
    options = parser.parse_args()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # texts that a library prints do not get into the answer
        found = _tried(module, options.scenario, World(options.folder, options.stop))
        print(json.dumps({**found, "versions": {one: version(one) for one in packages}}), file=answers)


def _tried(module: Mapping[str, Any], name: str, world: World) -> Mapping[str, Any]:
    if cell := module["UNABLE"].get(name):
        return {"unable": cell}
    scenario: Scenario = module[name]
    try:
        return asyncio.run(scenario(world))  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001  the error is the observation
        return {"error": f"{type(error).__name__}: {error}"}
