"""The two streams of the command line. Everything printed goes through here, at once and whole."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def say(text: str = "") -> None:
    """Print a line at once: whoever reads a pipe wants it now. Raises BrokenPipeError when nobody does."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_more(text: str) -> None:
    """Print a piece of a line at once. Raises as `say`."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say_json(data: Any) -> None:
    """Print data as one line of JSON, in ASCII: recorded text may have halves of characters in it."""
    say(json.dumps(data))


def complain(sentence: str) -> None:
    """Print one sentence on stderr, on one line."""
    sys.stderr.write(f"orchestrator: {' '.join(sentence.split())}\n")
    sys.stderr.flush()


def shown(text: str, most: int = 2_000) -> str:
    """Return text that cannot drive a terminal: control characters become `?`; cut at `most`."""
    safe = "".join(one if one.isprintable() or one == "\n" else "?" for one in text.replace("\t", "    "))
    return safe if len(safe) <= most else f"{safe[:most]}… ({len(safe):,} characters)"


def is_terminal() -> bool:
    """Tell whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
