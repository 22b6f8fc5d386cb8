from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.drawing.svg import layout, svg
from orchestrator.kernel.graph import FORMATS
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.cli.recorded import JOURNAL, Call, Tape, record
from tests.drawing.test_svg import box

Cli = Callable[..., Any]

OWN = """
from enum import StrEnum
from orchestrator import Edge, Graph

class State(StrEnum):
    HERE = "here"
    THERE = "there"
    LOST = "lost"

class Event(StrEnum):
    GO = "go"

graph = Graph("mine", State, Event, State.HERE, (Edge(Event.GO, (State.HERE,), State.THERE),),
              terminal={State.THERE}, strict=%s)
"""


@pytest.mark.parametrize("form", FORMATS)
def test_a_shipped_graph_is_drawn_in_each_format(cli: Cli, form: str) -> None:
    for name in ((), ("llm_loop",)):
        done = cli("graph", *name, "--format", form)
        assert (done.out, done.code) == (FORMATS[form](LLM_LOOP, None), 0)


def test_a_shipped_graph_is_drawn_as_svg(cli: Cli) -> None:
    assert cli("graph", "approval", "--format", "svg") == (0, svg(APPROVAL), "")


def test_a_graph_is_written_to_a_file_in_the_format_of_its_ending(cli: Cli, folder: Path) -> None:
    assert cli("graph", "approval", "--output", "a.svg") == (0, "a.svg: graph approval\n", "")
    assert Path("a.svg").read_text() == svg(APPROVAL)
    assert cli("graph", "approval", "-o", "a.png") == (0, "a.png: graph approval\n", "")
    content = Path("a.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    drawn = layout(APPROVAL)
    assert abs(width - 2 * drawn.width) <= 2
    assert abs(height - 2 * drawn.height) <= 2
    assert cli("graph", "-o", "a.mmd") == (0, "a.mmd: graph llm_loop as mermaid\n", "")
    assert Path("a.mmd").read_text().startswith("stateDiagram-v2")


def test_a_png_needs_its_extra_and_one_sentence_says_which(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, one_sentence: Callable[[Any], str]
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert "pip install 'fsm-orchestrator[png]'" in one_sentence(cli("graph", "-o", "a.png"))
    assert not Path("a.png").exists()


def runs() -> None:
    record(
        Tape("first-run").begin().calls(Call("look")).completes(),
        Tape("other-run").begin().calls(Call("look"), seconds=30.0).calls(Call("look")),
        Tape("of-another-graph", graph="pipeline").begin(),
    )


@pytest.mark.parametrize("heat", ["time", "visits"])
def test_the_states_of_all_runs_of_a_journal_are_darker_by_time_or_visits(
    cli: Cli, folder: Path, heat: str
) -> None:
    runs()
    done = cli("graph", "--format", "svg", "--heat", heat, "--journal", JOURNAL)
    assert (
        "heat-3" in box(done.out, "await_llm") if heat == "time" else "heat-2" in box(done.out, "await_llm")
    )
    assert 'llm_response <tspan class="times">×4</tspan>' in done.out
    assert not any(one.startswith("current") for one in box(done.out, "finalize"))


def test_the_path_and_the_state_of_one_run_are_drawn(cli: Cli, folder: Path) -> None:
    runs()
    done = cli("graph", "--format", "svg", "--run", "first", "--journal", JOURNAL)
    assert {"current", "completed"} <= box(done.out, "finalize")
    assert 'llm_response <tspan class="times">×2</tspan>' in done.out


WRONG = [
    (("--format", "gif"), "unknown format 'gif'; known: mermaid, dot, table, json, svg, png"),
    (("--format", "png"), "a PNG cannot be printed; name its file with --output FILE.png"),
    (("--format", "svg", "-o", "a.png"), "a.png has the ending '.png'; a drawing is written to a file *.svg"),
    (("-o", "no/a.svg"), "no/a.svg is in the folder no, which does not exist; create it first"),
    (("--heat", "time"), "--heat and --run are drawn; use them with --format svg or png"),
    (("--format", "svg", "--heat", "time"), "no journal"),
    (("--format", "svg", "--run", "of-another", "--journal", JOURNAL), "belongs to graph 'pipeline'"),
    (("ralph", "--format", "svg", "--heat", "time", "--journal", JOURNAL), "has no run of graph 'ralph'"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_wrong_options_of_a_drawing_are_one_sentence(
    cli: Cli, folder: Path, options: tuple[str, ...], said: str, one_sentence: Callable[[Any], str]
) -> None:
    if JOURNAL in options:
        runs()
    assert said in one_sentence(cli("graph", *options))


def test_the_format_is_mermaid_unless_said(cli: Cli) -> None:
    assert cli("graph").out.startswith("stateDiagram-v2\n")


def test_shipped_graphs_have_no_problem_and_neither_have_their_hooks(cli: Cli) -> None:
    graphs = ("llm_loop", "team", "call", "pipeline", "approval", "ralph", "code_mode", "tools_mode")
    assert cli("lint") == (0, "".join(f"{name}: no problems\n" for name in graphs), "")
    done = cli("lint", "llm_loop", "--json")
    assert (json.loads(done.out), done.code) == ({"graphs": [{"graph": "llm_loop", "problems": []}]}, 0)


def test_a_graph_of_ones_own_can_be_drawn_and_checked(cli: Cli, folder: Path) -> None:
    source = (OWN % False).replace('    LOST = "lost"\n', "")
    (folder / "machine_a.py").write_text(source)
    assert "here --> there: go" in cli("graph", "machine_a:graph").out
    assert cli("lint", "machine_a:graph") == (0, "machine_a:graph: no problems\n", "")


TYPED = """
from orchestrator import StateMachine

class Go:
    pass

machine = StateMachine("typed").state("here").state("there").terminal("there").transition("here", Go, "there")
"""


def test_a_typed_machine_of_ones_own_can_be_drawn_and_checked(cli: Cli, folder: Path) -> None:
    (folder / "typed_a.py").write_text(TYPED)
    assert "here --> there: Go" in cli("graph", "typed_a:machine").out
    assert cli("lint", "typed_a:machine") == (0, "typed_a:machine: no problems\n", "")


@pytest.mark.parametrize("strict", [False, True])
def test_problems_are_listed_and_the_exit_code_is_1(cli: Cli, folder: Path, strict: bool) -> None:
    (folder / f"machine_{strict}.py").write_text(OWN % strict)  # unreachable: it cannot even be built
    name = f"machine_{strict}:graph"
    done = cli("lint", name)
    assert done == (1, f"{name}: 1 problem\n  unreachable: no path leads from 'here' to 'lost'\n", "")
    (problem,) = json.loads(cli("lint", name, "--json").out)["graphs"][0]["problems"]
    assert (problem["rule"], problem["state"]) == ("unreachable", "lost")


def test_a_problem_of_the_hooks_is_a_problem_of_the_graph(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator_callbacks.llm_loop import enter

    monkeypatch.delattr(enter, "enter_await_llm")
    done = cli("lint")
    assert (done.code, done.out.splitlines()[0]) == (1, "llm_loop: 1 problem")
    assert "missing_enter: no enter_await_llm hook" in done.out


def test_a_graph_that_cannot_be_built_is_one_sentence_to_all_others(
    cli: Cli, one_sentence: Callable[..., str], folder: Path
) -> None:
    (folder / "machine_b.py").write_text(OWN % True)
    assert one_sentence(cli("graph", "machine_b:graph")) == (
        "orchestrator: mine: unreachable: no path leads from 'here' to 'lost'"
    )
