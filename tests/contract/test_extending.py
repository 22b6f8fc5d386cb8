"""Six tasks of a contributor, done in a copy of this repository in the files that CONTRIBUTING.md lists, no others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200)]


class Edit(NamedTuple):
    """What is written behind a place of a file."""

    file: str
    after: str
    new: str


MODEL = "orchestrator/machines/llm_loop/model.py"
GRAPH = "orchestrator/machines/llm_loop/graph.py"
HOOKS = "callbacks/orchestrator_callbacks/llm_loop/enter.py"
HOOK_TEST = "tests/callbacks/test_reflect.py"

STATE = [
    Edit(MODEL, '    UPDATE_BUDGETS = "update_budgets"\n', '    REFLECT = "reflect"\n'),
    Edit(
        MODEL,
        '    TOOLS_EXECUTED = "tools_executed"\n',
        '    REFLECTION_NEEDED = "reflection_needed"\n    REFLECTED = "reflected"\n',
    ),
    Edit(GRAPH, "S.PROCESS_TOOLS, S.UPDATE_BUDGETS, ", "S.REFLECT, "),
    Edit(GRAPH, "        S.PROCESS_TOOLS: (1800.0, E.FAILURE),\n", "        S.REFLECT: (60.0, E.FAILURE),\n"),
    Edit(
        GRAPH,
        "        Edge(E.TOOLS_EXECUTED,      (S.PROCESS_TOOLS,),      S.UPDATE_BUDGETS),\n",
        "        Edge(E.REFLECTION_NEEDED,   (S.PROCESS_TOOLS,),      S.REFLECT),\n"
        "        Edge(E.REFLECTED,           (S.REFLECT,),            S.UPDATE_BUDGETS),\n",
    ),
    Edit(
        HOOKS,
        "",
        """

async def enter_reflect(run: LoopRun) -> LoopEvent:
    \"\"\"Ask the model to look at its results once more.\"\"\"
    run.ctx.progress.warning = "Look at the results once more."
    return LoopEvent.REFLECTED
""",
    ),
    Edit(
        HOOK_TEST,
        "",
        """
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext, LoopEvent
from orchestrator_callbacks.llm_loop.enter import enter_reflect


async def test_a_reflection_warns_the_model_and_leads_to_the_budgets():
    ctx = LoopContext([], Limits(), 0)
    assert await enter_reflect(Run(Machine(LLM_LOOP, Hooks({})), "r", ctx, None)) is LoopEvent.REFLECTED
    assert "once more" in ctx.progress.warning
""",
    ),
]
"""Model, table, hook and its test."""

GUARD = [
    Edit(
        "guards/orchestrator_guards/budget.py",
        "",
        """

def reflections(attempts: int, limit: int) -> Verdict:
    \"\"\"May the results be looked at once more? `attempts`: reflections of the run so far.\"\"\"
    return Verdict(limit == 0 or attempts < limit, "reflections", attempts, limit)
""",
    ),
    Edit(
        "tests/guards/test_budget.py",
        '    "refinements": guards.refinements,\n',
        '    "reflections": guards.reflections,\n',
    ),
    Edit(GRAPH, "    progress,\n", "    reflections,\n"),
    Edit(
        GRAPH,
        "    limits, spent = ctx.limits, ctx.spent\n    asked: list[Verdict] = []\n",
        "    asked.append(reflections(0, 1))\n",
    ),
]
"""Function, test and one use."""

METRIC_TEST = "tests/telemetry/test_attempts_failed.py"
METRIC = [
    Edit(
        "orchestrator/telemetry/catalogue.py",
        '        "Operations that failed after their last try.",\n'
        "        OperationAttempt,\n        operation=OPERATIONS,\n    ),\n",
        """    counter(
        "attempts_failed_total",
        "machine agent operation",
        "Tries of operations that failed, also those that were tried again.",
        OperationAttempt,
        operation=OPERATIONS,
    ),
""",
    ),
    Edit(
        "orchestrator/telemetry/metrics.py",
        "        operation = closed(fact.operation, OPERATIONS, OTHER)\n",
        """        if fact.outcome != "ok":
            self._count["attempts_failed_total", *run, operation].inc()
""",
    ),
    Edit(
        "tests/dashboards/test_drift.py",
        "UNUSED = {\n",
        '    "attempts_failed_total": "the retries are drawn",\n',
    ),
    Edit(
        METRIC_TEST,
        "",
        """
from prometheus_client import CollectorRegistry

from orchestrator import Agent, RetryPolicy
from orchestrator.errors import LLMError
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import ScriptedLLM


async def test_a_try_that_failed_is_counted():
    registry = CollectorRegistry()
    script = [LLMError("busy", kind="server_error"), "Hello."]
    retry = RetryPolicy(attempts=2, base=0, max_delay=0)
    await Agent(ScriptedLLM(script), name="clerk", retry=retry, observers=[Metrics(registry)]).run("Say hello.")
    labels = {"machine": "llm_loop", "agent": "clerk", "operation": "llm"}
    assert registry.get_sample_value("orchestrator_attempts_failed_total", labels) == 1
""",
    ),
]
"""Row of the catalogue, handler, reason why nothing draws it, test."""

PROVIDER_TEST = "tests/providers/test_acme.py"
PROVIDER = [
    Edit(
        "orchestrator/providers/acme.py",
        "",
        """\"\"\"Models of Acme: they say what they are told.\"\"\"

from __future__ import annotations

from orchestrator.llm.message import Request, Response, Usage


class Acme:
    \"\"\"A model of Acme.

    Args:
        model: Its name at the vendor.
    \"\"\"

    def __init__(self, model: str) -> None:
        self.model = model

    async def complete(self, request: Request) -> Response:
        \"\"\"Return the last message as the answer.\"\"\"
        return Response(request.messages[-1].text, finish_reason="stop", usage=Usage(3, 2), model=self.model)
""",
    ),
    Edit(
        "orchestrator/providers/__init__.py",
        "if TYPE_CHECKING:\n",
        "    from orchestrator.providers.acme import Acme as Acme\n",
    ),
    Edit("orchestrator/providers/__init__.py", "_HOME = {\n", '    "Acme": "providers.acme",\n'),
    Edit("orchestrator/providers/named_model.py", '    "known: ', "acme:NAME, "),
    Edit(
        "orchestrator/providers/named_model.py",
        "    return ModelChoice(PydanticAIModel(rest, **how))\n",
        """

def _acme(rest: str, form: ModelForm, _: Options) -> ModelChoice:
    from orchestrator.providers.acme import Acme

    return ModelChoice(Acme(rest))
""",
    ),
    Edit(
        "orchestrator/providers/named_model.py", '    "pydantic-ai": _pydantic_ai,\n', '    "acme": _acme,\n'
    ),
    Edit("pyproject.toml", "[project.optional-dependencies]\n", 'acme = ["httpx2>=2.12"]\n'),
    Edit("tests/contract/test_public_api.py", "MODELS = {", '"Acme", '),
    Edit(
        PROVIDER_TEST,
        "",
        """
from orchestrator import Agent
from orchestrator.providers import Acme


async def test_acme_says_what_it_is_told():
    result = await Agent(Acme("parrot"), observers=()).run("Hello.")
    assert (result.output, result.usage.output_tokens) == ("Hello.", 2)
""",
    ),
]
"""Class, public name, prefix of --model, extra, test."""

STORE_TEST = "tests/journal/test_folder.py"
STORE = [
    Edit(
        "orchestrator/journal/folder.py",
        "",
        """\"\"\"A journal in a folder of its own.\"\"\"

from __future__ import annotations

from pathlib import Path

from orchestrator.journal.sqlite import SqliteJournal


class FolderJournal(SqliteJournal):
    \"\"\"A journal in a folder.

    Args:
        folder: Where it is kept; made if it is missing.
    \"\"\"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder / "journal.db")
""",
    ),
    Edit(
        "orchestrator/journal/opening.py",
        "from orchestrator.journal.address import Address, JournalAddress\n",
        "from orchestrator.journal.folder import FolderJournal\n",
    ),
    Edit(
        "orchestrator/journal/opening.py",
        "        return around.PostgresJournal(address, only_reads=only_reads, create=create, opening=seconds)\n",
        """    if address.suffix == ".runs":
        return FolderJournal(address)
""",
    ),
    Edit(
        STORE_TEST,
        "",
        """
from pathlib import Path

from orchestrator.journal.folder import FolderJournal
from orchestrator.journal.opening import journal_at
from orchestrator.testing.journal_contract import JournalContract


class TestFolderJournal(JournalContract):
    def store(self, folder: Path) -> FolderJournal:
        made = journal_at(folder / "kept.runs")
        assert isinstance(made, FolderJournal)
        return made
""",
    ),
]
"""Store, address, and the contract that every store keeps."""

COMMAND = [
    Edit(
        "orchestrator/cli/greet.py",
        "",
        """\"\"\"`orchestrator greet`: greet somebody.\"\"\"

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.output import say


def greet(name: Annotated[str, typer.Argument(help="Who is greeted.")]) -> None:
    \"\"\"Greet somebody.\"\"\"
    say(f"Good morning, {name}.")
""",
    ),
    Edit(
        "orchestrator/cli/app.py",
        "COMMANDS = {\n",
        '    "greet": CommandEntry("greet:greet", "Greet somebody."),\n',
    ),
]
"""Body with its options, and a row of the table of commands."""

TASKS = {
    "a state of the loop": STATE,
    "a budget guard": GUARD,
    "a metric": METRIC,
    "a provider": PROVIDER,
    "a journal store": STORE,
    "a command": COMMAND,
}
MOST_FILES = 4
"""That a task changes, outside of its tests."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of this repository, committed, so that what `make accept` changes can be listed."""
    into = tmp_path / "copy"
    # With the bytecode, which is valid for a copy with the same times, but not what is just being written of it.
    ignored = shutil.ignore_patterns(".*", "*.pyc.*", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, into, ignore=ignored)
    shutil.copy(ROOT / ".gitignore", into)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "as it is")):
        subprocess.run([*git, *command], cwd=into, check=True)
    return into


def make(copy: Path, edits: list[Edit]) -> None:
    for edit in edits:
        file = copy / edit.file
        text = file.read_text() if file.exists() else ""
        assert not edit.after or text.count(edit.after) == 1, edit
        at = text.index(edit.after) + len(edit.after) if edit.after else len(text)
        file.write_text(text[:at] + edit.new + text[at:])


def python(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(copy / folder) for folder in (".", "callbacks", "guards"))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(copy: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    """Run tests as `make test` does, with as many examples; without CI, which has recorded conversations beside it."""
    given = ("-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not campaign")
    return python(copy, "-m", "pytest", *given, *paths, CI="", TEST_TIER="")


def accept(copy: Path) -> set[str]:
    home = copy.parent / "home"
    home.mkdir()
    done = python(copy, "-m", "tests.accept", HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert not list(home.iterdir()), "a trace in the user's home"
    assert "nothing changed" not in done.stdout
    listed = subprocess.run(
        ["git", "diff", "--name-only"], cwd=copy, check=True, capture_output=True, text=True
    )
    changed = set(listed.stdout.split())
    assert all(
        path in done.stdout for path in changed - {edit.file for edits in TASKS.values() for edit in edits}
    )
    return changed


def test_a_state_a_guard_and_a_metric_take_their_files_and_make_accept(copy: Path) -> None:
    """Three tasks and one `make accept`, which takes as long for one as for all of them."""
    make(copy, STATE)
    refused = run_tests(copy, "tests/contract/test_graphs.py")
    assert refused.returncode == pytest.ExitCode.TESTS_FAILED
    assert "run `make accept`" in refused.stdout
    make(copy, GUARD)
    refused = run_tests(copy, "tests/guards")
    assert refused.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    make(copy, METRIC)

    assert accept(copy) - {edit.file for edit in STATE + GUARD + METRIC} == {
        "README.md",
        "dashboards/grafana/run_flow.json",
        "dashboards/metrics.md",
        "dashboards/prometheus/rules.yml",
        "guards/README.md",
        "guards/orchestrator_guards/__init__.py",
        "guards/orchestrator_guards/verdict.py",
        "tests/data/golden/graph/llm_loop.txt",
        "tests/telemetry/catalogue.txt",
        "tests/telemetry/metric_table.md",
    }
    done = run_tests(
        copy,
        *("tests/contract/test_graphs.py", "tests/machines/test_llm_loop_edges.py"),
        "tests/contract/test_guides.py::test_the_diagram_is_the_one_the_command_prints",
        "tests/contract/test_guides.py::test_the_traces_are_those_of_real_runs",
        *("tests/testing/test_paths.py", "tests/testing/test_coverage.py", "tests/testing/test_kit.py"),
        *("tests/kernel/test_diagram.py", "tests/kernel/test_graph.py", "tests/kernel/test_lint.py"),
        *("tests/dashboards/test_pack.py", "tests/dashboards/test_drift.py", HOOK_TEST),
        *("tests/guards/test_budget.py", "tests/guards/test_verdict.py"),
        *("tests/telemetry/test_labels.py", METRIC_TEST),
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_contributing_lists_the_files_of_each_task() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Six tasks")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| a ")]
    listed = {task: set(re.findall(r"`([^`]+)`", files)) for task, files, *_ in rows}
    written = {
        task: {edit.file for edit in edits if not edit.file.startswith("tests/")}
        for task, edits in TASKS.items()
    }
    assert listed == {task: {_general(file) for file in files} for task, files in written.items()}
    assert [task for task, files in written.items() if len(files) > MOST_FILES] == []


def _general(file: str) -> str:
    """Return the name of a file as CONTRIBUTING.md has it: the files that a task makes are named for what they are."""
    made = {"providers/acme.py": "providers/<vendor>.py", "journal/folder.py": "journal/<store>.py"}
    made |= {
        "cli/greet.py": "cli/<command>.py",
        "orchestrator_guards/budget.py": "orchestrator_guards/<topic>.py",
    }
    for name, general in made.items():
        file = file.replace(name, general)
    return file


def test_a_provider_takes_a_class_a_public_name_a_prefix_and_its_test(copy: Path) -> None:
    make(copy, PROVIDER)
    done = run_tests(copy, "tests/contract/test_public_api.py", "tests/contract/test_core.py", PROVIDER_TEST)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    said = python(copy, "-m", "orchestrator", "run", "--model", "acme:parrot", "--json", "Good morning.")
    assert json.loads(said.stdout)["output"] == "Good morning.", said


def test_a_store_takes_a_class_an_address_and_the_contract_of_stores(copy: Path) -> None:
    make(copy, STORE)
    done = run_tests(copy, STORE_TEST, "tests/contract/test_layers.py", "tests/contract/test_core.py")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    (copy / "parrot.py").write_text("def model(request):\n    return request.messages[-1].text\n")
    run = ("-m", "orchestrator", "run", "--model", "python:parrot:model", "Good morning.")
    done = python(copy, *run, ORCHESTRATOR_JOURNAL="mine.runs")
    assert (copy / "mine.runs/journal.db").exists(), done


def test_a_command_takes_a_body_and_a_row(copy: Path) -> None:
    make(copy, COMMAND)
    assert python(copy, "-m", "orchestrator", "greet", "Ann").stdout == "Good morning, Ann.\n"
    assert "Greet somebody." in python(copy, "-m", "orchestrator", "--help").stdout
    done = run_tests(copy, "tests/contract/test_layers.py", "tests/contract/test_core.py")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
