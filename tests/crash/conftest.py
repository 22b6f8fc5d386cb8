"""The shim, compiled once; the nursery of workers; a folder on a disk of a given size."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.crash import mount
from tests.crash.life import ROOT, begun_by
from tests.crash.lives import Lives
from tests.crash.nursery import Nursery
from tests.preload import preloading

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """What a worker's process needs to import us."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="session")
def nursery(
    tmp_path_factory: pytest.TempPathFactory, requires: Callable[[str], Path], environment: dict[str, str]
) -> Iterator[Nursery]:
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    compile_it = [
        str(requires("gcc")),
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        str(built),
        str(HERE / "shim.c"),
        "-ldl",
    ]
    subprocess.run(compile_it, check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.worker"],
        cwd=ROOT,
        env=environment | preloading(built),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def begin(environment: dict[str, str]) -> Iterator[Callable[[Path], Lives]]:
    """`begin(folder)` is a run of the loop that processes drive, one after the other."""
    with begun_by("tests.crash.loop_worker", environment, Lives) as begin:
        yield begin


@pytest.fixture
def mounted(tmp_path: Path, absent: Callable[[str], NoReturn]) -> Iterator[Callable[..., Path]]:
    """`mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs")` mounts onto a new folder; needs root."""
    made: list[Path] = []

    def mounting(*arguments: str | Path) -> Path:
        point = tmp_path / f"mount{len(made)}"
        point.mkdir()
        try:
            mount.mount(point, *arguments)
        except OSError as error:
            absent(str(error))
        made.append(point)
        return point

    yield mounting
    for point in made:
        mount.unmount(point)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: for faults that do not need a disk."""
    memory = Path("/dev/shm")  # noqa: S108  it is made for this
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
