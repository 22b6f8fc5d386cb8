"""The program of the campaign in test_program_kill: any stage of a pipeline, any agent of the ralph loop.

It and all that it starts hold the lock of the file `lock`; one that finds it held by another program writes `overlap`
into `log`. Where the file `hang` names its role, it removes that file, starts a child in a session of its own, writes
both numbers into the pipe `there` and waits; the first word of `hang` says whether SIGTERM ends them.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_SHORT = 0.005


def main() -> None:
    role = sys.argv[1]
    lock = os.open("lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log(f"overlap {role}")
    _log(f"start {role}")
    _hang(role)
    request = json.load(sys.stdin)
    time.sleep(_SHORT)
    said = _answer(role, request)
    _log(f"end {role}")
    sys.stdout.write(said)


def _hang(role: str) -> None:
    wish = Path("hang")
    how, wanted = wish.read_text().split() if wish.exists() else ("", "")
    if wanted != role:
        return
    wish.unlink()
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _log(f"works {role}")  # before anybody may end it
    child = os.fork()
    if child:
        Path("there").write_text(f"{os.getpid()} {child}")
    else:
        os.setsid()
    while True:  # both continue to write, as a coding agent and its shell would
        _log(f"works {role}")
        time.sleep(_SHORT)


def _log(line: str) -> None:
    with Path("log").open("a") as file:
        file.write(line + "\n")


def _answer(role: str, request: dict[str, Any]) -> str:
    match role:
        case "agent-planner":
            tasks = Path(request["SESSION_PATH"], "tasks.md")
            if not tasks.exists():
                tasks.write_text("# Tasks\n\n## Implementation Tasks\n\n- task-1: one\n")
            return '{"status": "completed"}'
        case "agent-executor":
            Path(request["CONTEXT"]["report_path"]).write_text(
                "# Task Report\n\n## PART 1: IMPLEMENTATION REPORT\n\ndone\n"
            )
            return '{"status": "completed", "success_criteria_met": true}'
        case "agent-reviewer":
            return '{"status": "completed", "verdict": "Qualified"}'
        case "planner" | "implementer":
            return "the work"
        case _:
            return ""


if __name__ == "__main__":
    main()
