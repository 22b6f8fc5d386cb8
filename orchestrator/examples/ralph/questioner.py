"""The questioner: asks the one question that only a person can answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

QUESTIONS = """# Q&A Discovery: temperatures

## Q&A Cycles

### Cycle {number}
**Objective**: what the request leaves open

#### Generated Questions
1. **[High Priority]** To how many decimals are results rounded?
    - **Category**: Requirements
    - **Priority**: High
    - **Status**: Unanswered
    - **Impact**: Every success criterion
    - **Answer**: [To be filled]
    - **Source**: [To be filled]
"""


def questions_for(request: dict[str, Any]) -> dict[str, Any]:
    """Write the questions; return the questioner's output."""
    paper = Path(request["SESSION_PATH"]) / "plan.questions.md"
    if not paper.exists():
        paper.write_text(QUESTIONS.format(number=request["CYCLE_NUMBER"]), encoding="utf-8")
    return {"status": "completed", "questions_generated": 1, "priority_breakdown": {"high": 1}}


if __name__ == "__main__":
    json.dump(questions_for(json.load(sys.stdin)), sys.stdout)
