"""No test of a provider opens a socket but to the endpoints it configured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.environments import environment
from tests.providers.endpoint import GUARD, Guard
from tests.providers.family import FAMILIES, Family


@pytest.fixture(autouse=True)
def guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    """Servers of MCP are processes that choose their ports themselves: their tests may connect to this machine."""
    with GUARD.watching(local=request.path.name.startswith("test_mcp")):
        yield GUARD


@pytest.fixture
def vendor_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the libraries of vendors that are too large, or pin too much, for the environment of the tests.

    They are installed once into an environment of their own. Its folder is the last one of the path, so that a
    package of both is the one of the tests.
    """
    try:
        pins = Path(__file__).with_name("vendor_pins.txt")
        python = environment(Path(sys.prefix) / "vendors", pins, compiled=False)
    except NotMeasured as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    (folder,) = python.parent.parent.glob("lib/python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Family:
    """Return a family of models by its name."""
    found = FAMILIES[request.param]
    if found.library:
        request.getfixturevalue("vendor_libraries")
    return found
