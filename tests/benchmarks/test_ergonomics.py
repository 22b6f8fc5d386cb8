"""The same agent with four libraries: ours survives each kill, and the table says what is in the programs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.peers.ergonomics import run, table, trial
from tests.benchmarks.peers.ergonomics.measure import count, count_text
from tests.benchmarks.peers.ergonomics.run import PROGRAMS
from tests.contract.test_guides import of_language
from tests.derived import ERGONOMICS_GUIDE, HINT, PLACES, ROOT


@pytest.mark.campaign
def test_our_program_ends_wherever_it_was_killed_when_it_is_started_again(tmp_path: Path) -> None:
    found = trial.run("ours", Path(sys.executable), tmp_path)
    assert found["killed"] == dict.fromkeys(trial.PLACES, trial.RESUMED)
    assert found == _results()["ours"]


def test_our_program_is_the_shortest_with_the_fewest_concepts_and_nothing_to_store() -> None:
    ours, *peers = (count(PROGRAMS / f"{library.name}.py") for library in run.LIBRARIES)
    assert ours.lines <= min(peer.lines for peer in peers)
    assert ours.concepts <= min(peer.concepts for peer in peers)
    assert ours.storing == 0


def test_the_tables_of_the_page_are_those_of_the_programs() -> None:
    places = [place for place in PLACES if place.file == ERGONOMICS_GUIDE]
    assert len(places) == 3
    text = (ROOT / ERGONOMICS_GUIDE).read_text(encoding="utf-8")
    for place in places:
        assert place.filled(text) == text, HINT


def test_there_is_one_program_for_each_library_and_each_did_the_work() -> None:
    names = {library.name for library in run.LIBRARIES}
    assert {file.stem for file in PROGRAMS.glob("[a-z]*.py")} == names
    assert _results().keys() == names


def test_our_program_has_no_any_no_cast_and_no_ignored_error() -> None:
    text = (PROGRAMS / "ours.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}.isdisjoint(
        {"Any", "cast", "assert_type"}
    )
    assert "type: ignore" not in text
    program = [node for node in tree.body if getattr(node, "name", "") != "test"]
    assert not any(isinstance(node, ast.Assert) for part in program for node in ast.walk(part))


def test_only_our_program_is_resumed_from_each_place() -> None:
    resumed = dict.fromkeys(trial.PLACES, trial.RESUMED)
    assert [library for library, found in _results().items() if found["killed"] == resumed] == ["ours"]


def test_every_package_of_a_program_is_pinned_exactly() -> None:
    for library in run.LIBRARIES:
        lines = library.pins.read_text(encoding="utf-8").splitlines() if library.pins else ["#", "x==1"]
        assert all("==" in line for line in lines[1:])


def test_each_program_of_the_pages_for_newcomers_stands_beside_ours() -> None:
    titles = re.findall(r"^\| \[(.+?)\]", table.small_programs(), re.MULTILINE)
    assert sorted(titles) == sorted(
        one.heading
        for one in of_language("python")
        if one.topic.startswith("from-") and one.heading != "Here"
    )


def test_names_attributes_options_and_strings_of_the_library_are_counted_once(tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        '"""A program."""\n\n'
        "from pathlib import Path\n\n"
        "from library import Agent, Event\n"
        "from tests.benchmarks.peers.ergonomics import task\n\n\n"
        "# a comment\n"
        "async def main(event: Event) -> None:\n"
        "    agent = Agent(model=task.MODEL, model_settings={'top': 1, 'event': 2})\n"
        "    async for one in agent.stream(deadline=3):\n"
        "        if one.kind == 'text' and event.kind == 'end':\n"
        "            task.show(one['body'].upper(sep=''))\n"
        "    task.STATE.write_text(Path('x').name)\n",
    )
    found = count(program)
    assert found.names == ("Agent", "Event")
    assert found.members == ("kind", "stream", "upper")
    assert found.options == ("deadline", "model", "model_settings", "sep")
    assert found.strings == ("body", "end", "text", "top")
    assert (found.lines, found.statements, found.concepts, found.storing) == (9, 9, 13, 1)


def test_the_arguments_of_a_tool_are_names_of_the_program(tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        '"""A program."""\n'
        "from library import call, run\n\n\n"
        "def refund(order: str) -> None: ...\n\n\n"
        "call(refund, order='A', times=2)\n"
        "run({'order': 'A', 'name': 'refund'}, order=3)\n",
    )
    found = count(program)
    assert (found.options, found.strings) == (("order", "times"), ("name",))


def test_the_objects_of_a_variable_with_an_annotation_of_the_library_are_counted(tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        '"""A program."""\nfrom library import Agent\n'
        "team: dict[str, Agent] = {}\n"
        "count: int = Agent().turns\n"
        "team['a'].run(limit=count.real)\n",
    )
    found = count(program)
    assert found.members == ("real", "run", "turns")
    assert found.options == ("limit",)


def test_an_attribute_that_the_task_defines_is_no_concept_of_the_library(tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        '"""A program."""\nfrom library import Context\nContext.shop.price()\nContext.shop.close()\n',
    )
    (tmp_path / "task.py").write_text("class Shop:\n    def price(self): ...\n")
    assert count(program).members == ("close", "shop")


def test_an_attribute_that_the_program_defines_is_no_concept_of_the_library() -> None:
    found = count_text(
        "from library import run\n\n\nclass Order:\n    paid: int\n\n\nprint(run().paid, run().ended)\n"
    )
    assert found.members == ("ended",)


def test_a_program_without_a_docstring_is_counted_from_its_first_line() -> None:
    found = count_text("from library import run\n\nrun()\n")
    assert (found.lines, found.statements) == (2, 2)


def _program(folder: Path, text: str) -> Path:
    """Write a program and an empty task, and return the file of the program."""
    (folder / "task.py").write_text("")
    file = folder / "programs" / "small.py"
    file.parent.mkdir()
    file.write_text(text)
    return file


def _results() -> dict[str, dict[str, Any]]:
    names = ("streams", "killed")
    return {library: {name: one[name] for name in names} for library, one in run.results().items()}
