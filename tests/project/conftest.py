"""A project of `orchestrator init`, with an environment that has the libraries of this one and needs no network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.examples.service_client import TOKENS, Client
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PATHS = [sysconfig.get_path("purelib"), *(str(ROOT / part) for part in (".", "callbacks", "guards"))]


def clean_environment() -> dict[str, str]:
    """The environment without what tests need."""
    ours = ("PYTEST_", "PYTHON", "TEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def environment(folder: Path) -> Path:
    """Make an environment that finds the libraries of this one, and return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text("\n".join(PATHS))
    pip = folder / "bin" / "pip"
    pip.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n')
    pip.chmod(0o755)
    return folder / "bin"


class MadeProject:
    """The folder of a project, and commands typed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str) -> str:
        """Run a command and return what it printed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=clean_environment(),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def orchestrator(self, *arguments: str) -> str:
        return self.run(".venv/bin/python", "-m", "orchestrator", *arguments)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `orchestrator init shop` makes, before anything is typed in it."""
    folder = tmp_path_factory.mktemp("init")
    command = [sys.executable, "-m", "orchestrator", "init", "shop"]
    path = {"PYTHONPATH": os.pathsep.join(PATHS[1:])}
    subprocess.run(command, cwd=folder, env=clean_environment() | path, check=True, capture_output=True)
    return folder / "shop"


@pytest.fixture
def made(pristine: Path, tmp_path: Path) -> MadeProject:
    """A copy of it that is set up."""
    shutil.copytree(pristine, tmp_path / "shop")
    environment(tmp_path / "shop" / ".venv")
    (tmp_path / "shop" / ".venv" / ".ready").touch()
    return MadeProject(tmp_path / "shop")


class RunningService:
    """A process that serves runs, and its client."""

    def __init__(self, command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.port = free_port()
        self.command = [part.replace("8000", str(self.port)) for part in command]
        self.folder, self.variables = folder, {**clean_environment(), "SHOP_TOKEN": TOKENS, **variables}
        self.client = Client(self.port)
        self.begin()

    def begin(self) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.client.until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, (self.folder / "service.log").read_text()
        with self.client.http() as http:
            return http.get("/readyz").is_success

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


Serve = Callable[..., RunningService]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a service; none outlives the test."""
    begun: list[RunningService] = []

    def begin(command: list[str], folder: Path, **variables: str) -> RunningService:
        begun.append(RunningService(command, folder, variables))
        return begun[-1]

    yield begin
    for service in begun:
        service.kill()
