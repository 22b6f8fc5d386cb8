"""Run a program as a user would: killed while a person is asked, and resumed in a new process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from tests.benchmarks.contestant import QUIET, ROOT
from tests.benchmarks.peers.ergonomics import server, task
from tests.providers.loopback import Asked, in_a_thread

SECONDS = 60.0
"""Time for one process."""


class Different(Exception):
    """A program did not do the work."""


def run(library: str, interpreter: Path, folder: Path) -> dict[str, bool]:
    """Carry out the work with one library and return what may differ. Raises Different."""
    with in_a_thread(server.model) as model:
        address = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": "none"}
        environment = os.environ | QUIET | address | {"PYTHONPATH": str(ROOT)}

        def step(name: str) -> tuple[int, dict[str, list[Any]]]:
            module = f"{task.__package__}.programs.{library}"
            return _step([str(interpreter), "-m", module, name], folder, environment)

        code, seen = step("start")
        _same("the process that asks is killed", code, -signal.SIGKILL)
        _same("the text of the model is seen as it arrives", seen.get("text"), list(server.TEXT))
        _same("a person is asked once", [_question(*one) for one in seen.get("question", ())], [_QUESTION])
        ledger = folder / task.Shop().ledger
        _same("nothing happens before the answer", ledger.exists(), False)
        code, seen = step("approve")
        _same("the process that approves ends", code, 0)
        _same("the typed output is the receipt", seen.get("receipt"), [server.RECEIPT])
        _same("nobody is asked again", seen.get("question"), None)
        _same("the refund happens once", ledger.read_text(encoding="utf-8"), "A-17 40\n")
        _same("the model is asked twice", len(model.asked), 2)
        _same("the model reads the instructions", all(map(_instructed, model.asked)), True)
    return {"streams_after_resume": bool(model.asked[1].json.get("stream"))}


_SHOWN = {"text", "question", "receipt"}
"""Lines of `task`; a program may print others, such as a log."""
_QUESTION = (server.TOOL, server.ARGUMENTS)


def _question(tool: str, arguments: Any) -> tuple[str, Any]:
    return tool, json.loads(arguments) if isinstance(arguments, str) else arguments


def _instructed(asked: Asked) -> bool:
    return task.INSTRUCTIONS in asked.body.decode() and task.PROMPT in asked.body.decode()


def _same(sentence: str, found: object, expected: object) -> None:
    if found != expected:
        raise Different(f"{sentence}: {found!r} instead of {expected!r}")


def _step(
    command: Sequence[str], folder: Path, environment: dict[str, str]
) -> tuple[int, dict[str, list[Any]]]:
    """Run one process and kill it when it has asked; return its exit code and what it showed."""
    errors = folder / f"{command[-1]}.errors"
    seen: dict[str, list[Any]] = {}
    with (
        errors.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=file, text=True
        ) as process,
    ):
        late = Timer(SECONDS, process.kill)
        late.start()
        for shown in map(json.loads, process.stdout or ()):
            for name in _SHOWN & shown.keys():
                seen.setdefault(name, []).append(shown[name])
            if "question" in shown:
                process.kill()
        late.cancel()
    if process.returncode > 0:
        raise Different(f"{command[-1]} failed: {errors.read_text(encoding='utf-8').splitlines()[-1:]}")
    return process.returncode, seen
