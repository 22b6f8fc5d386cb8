"""Each program of the pages "Coming from …" runs, with the library of its heading; those of a page do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.environments import PINS, environment
from tests.benchmarks.peers.ergonomics.run import LIBRARIES
from tests.contract.test_guides import Block, of_language
from tests.providers.loopback import Loopback, in_a_thread
from tests.providers.talker import ANSWER, talker

ENVIRONMENTS = {one.title: one.pins for one in LIBRARIES if one.pins} | {
    "python-statemachine": PINS / "python-statemachine.txt"
}
"""Heading -> the pins of its library; the programs of other headings run in the environment of the tests."""
PROGRAMS = [one for one in of_language("python") if one.topic.startswith("from-")]
MACHINES = [one for one in PROGRAMS if one.topic == "from-state-machines"]
AGENTS = [*{one.text: one for one in PROGRAMS if one.topic != "from-state-machines"}.values()]
"""Each once: the pages have one program of ours, which is under `Here` on all of them."""


def interpreter(block: Block) -> Path:
    """Return the Python that has the library of a program. Fails on CI if it cannot be installed, else skips."""
    pins = ENVIRONMENTS.get(block.heading)
    if pins is None:
        return Path(sys.executable)
    try:
        return environment(Path(sys.prefix) / "peers" / f"from-{pins.stem}", pins, compiled=False)
    except NotMeasured as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


def run(block: Block, folder: Path, *arguments: str) -> str:
    (folder / "program.py").write_text(block.text, encoding="utf-8")
    command = [str(interpreter(block)), "program.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    with in_a_thread(talker, strict=False) as started:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-pages")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{started.url}/v1")
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
        yield started


@pytest.mark.campaign
@pytest.mark.parametrize("block", AGENTS, ids=lambda block: block.place)
def test_an_agent_answers_and_remembers_the_conversation_in_the_next_process(
    block: Block, server: Loopback, tmp_path: Path
) -> None:
    questions = ("Weather in Oslo?", "And tomorrow?")
    assert [run(block, tmp_path, question) for question in questions] == [f"{ANSWER}\n"] * 2
    requests = [one.body.decode() for one in server.asked]
    assert [len([one for one in requests if text in one]) for text in questions] == [
        len(requests),
        len(requests) - 2,
    ]


@pytest.mark.campaign
@pytest.mark.canary("from-state-machines: transitions", "from-state-machines: Here")
@pytest.mark.parametrize("block", MACHINES, ids=lambda block: block.place)
def test_a_machine_ships_the_order_that_is_paid_in_full(block: Block, tmp_path: Path) -> None:
    assert run(block, tmp_path) == ""


def test_every_page_has_one_program_for_each_library_and_ours() -> None:
    pages = {one.topic: [two.heading for two in PROGRAMS if two.topic == one.topic] for one in PROGRAMS}
    assert pages == {
        "from-loop": ["By hand", "Here"],
        "from-langgraph": ["LangGraph", "Here"],
        "from-pydantic-ai": ["pydantic-ai", "Here"],
        "from-openai-agents": ["openai-agents", "Here"],
        "from-state-machines": ["transitions", "python-statemachine", "Here"],
    }
    assert [one.heading for one in AGENTS] == ["By hand", "Here", "LangGraph", "pydantic-ai", "openai-agents"]
