"""The environment that LangGraph is measured in: made when it is asked for and the pins are not in it yet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.contestant import NotMeasured

PINS = Path(__file__).with_name("peers.txt")
_PATIENCE = 600.0
_PLACES = re.compile(r"\w+://\S+|host='[^']*'|'?[\w.-]+\.\w{2,}:\d+'?")


def python(folder: Path, pins: Path = PINS) -> Path:
    """Return the environment's interpreter. Raises NotMeasured when the pins cannot be had.

    Our own pip installs into it, so that it needs none. Wheels only: nothing of a peer is built here.
    """
    ready, wanted = folder / ".ready", f"{sys.version}\n{pins.read_text(encoding='utf-8')}"
    interpreter = folder / "bin" / "python"
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted and interpreter.exists():
        return interpreter
    print(f"set-up: {folder} with the peers of {pins.name}", file=sys.stderr)
    _run("-m", "venv", "--without-pip", "--clear", folder)
    pip = ("-m", "pip", "--python", interpreter, "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--retries", "1", "--no-deps", "--only-binary", ":all:", "--requirement", pins)
    ready.write_text(wanted, encoding="utf-8")
    return interpreter


def _run(*arguments: str | Path) -> None:
    command = [sys.executable, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"its packages did not come within {_PATIENCE:g} s") from None
    if done.returncode:
        raise NotMeasured(f"its packages could not be installed: {_last_error(done.stderr)}")


def _last_error(said: str) -> str:
    """Return pip's last error; where it looked is nobody's business here."""
    lines = said.strip().splitlines() or ["no reason given"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return _PLACES.sub("(address)", (errors or lines)[-1])
