"""How the examples are started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.contract.test_guides import EXAMPLES, of_language

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 40.0
"""Seconds."""


def environment(**variables: str) -> dict[str, str]:
    """Return an environment that finds our programs and packages from any folder and has no settings of ours."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    path = os.pathsep.join(str(ROOT / part) for part in ("", "callbacks", "guards"))
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**own, "PYTHONPATH": path, "PATH": programs, **variables}


def command_of_guide(example: str) -> str:
    """Return the block of the guide that starts an example."""
    blocks = [one.text for one in of_language("sh") if one.place == EXAMPLES]
    [found] = [text for text in blocks if f"orchestrator.examples.{example}" in text]
    return found


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(0.05)
