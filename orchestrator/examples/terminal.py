"""Run and show the commands of a demonstration, each in its own process."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.telemetry.escape import escape


class Failed(Exception):
    """A command did not have the expected effect."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{escape(text)}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{escape(text)}\n")


def run(folder: Path, *arguments: str, code: int = 0) -> None:
    """Run a command to its end and show its output. Raises Failed for another exit code."""
    process = subprocess.run(  # noqa: S603
        _command(arguments),
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.stdout:
        say(process.stdout.rstrip("\n"))
    _check(process.returncode, code)


def interrupt(
    folder: Path, arguments: Sequence[str], *, at: str, act: Callable[[subprocess.Popen[str]], None]
) -> int:
    """Start a command and show its output; call `act` after the line with `at`, and return the exit code.

    Raises Failed if there is no such line.
    """
    with subprocess.Popen(  # noqa: S603
        _command(arguments),
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        reached = False
        for line in process.stdout or ():
            say(line.rstrip("\n"))
            if at in line and not reached:
                reached = True
                act(process)
        ended = process.wait()
    if not reached:
        raise Failed(f"it ended (exit code {ended}) before {at!r}")
    return ended


def kill(process: subprocess.Popen[str]) -> None:
    """End a process as a crash would, and show that."""
    say(f"$ kill -9 {process.pid}")
    process.send_signal(signal.SIGKILL)


def run_and_stop(folder: Path, *arguments: str, at: str, code: int) -> None:
    """Start a command, and send Ctrl-C after the line with `at`. Raises Failed for another exit code."""

    def stop(process: subprocess.Popen[str]) -> None:
        say("^C")
        process.send_signal(signal.SIGINT)

    _check(interrupt(folder, arguments, at=at, act=stop), code)


def _check(ended: int, code: int) -> None:
    if ended != code:
        raise Failed(f"exit code {ended} instead of {code}")


def _command(arguments: Sequence[str]) -> list[str]:
    say(f"$ {shlex.join(['orchestrator', *arguments])}")
    return [sys.executable, "-m", "orchestrator", *arguments]


def _environment() -> dict[str, str]:
    """Return the environment without our settings, so that the demonstration is the same everywhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
