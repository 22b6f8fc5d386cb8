"""`orchestrator docs`."""

from __future__ import annotations

import pytest

from orchestrator.cli.docs import GUIDES, read_guide
from tests.cli.conftest import Cli


def test_docs_lists_every_guide_with_one_line(cli: Cli) -> None:
    done = cli("docs")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == [guide.topic for guide in GUIDES]
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
