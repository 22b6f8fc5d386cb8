"""Where contestants are installed: an environment each, made when it is asked for and its pins are not in it yet.

Pins of two peers may clash, and what one brings must not speed up or slow down another. Ours is installed the same
way for its size and import time, as a wheel with the core's dependencies: `.venv` also holds what tests and lint need.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.benchmarks.contestant import ROOT, NotMeasured
from tests.environment import for_installers

PINS = Path(__file__).with_name("pins")
OURS = "fsm-orchestrator"
_PATIENCE = 600.0
_PLACES = re.compile(r"\w+://\S+|host='[^']*'|'?[\w.-]+\.\w{2,}:\d+'?")


def environment(folder: Path, pins: Path, *, compiled: bool = True) -> Path:
    """Return the interpreter of the environment that holds what a file of pins says. Raises NotMeasured.

    Without `compiled` the modules are compiled when they are first imported, which is far fewer of them. The size of
    an environment is measured compiled, as pip leaves it.
    """
    return _made(folder, pins.read_text(encoding="utf-8"), *([] if compiled else ["--no-compile"]))


def ours(folder: Path) -> Path:
    """Return the interpreter of an environment that holds what `pip install` of our wheel would bring.

    The pins are those of the environment that this runs in; the wheel is built from the working tree each time.
    """
    pins = "\n".join(sorted({f"{one}=={distribution(one).version}" for one in _closure(OURS)})) + "\n"
    interpreter = _made(folder, pins)
    with tempfile.TemporaryDirectory() as built:
        _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", built, ROOT)
        (wheel,) = Path(built).glob("*.whl")
        _install(interpreter, "--force-reinstall", wheel)
    return interpreter


def there(folder: Path) -> Path | None:
    """Return the interpreter of an environment that was made before, up to date or not; None without one."""
    interpreter = folder / "bin" / "python"
    return interpreter if (folder / ".ready").exists() and interpreter.exists() else None


def _made(folder: Path, pins: str, *options: str) -> Path:
    """Our own pip installs into it, so that it needs none. Wheels only: nothing of a peer is built here.

    Several processes may want it at once: one makes it, and the others wait.
    """
    ready, wanted = folder / ".ready", f"{sys.version}\n{pins}"
    interpreter = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists() and ready.read_text(encoding="utf-8") == wanted and interpreter.exists():
            return interpreter
        print(f"set-up: {folder}", file=sys.stderr)
        _run("-m", "venv", "--without-pip", "--clear", folder)
        listed = folder / "pins.txt"
        listed.write_text(pins, encoding="utf-8")
        _install(interpreter, *options, "--retries", "1", "--only-binary", ":all:", "--requirement", listed)
        ready.write_text(wanted, encoding="utf-8")
    return interpreter


def _install(interpreter: Path, *what: str | Path) -> None:
    pip = ("-m", "pip", "--python", interpreter, "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--no-deps", *what)


def _closure(name: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what a distribution depends on, without extras, without itself."""
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        if needed.name in seen or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        yield needed.name
        yield from _closure(needed.name, seen | {name, needed.name})


def _run(*arguments: str | Path) -> None:
    command = [sys.executable, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE, env=for_installers()
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"its packages did not come within {_PATIENCE:g} s") from None
    if done.returncode:
        raise NotMeasured(f"its packages could not be installed: {_last_error(done.stderr)}")


def _last_error(said: str) -> str:
    """Return pip's last error; where it looked is nobody's business here."""
    lines = said.strip().splitlines() or ["no reason given"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return _PLACES.sub("(address)", (errors or lines)[-1])
