"""An environment with the frameworks that host us: our libraries, and theirs at the versions of pins.txt."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).with_name("pins.txt")
PATHS = [sysconfig.get_path("purelib"), *(str(ROOT / part) for part in (".", "callbacks", "guards"))]

AGENT = '''
from orchestrator import Agent, tool
from orchestrator.testing import FunctionLLM


@tool(effect="pure")
def moons(planet: str) -> str:
    """Count the moons of a planet."""
    return f"{planet}: 2"


def answers(request):
    from orchestrator import ToolCall

    last = request.messages[-1]
    if last.role == "tool":
        return last.text
    return ToolCall("1", "moons", '{"planet": "%s"}' % last.text)


agent = Agent(FunctionLLM(answers), name="host", tools=[moons], observers=())
'''
"""The module `hosted` of every host: an agent made at import, with a tool."""


class Host:
    """A folder of a host's program, and the interpreter that runs it."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        (folder / "hosted.py").write_text(AGENT)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        theirs = ("PYTEST_", "ORCHESTRATOR_", "PYTHON")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
        return {**clean, "PYTHONPATH": str(self.folder), "HOME": str(self.folder)}

    def start(self, *arguments: str | Path, log: str = "log") -> subprocess.Popen[bytes]:
        """Start a program of the host in a process group of its own."""
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [self.python, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *arguments: str | Path) -> str:
        """Run a program of the host to its end and return its output."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self.environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="session")
def frameworks(pytestconfig: pytest.Config, absent: Callable[[str], NoReturn]) -> Path:
    """The interpreter of the environment, which is kept from one session to the next."""
    wanted = hashlib.sha256(f"{sys.version}{PATHS}{PINS.read_text()}".encode()).hexdigest()[:16]
    folder = pytestconfig.cache.mkdir("hosts") / wanted
    python = folder / "bin" / "python"
    if (folder / "ready").exists() and python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text("\n".join(PATHS))
    pip: Sequence[str | Path] = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
    )
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", "--requirement", PINS], check=False, capture_output=True, text=True
    )
    if done.returncode:
        absent(f"pip cannot install the hosts: {done.stderr.strip()[-300:]}")
    (folder / "ready").touch()
    return python


@pytest.fixture
def host(frameworks: Path, tmp_path: Path) -> Host:
    """A host with one of the frameworks."""
    return Host(frameworks, tmp_path)


@pytest.fixture
def plain_host(tmp_path: Path) -> Host:
    """A host with our own libraries only."""
    return Host(Path(sys.executable), tmp_path)
