"""What every test can use: coroutine tests, system programs, seeds, sizes of campaigns, the built wheel."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
ON_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
SOAK = os.environ.get("ORCHESTRATOR_SOAK", "") not in ("", "0")

# Times are not what properties are about, and machines are shared: no deadlines.
settings.register_profile(
    "default",
    derandomize=True,  # the same examples on every machine: red on CI is red here
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("default"), derandomize=False, max_examples=5_000)
settings.load_profile("soak" if SOAK else "default")


# ---- coroutine tests ----


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def test_…` in an event loop of its own, under @given too."""
    property_test = getattr(pyfuncitem.obj, "hypothesis", None)
    if property_test is not None and inspect.iscoroutinefunction(property_test.inner_test):
        property_test.inner_test = _in_a_loop(property_test.inner_test)
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


def _in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


# ---- what a machine may lack ----


def _absent(reason: str) -> NoReturn:
    if ON_CI:
        pytest.fail(f"{reason}; CI must have it (.ci/run)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def absent() -> Callable[[str], NoReturn]:
    """Give up for want of something outside the repository: a skip with its reason here, a failure on CI."""
    return _absent


@pytest.fixture(scope="session")
def requires() -> Callable[[str], Path]:
    """`requires("strace")` is the program's path; for a whole test use the marker `system("strace")`."""
    return _program


def _program(name: str) -> Path:
    found = shutil.which(name)
    return Path(found) if found else _absent(f"no program {name!r} on PATH")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("system"):
        for name in mark.args:
            _program(name)
    if item.get_closest_marker("soak") and not SOAK:
        pytest.skip("a campaign at full size: make soak")


# ---- chance and size ----


@pytest.fixture
def seed() -> int:
    """A fresh seed, or ORCHESTRATOR_SEED; pytest shows the line when the test fails."""
    value = int(os.environ.get("ORCHESTRATOR_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ORCHESTRATOR_SEED={value}")  # noqa: T201  captured, so shown where it is wanted
    return value


@pytest.fixture(scope="session")
def campaign() -> Callable[[int, int], int]:
    """`campaign(200, 10_000)`: how many rounds, for `make test` and for `make soak`."""
    return lambda small, full: full if SOAK else small


# ---- the distribution ----


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree without network."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, ROOT],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    (built,) = out.glob("*.whl")
    return built


HOST = '''
import asyncio, json, sys
import callbacks, guards
from orchestrator import Limits, Orchestrator, Response, ScriptedLLM, ToolCall, tool

assert (callbacks.MINE, guards.MINE) == (True, True)

@tool(effect="pure")
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the catalogue."""
    return [query] * limit

llm = ScriptedLLM([
    Response(tool_calls=(ToolCall("1", "search", '{"query": "moon", "limit": 2}'),)),
    Response("Two moons."),
])
agent = Orchestrator(llm=llm, tools=[search], limits=Limits(max_iterations=20), observers=())
result = asyncio.run(agent.run("How many moons?"))
llm.assert_complete()
json.dump({
    "outcome": str(result.outcome),
    "output": result.output,
    "roles": [message.role for message in result.messages],
    "python": list(sys.version_info[:2]),
    "file": sys.modules["orchestrator"].__file__,
    "hooks": sys.modules["orchestrator_callbacks"].__file__,
}, sys.stdout)
'''


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A program that embeds us and has a callbacks.py and a guards/ of its own beside it."""
    folder = tmp_path / "host"
    (folder / "guards").mkdir(parents=True)
    (folder / "callbacks.py").write_text("MINE = True\n")
    (folder / "guards" / "__init__.py").write_text("MINE = True\n")
    script = folder / "host.py"
    script.write_text(HOST)
    return script
