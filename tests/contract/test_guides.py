"""Every block of the guides is run: Python executed, commands typed, diagrams and traces compared."""

from __future__ import annotations

import ast
import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import orchestrator
from orchestrator import LLM_LOOP, Limits
from orchestrator.cli import main
from orchestrator.cli.docs import GUIDES
from orchestrator.cli.exit import EXIT_CODES
from orchestrator.cli.pipeline.spec import PipelineSpec
from orchestrator.cli.ralph.agents import AgentsFile
from orchestrator.cli.trust.consent import command_trust, project_settings
from orchestrator.kernel.graph import mermaid
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RalphLimits
from orchestrator.settings import build
from tests.derived import HINT, TRACES, trace
from tests.providers.loopback import Loopback, in_a_thread
from tests.providers.talker import ANSWER, talker

ROOT = Path(__file__).resolve().parents[2]
PATHS = {guide.topic: ROOT / guide.path for guide in GUIDES}


class Block(NamedTuple):
    topic: str
    heading: str
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.topic}: {self.heading}"


def blocks(topic: str) -> list[Block]:
    found, heading = [], ""
    pattern = r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$"
    text = PATHS[topic].read_text(encoding="utf-8")
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        if match[1]:
            heading = match[1]
        else:
            found.append(Block(topic, heading, match[2], match[3]))
    return found


def of_language(language: str, topic: str | None = None) -> list[Block]:
    topics = [topic] if topic else list(PATHS)
    return [block for one in topics for block in blocks(one) if block.language == language]


MODELS = ("start: An agent with a tool", "providers: In code", "providers: On the command line")
"""Blocks that ask a model: run against a server on this machine."""
WORKERS = "workers: Workers on many machines"
"""Its commands are run by test_guide_workers.py."""
SERVICE = "streaming: A web service"
"""Its commands are run by test_guide_service.py."""
EXAMPLES = "streaming: Example applications"
"""Its commands are run by tests/examples."""


PYTHON = [
    one
    for one in of_language("python")
    if one.place not in MODELS and not one.topic.startswith("from-")  # tests/examples/test_coming_from.py
]
SCRIPTS = [one for one in PYTHON if not one.text.startswith(">>>")]

_SCRIPTS_ALONE = """
import gc, os, pathlib, runpy, sys
import orchestrator, prometheus_client, rich.traceback, starlette.applications, structlog

for name in orchestrator.__all__:
    getattr(orchestrator, name)
os.environ.pop("ORCHESTRATOR_ON_TOOL_ERROR", None)  # of the pytest plugin; the reader of a guide has none
gc.freeze()  # or each process would walk through all that is loaded, and copy it
for folder in map(pathlib.Path, sys.argv[1:]):
    if os.fork() == 0:
        os.chdir(folder)
        os.dup2(os.open("errors", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
        sys.path[0], sys.argv = str(folder), ["block.py"]
        runpy.run_path("block.py", run_name="__main__")
        break
    _, status = os.wait()
    (folder / "code").write_text(str(os.waitstatus_to_exitcode(status)))
"""
"""Runs the block.py of each folder in a process of its own, but imports the library once for all of them."""


@pytest.fixture(scope="module")
def finished_scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[Block, tuple[int, str]]:
    """The exit code and the standard error of each script."""
    folders = {block: tmp_path_factory.mktemp("block") for block in SCRIPTS}
    for block, folder in folders.items():
        (folder / "block.py").write_text(block.text)
    command = [sys.executable, "-W", "error", "-c", _SCRIPTS_ALONE]
    done = _run([*command, *map(str, folders.values())], timeout=300)
    assert done.returncode == 0, done.stderr
    return {
        block: (int((folder / "code").read_text()), (folder / "errors").read_text())
        for block, folder in folders.items()
    }


@pytest.mark.check
@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: block.place)
def test_every_python_block_runs(block: Block, finished_scripts: dict[Block, tuple[int, str]]) -> None:
    code, errors = finished_scripts[block]
    assert code == 0, errors


@pytest.mark.parametrize(
    "block", [one for one in PYTHON if one not in SCRIPTS], ids=lambda block: block.place
)
def test_every_python_session_has_the_results_that_it_shows(block: Block) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, block.place, None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_argument_of_a_block_exists_also_in_functions_that_it_does_not_call() -> None:
    unknown = [
        f"{block.place}: {name}({keyword.arg}=…)"
        for block in of_language("python")
        if not block.topic.startswith("from-") and not block.text.startswith(">>>")
        for call in ast.walk(ast.parse(block.text))
        if isinstance(call, ast.Call) and (name := getattr(call.func, "id", "")) in orchestrator.__all__
        for keyword in call.keywords
        if keyword.arg not in (None, *inspect.signature(getattr(orchestrator, name)).parameters)
        and name != "tool"  # its options are those of ToolSpec
    ]
    assert unknown == []


def test_the_durable_quickstart_can_be_run_again_and_then_pays_nothing(tmp_path: Path) -> None:
    [block] = [one for one in SCRIPTS if one.place == "start: A durable run with an approval"]
    (tmp_path / "durable.py").write_text(block.text)
    first, second = (_run([sys.executable, "durable.py"], tmp_path) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    asked, said = first.stdout.splitlines()
    assert asked.startswith("pay? ")
    assert second.stdout.splitlines() == [said] == ["I called pay."]


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A server on this machine that speaks the protocols of both vendors, and the keys to it."""
    (tmp_path / "weather.py").write_text(_WEATHER)
    (tmp_path / "weather_server.py").write_text(_WEATHER_SERVER)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with in_a_thread(talker) as server:
        for vendor, path in (("OPENAI", "/v1"), ("ANTHROPIC", "")):
            monkeypatch.setenv(f"{vendor}_API_KEY", "sk-readme")
            monkeypatch.setenv(f"{vendor}_BASE_URL", f"{server.url}{path}")
        yield server


@pytest.mark.campaign
def test_the_commands_of_ones_own_model_work_against_a_server(provider: Loopback, tmp_path: Path) -> None:
    [block] = [one for one in of_language("sh") if one.place == "providers: On the command line"]
    commands = block.text.replace("http://127.0.0.1:8080", provider.url).splitlines()
    for command in commands:
        done = _run(["bash", "-c", f"{sys.executable} -m {command}"], cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert ANSWER in done.stdout, command
    paths = {(one.path, bool(one.json.get("stream"))) for one in provider.asked}
    chat, responses, messages = "/v1/chat/completions", "/v1/responses", "/v1/messages"
    assert paths == {(chat, False), (chat, True), (responses, False), (messages, False)}


@pytest.mark.campaign
def test_the_first_quickstart_works_against_a_server(provider: Loopback, tmp_path: Path) -> None:
    code, command = [one for one in blocks("start") if one.place == MODELS[0]]
    (tmp_path / "block.py").write_text(code.text)
    done = _run([sys.executable, "-W", "error", "block.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"completed: {ANSWER}\n"
    done = _run(["bash", "-c", f"{sys.executable} -m {command.text}"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout


@pytest.mark.campaign
def test_the_code_of_ones_own_model_works_against_a_server(provider: Loopback, tmp_path: Path) -> None:
    [block] = [one for one in of_language("python") if one.place == "providers: In code"]
    (tmp_path / "block.py").write_text(block.text)
    done = _run([sys.executable, "-W", "error", "block.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [ANSWER, "completed, 40 tokens in"]
    assert [len(one.json["tools"]) for one in provider.asked] == [2, 2]


@pytest.mark.canary("start: Install", "agents: An agent", "approval: A session")
@pytest.mark.campaign
@pytest.mark.parametrize(
    "block",
    [one for one in of_language("sh") if one.place not in {*MODELS, WORKERS, SERVICE, EXAMPLES}],
    ids=lambda block: block.place,
)
def test_every_command_exists_and_does_what_the_guide_says(block: Block, tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(_HOST_MODULE)
    for cases in of_language("yaml", block.topic):
        (tmp_path / "support.yaml").write_text(cases.text)
    for line in block.text.splitlines():
        command = line.split(" #")[0].strip()
        if command.startswith("make "):
            done = _run(["make", "--dry-run", command.split()[1]], cwd=ROOT)
        else:
            done = _run(["bash", "-c", f"{sys.executable} -m {command}"], cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_diagram_is_the_one_the_command_prints() -> None:
    [block] = of_language("mermaid", "start")

    assert block.text == mermaid(LLM_LOOP), HINT


def test_the_settings_file_is_one_that_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = of_language("toml", "loop")
    (tmp_path / "orchestrator.toml").write_text(block.text)
    monkeypatch.chdir(tmp_path)

    with command_trust(allowed=True):
        settings = project_settings()

    assert settings.model == tomllib.loads(block.text)["model"]
    assert build(Limits, settings.limits, "limits") == Limits(max_iterations=20, wrap_up_turns=1)


def test_the_spec_of_a_pipeline_is_one_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = of_language("toml", "pipeline")
    (tmp_path / "spec.toml").write_text(block.text)
    (tmp_path / "my_module.py").write_text(_HOST_MODULE)
    (tmp_path / "my_stages.py").write_text("def validate(request):\n    return []\n")
    monkeypatch.chdir(tmp_path)

    with command_trust(allowed=True):
        spec = PipelineSpec.read(tmp_path / "spec.toml")

    assert spec.ports().keys() == {"planner", "validator", "implementer", "judge"}
    assert (spec.pipeline_limits().max_iterations, spec.pipeline_limits().token_budget) == (3, 75_000)


def test_the_agents_of_a_ralph_loop_are_ones_that_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = of_language("toml", "ralph")
    (tmp_path / "ralph.toml").write_text(block.text)
    (tmp_path / "my_module.py").write_text(_HOST_MODULE)
    roles = ("ask", "review", "check")
    (tmp_path / "my_agents.py").write_text(
        "".join(f"def {one}(request):\n    return {{}}\n" for one in roles)
    )
    monkeypatch.chdir(tmp_path)

    with command_trust(allowed=True):
        agents = AgentsFile.read(tmp_path / "ralph.toml")

    assert agents.ports().keys() == set(Role)
    assert agents.ralph_limits() == RalphLimits()
    text = PATHS["ralph"].read_text()
    assert [name for name in RalphLimits.__dataclass_fields__ if name not in text] == []


def test_the_plan_file_is_one_that_can_be_approved_and_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = of_language("toml", "approval")
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "plan.toml").write_text(block.text)
    monkeypatch.chdir(project)
    for command in ("submit 'Where are the prices?' --plan ../plan.toml", "diff", "approve --execute"):
        with pytest.raises(SystemExit) as end:
            main(["approval", *shlex.split(command)])
        assert end.value.code == 0, f"{command}: {capsys.readouterr().err}"
    assert (project / "docs/prices.md").read_text() == "Prices are in prices.csv.\n"


def test_the_traces_are_those_of_real_runs() -> None:
    clean, stalled = (trace(said) for said in TRACES.values())

    assert [block.text for block in of_language("text", "loop")] == [clean, stalled], HINT


def test_the_table_of_outcomes_is_complete() -> None:
    rows = {
        cells[0].strip("`"): (int(cells[1]), cells[2])
        for line in PATHS["loop"].read_text().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
        and cells[0].strip("`") in set(Outcome)
    }

    assert {name: code for name, (code, _) in rows.items()} == {
        str(name): code for name, code in EXIT_CODES.items()
    }
    for outcome, reasons in REASONS.items():
        if outcome is not Outcome.PARTIAL:
            assert set(rows[outcome][1].split(", ")) == reasons


def test_the_table_of_states_has_the_time_limit_of_each() -> None:
    text = PATHS["loop"].read_text(encoding="utf-8")
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \|.* \| ([\d,]*)(?: s )?\|$", text.partition("## Two traces")[0], re.MULTILINE
        )
    )
    limits = {state.value: LLM_LOOP.dwell_of(state) for state in LLM_LOOP.states}
    assert rows == {state: f"{limit[0]:,.0f}" if limit else "" for state, limit in limits.items()}


def test_the_table_of_limits_names_every_limit_with_its_default() -> None:
    text = PATHS["loop"].read_text()
    missing = [name for name in Limits.__dataclass_fields__ if f"`{name}" not in text]

    assert missing == []


_HOST_MODULE = '''
from orchestrator import Agent, ToolCall, Usage, Response, tool
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.testing import ScriptedLLM

my_llm = ScriptedLLM([[ToolCall("1", "search", '{"query": "incident"}')], "Two incidents are open."])

@tool(effect="pure")
async def search(query: str) -> list[str]:
    """Search the catalogue."""
    return [query]

@tool(effect="irreversible", approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"

def answered(request):
    said, usage = request.messages[-1], Usage(90, 10, cost=0.001)
    if said.role == "tool":
        return Response(f"{said.content}: no incident is open.", usage=usage)
    name, arguments = ("refund", '{"order": 7}') if "Refund" in said.text else ("search", '{"query": "incident"}')
    return Response(None, (ToolCall("1", name, arguments),), usage=usage)

def support(journal):
    return Agent(FunctionLLM(answered), name="support", tools=[search, refund], journal=journal)

def polite(run):
    return "sorry" not in str(run.output)
'''

_WEATHER = '''
from orchestrator import tool

@tool(effect="pure")
def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"
'''

_WEATHER_SERVER = '''
from mcp.server import MCPServer

server = MCPServer("weather")

@server.tool()
def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"

server.run()
'''


def _run(
    command: list[str], cwd: Path | None = None, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "callbacks", "guards"))
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
