"""`make demo-approval`: approved tomorrow, from another terminal, by a process that is not the one that asked.

Everything shown is a command with a process of its own, in a temporary folder.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.examples.approval import LEDGER

RUN = "invoice-17"
_HERE = "orchestrator.examples.approval"
START = (
    *("run", "Pay invoice 17.", "--run-id", RUN),
    *("--model", f"python:{_HERE}:model", "--tool", f"{_HERE}:pay"),
)
WAITS = "runs respond"
"""In the line with which a run that waits has said everything: the last of the answers that it takes."""


class Failed(Exception):
    """A command did not do what the demonstration is about."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def demonstrate(folder: Path) -> None:
    """Show it. Raises Failed."""
    say("# In one terminal: an agent wants to pay. The tool needs approval, so the run waits.")
    _run_and_kill(folder, *START)
    say("\n# Tomorrow, in another terminal: what is there, and what is asked?")
    _run(folder, "runs", "list")
    _run(folder, "runs", "show", RUN)
    say("\n# Nothing is paid yet. Somebody approves; nobody holds the run, so that is kept for it.")
    _ledger(folder, lines=0)
    _run(folder, "runs", "approve", RUN, "--by", "ann", "--why", "it is due")
    say("\n# Any process may go on with the run.")
    _run(folder, "runs", "resume", RUN)
    _ledger(folder, lines=1)
    say("\n# Another approval is refused, another resume only tells how it ended: there is one payment.")
    _run(folder, "runs", "approve", RUN, "--by", "bob", code=2)
    _run(folder, "runs", "resume", RUN)
    _ledger(folder, lines=1)


def _command(arguments: tuple[str, ...]) -> list[str]:
    say(f"$ {shlex.join(['orchestrator', *arguments])}")
    return [sys.executable, "-m", "orchestrator", *arguments]


def _run_and_kill(folder: Path, *arguments: str) -> None:
    """Start a command, show what it prints until it waits, and kill it."""
    with subprocess.Popen(  # noqa: S603
        _command(arguments), cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            say(line.rstrip("\n"))
            if WAITS in line:
                break
        else:
            raise Failed(f"it ended (exit code {process.wait()}) instead of waiting for a person")
        say("\n# Its process is killed while it waits.")
        say(f"$ kill -9 {process.pid}")
        process.send_signal(signal.SIGKILL)


def _run(folder: Path, *arguments: str, code: int = 0) -> None:
    """Run a command to its end and show what it prints."""
    process = subprocess.run(  # noqa: S603
        _command(arguments),
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    say(process.stdout.rstrip("\n"))
    if process.returncode != code:
        raise Failed(f"exit code {process.returncode} instead of {code}")


def _ledger(folder: Path, *, lines: int) -> None:
    """Show what was paid."""
    file = folder / LEDGER
    say(f"$ cat {LEDGER}")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    say(text.rstrip("\n") if text else f"cat: {LEDGER}: No such file or directory")
    if len(text.splitlines()) != lines:
        raise Failed(f"{len(text.splitlines())} payments instead of {lines}")


def _environment() -> dict[str, str]:
    """Return the environment without settings of ours: the demonstration is the same everywhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}


def main() -> int:
    """Show it in a temporary folder; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            demonstrate(Path(folder))
        except Failed as error:
            sys.stderr.write(f"demo-approval: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
