"""Graphs, machines, agents and results in a notebook: executed by nbclient in a kernel of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import LLM_LOOP, Agent, StateMachine, tool
from orchestrator.cli.shipped import HOOKS
from orchestrator.kernel.graph import table
from orchestrator.kernel.machine import Machine
from orchestrator.providers.scripted import call
from orchestrator.runtime.service.runtime import in_notebook
from orchestrator.testing import ScriptedLLM
from tests.drawing.test_svg import root_of

EXECUTE = """
import json, sys
import nbclient, nbformat
from nbformat.v4 import new_code_cell, new_notebook
from traitlets.config import Config

cells = [new_code_cell(one) for one in json.loads(sys.argv[1])]
sockets = Config({"KernelManager": {"transport": "ipc"}})  # no ports that somebody else could take meanwhile
notebook = new_notebook(cells=cells)
done = nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", config=sockets).execute()
print(json.dumps([cell.outputs for cell in done.cells]))
"""

CELLS = [
    "from orchestrator import LLM_LOOP, Agent, StateMachine\nLLM_LOOP",
    'StateMachine("door").state("open").state("shut").terminal("shut").transition("open", str, "shut")',
    "from orchestrator.testing import ScriptedLLM",
    'agent = Agent(ScriptedLLM(["Two <b>moons</b>.\\nOr three?"]), name="astronomer")\nagent',
    'await agent.run("How many moons?")',
]


def executed(cells: list[str], folder: Path) -> list[list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXECUTE, json.dumps(cells)],
        cwd=folder,  # the kernel's sockets are made in it
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def test_a_notebook_shows_drawings_and_no_line_of_json(tmp_path: Path) -> None:
    graph, machine, _, agent, result = executed(CELLS, tmp_path)
    assert [one["output_type"] for cell in (graph, machine, agent, result) for one in cell] == [
        "execute_result"
    ] * 4
    assert root_of(graph[0]["data"]["image/svg+xml"]).get("class") == "fsm-drawing fsm-graph"
    assert graph[0]["data"]["text/plain"] == table(LLM_LOOP)
    assert "door: 2 states" in machine[0]["data"]["image/svg+xml"]
    assert "agent: astronomer" in agent[0]["data"]["text/plain"]
    assert "<svg" in agent[0]["data"]["text/html"]
    data = result[0]["data"]
    assert "output: Two <b>moons</b>.\nOr three?" in data["text/plain"]
    assert "Two &lt;b&gt;moons&lt;/b&gt;.\nOr three?" in data["text/html"]
    assert 'class="state end current completed"' in data["text/html"]


def test_outside_of_a_notebook_a_graph_has_its_table_and_the_default_observers_are_complete() -> None:
    assert not in_notebook()
    assert LLM_LOOP._repr_mimebundle_(include=None, exclude=None)["text/plain"] == table(LLM_LOOP)
    assert Machine(LLM_LOOP, HOOKS["llm_loop"]())._repr_mimebundle_()["text/plain"] == table(LLM_LOOP)
    own = Agent(ScriptedLLM([]))._service.runtime.observers
    assert [type(one).__name__ for one in own] == [
        "TransitionLog",
        "Metrics",
    ]


def test_a_machine_that_is_not_complete_is_shown_as_text() -> None:
    assert StateMachine("door")._repr_mimebundle_() == {
        "text/plain": "<StateMachine 'door': 0 states, 0 transitions>"
    }


async def test_the_result_of_a_run_is_shown_with_its_path() -> None:
    @tool(effect="pure")
    async def look(x: int) -> str:
        """Look."""
        return "x" * x

    agent = Agent(ScriptedLLM([call("look", x=3), "done"]), tools=[look], observers=())
    shown = (await agent.run("go"))._repr_mimebundle_()
    assert "outcome: completed\noutput: done\nusage: " in shown["text/plain"]
    assert 'llm_response <tspan class="times">×2</tspan>' in shown["text/html"]
    assert "tools: look" in agent._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize("value", [{"moons": 2}, ["a"], "", None, "x" * 10_000])
async def test_an_output_of_any_type_is_shown(value: Any) -> None:
    agent = Agent(ScriptedLLM([json.dumps(value)]), observers=())
    shown = (await agent.run("go"))._repr_mimebundle_()
    assert len(shown["text/plain"]) < 5_000
