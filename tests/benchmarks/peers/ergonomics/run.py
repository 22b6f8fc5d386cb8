"""Run the programs and write `results/ergonomics.json`: `make bench-features ARGS=--ergonomics`, about three minutes.

Each is run as `trial` says, in an environment with its library. A part of them (`--libraries`) writes nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks import environments
from tests.benchmarks.peers.ergonomics.trial import run

PINS = Path(__file__).with_name("pins")
PROGRAMS = Path(__file__).with_name("programs")
RESULTS = Path(__file__).parents[2] / "results" / "ergonomics.json"


def results() -> dict[str, Any]:
    """Return what was observed of each program when it ran."""
    programs: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["programs"]
    return programs


class Library(NamedTuple):
    """A library: its program's name, its title, its pins, and the packages whose versions are named."""

    name: str
    title: str
    pins: Path | None
    packages: tuple[str, ...]


LIBRARIES = (
    Library("ours", "ours", None, ("fsm-orchestrator",)),
    Library("langgraph", "LangGraph", PINS / "langgraph.txt", ("langgraph", "langchain")),
    Library("pydantic_ai", "pydantic-ai", PINS / "pydantic-ai.txt", ("pydantic-ai-slim",)),
    Library("openai_agents", "openai-agents", environments.PINS / "openai-agents.txt", ("openai-agents",)),
)


def main(root: Path, libraries: str) -> None:
    """Run the programs of these libraries (names with commas between; empty means all), print, and write."""
    chosen = [one for one in LIBRARIES if not libraries or one.name in libraries.split(",")]
    found: dict[str, Any] = {}
    for library in chosen:
        interpreter = interpreter_of(library, root)
        with tempfile.TemporaryDirectory() as folder:
            observed = run(library.name, interpreter, Path(folder))
        found[library.name] = {"versions": versions_of(interpreter, library.packages), **observed}
        print(f"{library.title:15} did the work: {found[library.name]}", flush=True)
    if len(chosen) == len(LIBRARIES):
        content = {"taken": time.strftime("%Y-%m-%d"), "programs": found}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"written: {RESULTS}")


def interpreter_of(library: Library, root: Path) -> Path:
    """Return the interpreter of the environment of a library."""
    if library.pins is None:
        return Path(sys.executable)
    return environments.environment(root / f"ergonomics-{library.pins.stem}", library.pins)


def versions_of(interpreter: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages in the environment of an interpreter."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    done = subprocess.run(
        [str(interpreter), "-c", code, *packages], check=True, capture_output=True, text=True
    )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
