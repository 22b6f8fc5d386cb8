"""The reviewer: checks each success criterion of a task on the code."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CRITERIA = {
    "task-1": {
        "fahrenheit(100) is 212.0": "temperature.fahrenheit(100) == 212.0",
        "fahrenheit(36.66) is 97.99, for results are rounded": "temperature.fahrenheit(36.66) == 97.99",
    },
    "task-2": {"celsius(212) is 100.0": "temperature.celsius(212) == 100.0"},
    "task-3": {"-273.15 is the least": "temperature.checked(-273.15) == -273.15"},
    "task-4": {"the module says what it has": "'celsius' in temperature.__doc__"},
}


def holds(expression: str) -> bool:
    """Return whether an expression about the module is true, evaluated in a separate process."""
    script = f"import temperature, sys; sys.exit(not ({expression}))"
    ran = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, check=False)  # noqa: S603 - ours
    return ran.returncode == 0


def reviewed(request: dict[str, Any]) -> dict[str, Any]:
    """Return the reviewer's output."""
    results = [
        {"criterion": name, "met": holds(expression), "evidence": expression}
        for name, expression in CRITERIA[request["TASK_ID"]].items()
    ]
    unmet = [str(one["criterion"]) for one in results if not one["met"]]
    return {
        "status": "completed",
        "verdict": "Failed" if unmet else "Qualified",
        "criteria_results": results,
        "quality_assessment": "does what it should" if not unmet else "does not do all that it should",
        "issues": unmet,
        "feedback": f"not met: {'; '.join(unmet)}" if unmet else "",
    }


if __name__ == "__main__":
    json.dump(reviewed(json.load(sys.stdin)), sys.stdout)
