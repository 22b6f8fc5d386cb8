"""`make demo-approval`: a run is approved the next day, from another terminal, in another process.

Each step is a command in its own process, in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.examples.approval import LEDGER
from orchestrator.examples.terminal import Failed, complain, interrupt, kill, run, say

RUN = "invoice-17"
_HERE = "orchestrator.examples.approval"
START = (
    *("run", "Pay invoice 17.", "--run-id", RUN),
    *("--model", f"python:{_HERE}:model", "--tool", f"{_HERE}:pay"),
)
WAITS = "runs respond"
"""Part of the last line that a waiting run prints: the last of the answers that it accepts."""


def demonstrate(folder: Path) -> None:
    """Run the demonstration. Raises Failed."""
    say("# In one terminal: an agent wants to pay. The tool needs approval, so the run waits.")
    interrupt(folder, START, at=WAITS, act=_kill)
    say("\n# Tomorrow, in another terminal: which run waits, and for what?")
    run(folder, "runs", "list")
    run(folder, "runs", "show", RUN)
    say(
        "\n# Nothing is paid yet. A person approves. No process has the run, so the answer waits in its inbox."
    )
    _ledger(folder, lines=0)
    run(folder, "runs", "approve", RUN, "--by", "ann", "--why", "it is due")
    say("\n# Any process can resume the run.")
    run(folder, "runs", "resume", RUN)
    _ledger(folder, lines=1)
    say("\n# Another approval is refused, and another resume prints the result: there is one payment.")
    run(folder, "runs", "approve", RUN, "--by", "bob", code=2)
    run(folder, "runs", "resume", RUN)
    _ledger(folder, lines=1)


def _kill(process: subprocess.Popen[str]) -> None:
    say("\n# Its process is killed while it waits.")
    kill(process)


def _ledger(folder: Path, *, lines: int) -> None:
    """Show the payments."""
    file = folder / LEDGER
    say(f"$ cat {LEDGER}")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    say(text.rstrip("\n") if text else f"cat: {LEDGER}: No such file or directory")
    if len(text.splitlines()) != lines:
        raise Failed(f"{len(text.splitlines())} payments instead of {lines}")


def main() -> int:
    """Run the demonstration in a temporary folder; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            demonstrate(Path(folder))
        except Failed as error:
            complain(f"demo-approval: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
