"""`orchestrator docs`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from orchestrator.cli import docs
from orchestrator.cli.docs import GUIDES, SECTIONS, read_guide
from tests.cli.conftest import Cli


def test_docs_lists_every_guide_with_one_line(cli: Cli) -> None:
    done = cli("docs")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines if line[0] == " "] == [guide.topic for guide in GUIDES]
    assert [line for line in lines if line[0] != " "] == [f"{section}:" for section in SECTIONS]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("topic", [guide.topic for guide in GUIDES])
def test_docs_prints_the_markdown_of_a_guide_into_a_pipe(cli: Cli, topic: str) -> None:
    done = cli("docs", topic)
    assert (done.code, done.out) == (0, read_guide(topic))


def test_docs_refuses_a_topic_that_resembles_none(cli: Cli) -> None:
    assert cli("docs", "qqq").err == "orchestrator: no guide 'qqq'; `orchestrator docs` lists the topics\n"


def test_docs_refuses_an_unknown_topic_with_the_closest_one(cli: Cli) -> None:
    done = cli("docs", "wrokers")
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == "orchestrator: no guide 'wrokers'; did you mean 'workers'? `orchestrator docs` lists the topics\n"
    )


@pytest.mark.parametrize(
    ("topic", "page"),
    [
        ((), "index.html"),
        (("start",), "index.html"),
        (("loop",), "orchestrator/machines/llm_loop/index.html"),
        (("llm_loop",), "orchestrator/machines/llm_loop/index.html"),
        (("journals",), "orchestrator/journal/OPERATIONS.html"),
        (("operations",), "dashboards/index.html"),
    ],
)
def test_docs_open_shows_the_page_of_the_site(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: tuple[str, ...], page: str
) -> None:
    monkeypatch.setattr(docs, "_PACKAGE", tmp_path / "orchestrator")
    file = tmp_path / "build" / "docs" / page
    opened: list[str] = []

    def show(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", show)

    missing = cli("docs", "--open", *topic)
    assert (missing.code, missing.out, opened) == (2, "", [])
    assert "`make docs` in a checkout builds it" in missing.err

    file.parent.mkdir(parents=True)
    file.touch()
    done = cli("docs", "--open", *topic)
    assert (done.code, done.out, opened) == (0, f"{file.as_uri()}\n", [file.as_uri()])


def test_docs_open_without_a_browser_names_the_address(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "_PACKAGE", tmp_path / "orchestrator")
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    file = tmp_path / "build" / "docs" / "index.html"
    file.parent.mkdir(parents=True)
    file.touch()
    done = cli("docs", "--open")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"orchestrator: no browser can be started here; open {file.as_uri()} in one\n"


def test_docs_open_refuses_an_unknown_topic(cli: Cli) -> None:
    assert "did you mean 'workers'?" in cli("docs", "--open", "wrokers").err
