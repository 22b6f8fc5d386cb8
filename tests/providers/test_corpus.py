from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator.llm.message import Message, Request
from orchestrator.providers.replay import (
    IRREGULAR,
    IRREGULARITIES,
    OPEN_END,
    REPRODUCED,
    ProviderRecord,
    RecordingEnds,
    ReplayError,
    ReplayLLM,
    ReplayTools,
    RunScript,
    compare,
    expectation,
    irregularities,
    scan,
    split_runs,
)

CORPUS = Path(__file__).parents[3] / "shared/data/trajectories"


@pytest.fixture(scope="module")
def corpus(absent: Callable[[str], NoReturn]) -> list[ProviderRecord]:
    if not CORPUS.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    found = list(scan(CORPUS))
    assert [str(one) for one in found if isinstance(one, ReplayError)] == []
    return [one for one in found if isinstance(one, ProviderRecord)]


async def replayed(script: RunScript) -> tuple[list[Message], bool]:
    """Run a script by hand: what was added to the conversation, and whether it went to an answer."""
    llm, tools = ReplayLLM(script), ReplayTools(script)
    messages = [*script.history, *script.prompt]
    try:
        while True:
            reply = (await llm.complete(Request(messages))).message()
            messages.append(reply)
            if not reply.tool_calls:
                return messages[script.answer :], True
            messages += [result.message() for result in await tools.execute_all(reply.tool_calls)]
    except RecordingEnds as end:
        messages += [result.message() for result in end.results]
        return messages[script.answer :], False


def test_every_conversation_is_classified_as_measured(corpus: list[ProviderRecord]) -> None:
    assert Counter(map(expectation, corpus)) == {REPRODUCED: 204, OPEN_END: 96, IRREGULAR: 38}


def test_the_irregular_conversations_are_so_for_known_reasons(corpus: list[ProviderRecord]) -> None:
    found = Counter(name for record in corpus for name in irregularities(record.messages))
    assert [found[name] for name in IRREGULARITIES] == [0, 11, 26, 3]


def test_ids_tell_the_conversations_apart(corpus: list[ProviderRecord]) -> None:
    assert len({record.id for record in corpus}) == len(corpus) == 338


def test_the_runs_cover_each_conversation_from_its_first_prompt_to_its_end(
    corpus: list[ProviderRecord],
) -> None:
    for record in corpus:
        runs = split_runs(record)
        bounds = [run.start for run in runs[1:]] + [len(record.messages)]
        assert [run.stop for run in runs] == (bounds if runs else [])
        assert all(run.prompt for run in runs)


async def test_a_bare_loop_reproduces_every_regular_conversation(corpus: list[ProviderRecord]) -> None:
    for record in corpus:
        if expectation(record) == IRREGULAR:
            continue
        for script in split_runs(record):
            ours, ended = await replayed(script)
            assert (compare(script.expected, ours), ended) == ([], script.complete), record.id


async def test_an_irregular_conversation_is_followed_as_far_as_it_is_regular(
    corpus: list[ProviderRecord],
) -> None:
    for record in corpus:
        for script in split_runs(record):
            ours, _ = await replayed(script)
            assert compare(script.expected[: len(ours)], ours) == [], record.id
