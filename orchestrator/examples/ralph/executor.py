"""The executor: writes one function with its tests, runs them, and reports. Its first attempt forgets to round."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CODE = {
    "task-1": "def fahrenheit(celsius):\n    return {rounded}(celsius * 9 / 5 + 32{digits})\n",
    "task-2": "def celsius(fahrenheit):\n    return round((fahrenheit - 32) * 5 / 9, 2)\n",
    "task-3": 'def checked(celsius):\n    if celsius < -273.15:\n        raise ValueError("colder than it can be")\n'
    "    return celsius\n",
    "task-4": '"""Temperatures: fahrenheit(celsius), celsius(fahrenheit), checked(celsius)."""\n',
}
TESTS = {
    "task-1": "self.assertEqual(temperature.fahrenheit(100), 212.0)",
    "task-2": "self.assertEqual(temperature.celsius(212), 100.0)",
    "task-3": "self.assertRaises(ValueError, temperature.checked, -300)",
    "task-4": 'self.assertIn("fahrenheit", temperature.__doc__)',
}
"""Task -> its code and its test. Each has a part of the file, marked with the task's name."""

REPORT = """# Task Report: {task}

---
## PART 1: IMPLEMENTATION REPORT

### Summary of Changes
temperature.py, test_temperature.py

### Verification Results
unittest: {said}
"""

HEAD = "import unittest\n\nimport temperature\n"


def written(file: Path, task: str, text: str, *, first: bool = False) -> None:
    """Write the part of a task into a file; replace an existing part."""
    mark = f"# {task}"
    parts = file.read_text(encoding="utf-8").split("\n\n\n") if file.exists() else []
    parts = [part.strip() for part in parts if not part.strip().endswith(mark)]
    parts.insert(0 if first else len(parts), f"{text}{mark}")
    file.write_text("\n\n\n".join(parts) + "\n", encoding="utf-8")


def tested() -> tuple[bool, str]:
    """Run the tests in a separate process; return whether they pass, and the last line of their output."""
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", "test_temperature"],
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode == 0, ran.stderr.strip().splitlines()[-1]


def executed(request: dict[str, Any]) -> dict[str, Any]:
    """Write code, tests and report; return the executor's output."""
    task, attempt, session = request["TASK_ID"], request["ATTEMPT_NUMBER"], Path(request["SESSION_PATH"])
    careful = attempt > 1
    code = (
        CODE[task]
        .replace("{rounded}", "round" if careful else "")
        .replace("{digits}", ", 2" if careful else "")
    )
    written(Path("temperature.py"), task, code, first=task == "task-4")
    tests = Path("test_temperature.py")
    if not tests.exists():
        written(tests, "head", HEAD)
    name = task.replace("-", "_").title()
    written(tests, task, f"class {name}(unittest.TestCase):\n    def test(self):\n        {TESTS[task]}\n")
    good, said = tested()
    report = f"tasks.{task}-report{f'-r{attempt}' if careful else ''}.md"
    (session / report).write_text(REPORT.format(task=task, said=said), encoding="utf-8")
    found = {
        "id": "task-3",
        "description": "Refuse what is colder than it can be",
        "rationale": "seen on the way",
    }
    return {
        "status": "completed" if good else "failed",
        "report_path": report,
        "success_criteria_met": good,
        "discovered_tasks": [found] if task == "task-2" else [],
        "blockers": [] if good else [said],
    }


if __name__ == "__main__":
    json.dump(executed(json.load(sys.stdin)), sys.stdout)
