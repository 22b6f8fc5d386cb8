"""The checker: compares the result with the goal. A user of the module must be able to find its functions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def checked(_: dict[str, Any]) -> dict[str, Any]:
    """Return the checker's output."""
    script = "import temperature, sys; sys.exit(not temperature.__doc__)"
    ran = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, check=False)  # noqa: S603 - ours
    if ran.returncode == 0:
        return {"passed": True, "summary": "the goal is met"}
    missing = {
        "id": "task-4",
        "description": "Say in the module what it has",
        "rationale": "nobody can find it",
    }
    return {"passed": False, "missing_tasks": [missing], "summary": "the module says nothing of itself"}


if __name__ == "__main__":
    json.dump(checked(json.load(sys.stdin)), sys.stdout)
