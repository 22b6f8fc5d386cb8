"""The planner: asks for a round of questions first, then writes plan.md and tasks.md."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PLAN = """# Plan: temperatures

## Goal & Success Criteria
{request}

## Target Files/Artifacts
temperature.py, test_temperature.py

## Proposed Design/Changes/Approach
One function each way; results are rounded to {decimals} decimals.

## Verification & Testing
`python -m unittest test_temperature`
"""

TASKS = """# Task List

## Implementation Tasks
- task-1: Convert Celsius to Fahrenheit
    - **Type**: Sequential
    - **Files**: [temperature.py, test_temperature.py]
    - **Objective**: A function `fahrenheit(celsius)`
    - **Success Criteria**:
        - fahrenheit(100) is 212.0
        - fahrenheit(36.66) is 97.99, for results are rounded

- task-2: Convert Fahrenheit to Celsius
    - **Type**: Sequential
    - **Files**: [temperature.py, test_temperature.py]
    - **Objective**: A function `celsius(fahrenheit)`
    - **Success Criteria**:
        - celsius(212) is 100.0
    - **Inherits From**: task-1
"""

ANSWERED = re.compile(r"\*\*Answer\*\*: (?!\[)(?P<said>\S.*)")


def planned(request: dict[str, Any]) -> dict[str, Any]:
    """Write the files; return the planner's output."""
    session = Path(request["SESSION_PATH"])
    questions = session / "plan.questions.md"
    answer = ANSWERED.search(questions.read_text(encoding="utf-8")) if questions.exists() else None
    if answer is None and not questions.exists():
        return {"status": "needs_qa_cycle", "next_actions": ["qa_brainstorm"]}
    made = []
    if not (session / "tasks.md").exists():
        plan = PLAN.format(request=request["USER_REQUEST"], decimals=answer["said"] if answer else "some")
        (session / "plan.md").write_text(plan, encoding="utf-8")
        (session / "tasks.md").write_text(TASKS, encoding="utf-8")
        made = ["plan.md", "tasks.md"]
    return {"status": "completed", "artifacts_created": made, "next_actions": ["execute"]}


if __name__ == "__main__":
    json.dump(planned(json.load(sys.stdin)), sys.stdout)
