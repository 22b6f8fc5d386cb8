"""What every test can use: coroutine tests, system programs, seeds, sizes of campaigns, the built wheel.

And how the tests are laid out in time and space: the longest files first, temporary folders in memory.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from tests.bytecode import import_a_share, rewrite_fewer_asserts
from tests.environment import make_neutral, of_user
from tests.tiers import EXAMPLES, IN_CAMPAIGN, SOAK, sort_into_tier

if TYPE_CHECKING:
    from tests.postgres import Cluster

ROOT = Path(__file__).resolve().parent.parent
ON_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

make_neutral()
# Hundreds of processes import us. Where the environment forbids to keep what was compiled (images for containers
# do), each of them would compile all of it again: a quarter of the suite's time.
sys.dont_write_bytecode = False

# Under nohup a hangup is ignored, and Ctrl-C behind a shell's &, and so they would be by every command that is started
# here in order to be hung up or interrupted. A handler that does nothing is the same to us, and gone after exec.
for _number in {getattr(signal, "SIGHUP", signal.SIGINT), signal.SIGINT}:
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# Times are not what properties are about, and machines are shared: no deadlines.
settings.register_profile(
    "ours",
    max_examples=EXAMPLES,
    derandomize=not SOAK,  # the same examples on every machine: red on CI is red here
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ours")


# ---- order and place ----

# What begins last should be short, or one worker ends minutes after the others: these are dealt out first, in
# this order. xdist by itself deals out files with many tests first, and those with few long ones last.
LONGEST_FIRST = (
    "dashboards/test_live.py",
    "runtime/test_coding_agents.py",
    "console/test_tasks.py",
    "contract/test_extending.py",
    "console/test_browser.py",
    "web/test_surfaces.py",
    "benchmarks/test_instructions.py",
    "crash/test_fleet.py",
    "providers/test_litellm.py",
    "contract/test_core.py",
    "examples/test_coming_from.py",
    "dashboards/test_runbook_commands.py",
    "project/test_made_project.py",
    "examples/test_service_processes.py",
    "documentation/test_documentation.py",
    "dashboards/test_live_hidden.py",
    "crash/test_rolling_deploy.py",
    "telemetry/test_exposition_pages.py",
    "engines/test_dispatchers.py",
    "contract/test_guides.py",
    "crash/test_overlap.py",
    "runtime/test_cancel_scopes.py",
    "telemetry/test_multiprocess.py",
    "types/test_cases.py",
    "runtime/test_tree_questions.py",
    "crash/test_full_disk.py",
    "cli/test_first_errors.py",
    "contract/test_pythons.py",
    "runtime/test_backtest.py",
    "cli/test_demo.py",
    "journal/test_postgres_owner.py",
    "hosts/test_hosts.py",
    "crash/test_branches_kill.py",
    "cli/test_stop.py",
    "engines/test_worker.py",
    "cli/test_mcp_kill.py",
    "benchmarks/test_team.py",
    "providers/test_mcp_sampling.py",
    "console/test_start_page.py",
    "repl/test_escape.py",
    "crash/test_two_agents_kill.py",
    "providers/test_mcp_official.py",
    "cli/test_mcp_serve.py",
    "journal/test_postgres_server.py",
    "providers/test_mcp_stdio.py",
    "dashboards/test_rule_variants.py",
    "benchmarks/test_ergonomics.py",
    "telemetry/test_runs_after_kill.py",
    "benchmarks/test_listing.py",
    "crash/test_handoff_kill.py",
    "benchmarks/test_console.py",
    "journal/test_postgres_cut.py",
    "drawing/test_diagrams.py",
    "contract/test_guide_service.py",
    "cli/test_worker.py",
    "journal/test_postgres_contract.py",
    "providers/test_cut_answers.py",
    "crash/test_approval_kill.py",
    "providers/test_wire_shapes.py",
    "crash/test_power.py",
    "benchmarks/test_features.py",
    "cli/test_bad_input.py",
    "examples/test_service.py",
    "cli/test_approval.py",
    "dashboards/test_rules.py",
    "crash/test_power_files.py",
)


def pytest_configure(config: pytest.Config) -> None:
    rewrite_fewer_asserts(config)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # ours is the order


def pytest_itemcollected(item: pytest.Item) -> None:
    sort_into_tier(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    full_size = [item for item in items if item.get_closest_marker("soak")]
    if full_size and not SOAK:
        items[:] = [item for item in items if item not in full_size]
        config.hook.pytest_deselected(items=full_size)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is collected stays to the end: no garbage is looked for in it, neither meanwhile nor by any test.

    Then the collector has the thresholds of a worker of ours: it runs far less often than with Python's own.
    """
    # Not above: what the modules of the tests import is part of the collection.
    from orchestrator.engines.process import THRESHOLDS

    gc.disable()
    try:
        import_a_share(session)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores, and four in the campaign.

    Much of the suite waits for processes, disks, servers and Prometheus. With three workers a third of both cores was
    idle in the first minutes of the campaign.
    """
    cores = os.cpu_count() or 1
    return 2 * cores if IN_CAMPAIGN else (3 * cores + 1) // 2


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send one message from a worker of xdist for a test that passes: its start, set-up and teardown say no more.

    The six messages of xdist cost as much time as the rest of what pytest does for a small test.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    all_passed = all(report.passed for report in reports)
    for report in reports:
        if not all_passed or report.when == "call" or report.user_properties:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


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


# ---- garbage ----


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_a_file() -> Iterator[None]:
    """What a file leaves is found in its last test, and what stays is not walked through by the tests after it."""
    yield
    gc.collect()
    gc.freeze()


# ---- what a machine may lack ----


def _absent(reason: str) -> NoReturn:
    if ON_CI:
        pytest.fail(f"{reason}; CI must have it (.ci/packages)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own. No later test gets a module that was imported from it by the same name."""
    before = set(sys.modules)
    yield tmp_path
    inside = f"{tmp_path}{os.sep}"
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(inside):
            del sys.modules[name]


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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL server of this session's own."""
    yield from _own_server()


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A PostgreSQL server that a file's tests may stop."""
    yield from _own_server()


def _own_server() -> Iterator[Cluster]:
    # Not above: who asks for no server needs no driver.
    from tests.postgres import cluster, programs

    if programs() is None:
        _absent("PostgreSQL's initdb is not installed")
    # A database for most tests: the server would start a process each second to look for dead rows in those of before.
    with cluster(autovacuum_naptime="1h") as own:
        yield own


@pytest.fixture
def database(postgres: Cluster) -> str:
    """The URL of a database that is new and empty."""
    return postgres.database()


@pytest.fixture(scope="session")
def with_tables(postgres: Cluster) -> str:
    """The name of a database in which each dispatcher has its tables, as they have after the first worker ever.

    DBOS takes two seconds for them, in half of which it does not know of its queue yet.
    """
    from orchestrator.engines.dbos import DbosDispatcher
    from orchestrator.engines.procrastinate import ProcrastinateDispatcher

    async def nothing(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        raise AssertionError(f"nothing was submitted, and {run_id}:{slice} is driven")

    async def made(database: str) -> None:
        for one in (DbosDispatcher(database), ProcrastinateDispatcher(database)):
            await one.start(nothing, "first", 1)
            await one.stop()

    database = postgres.database()
    asyncio.run(made(database))
    return database.rpartition("/")[2]


# ---- chance and size ----


@pytest.fixture
def seed() -> int:
    """A fresh seed, or ORCHESTRATOR_SEED; pytest shows the line when the test fails."""
    value = int(of_user("ORCHESTRATOR_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ORCHESTRATOR_SEED={value}")  # noqa: T201  captured, so shown where it is wanted
    return value


@pytest.fixture(scope="session")
def campaign() -> Callable[[int, int], int]:
    """`campaign(200, 10_000)`: how many rounds, for `make campaign` (and canaries) and for `make soak`."""
    return lambda small, full: full if SOAK else small


def crossed(those: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Every pair for `make soak`; otherwise each of both in at least one pair."""
    if SOAK:
        return list(itertools.product(those, others))
    count = max(len(those), len(others))
    return [(those[place % len(those)], others[place % len(others)]) for place in range(count)]


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
from orchestrator import Limits, Agent, Response, ToolCall, tool
from orchestrator.testing import ScriptedLLM

assert (callbacks.MINE, guards.MINE) == (True, True)

@tool(effect="pure")
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the catalogue."""
    return [query] * limit

llm = ScriptedLLM([
    Response(tool_calls=(ToolCall("1", "search", '{"query": "moon", "limit": 2}'),)),
    Response("Two moons."),
])
agent = Agent(llm, tools=[search], limits=Limits(max_iterations=20), observers=())
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
