"""A recorded run is executed again without the world, and a difference is shown at the first transition."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, Limits, LLMError, MemoryJournal, RunUnknown
from orchestrator.kernel import Run
from orchestrator.providers.scripted import call
from orchestrator.runtime.run_replay import archive_of, journal_of, replay_run
from orchestrator.testing import ScriptedLLM, assert_replays
from tests.runtime.test_backtest import Play, in_a_circle
from tests.runtime.test_guard_decisions import CASES, NO_WAIT, fails, spoilt, step
from tests.with_runtime import with_runtime


async def played(answers: Any, limits: dict[str, Any] | None = None, **options: Any) -> MemoryJournal:
    journal = MemoryJournal()
    agent = Agent(
        ScriptedLLM(answers),
        tools=[step, fails],
        limits=Limits(**limits or {}),
        retry=NO_WAIT,
        **with_runtime(journal=journal, observers=(), **options),
    )
    await agent.run("go", run_id="r")
    return journal


@pytest.mark.parametrize("case", CASES)
async def test_each_ending_of_the_loop_is_replayed(case: str) -> None:
    answers, limits, options, _ = CASES[case]
    await assert_replays(await played(answers, limits, **options), "r")


@pytest.mark.parametrize("plays", [4, pytest.param(40, marks=pytest.mark.campaign)])
async def test_random_runs_are_replayed_also_from_their_archive(
    seed: int, plays: int, campaign: Callable[[int, int], int]
) -> None:
    for number in range(campaign(plays, 1_000)):
        one = Play(seed + number)
        _, _, journal = await one.run(one.recorded)
        records = await journal.load("r")
        found = await replay_run("r", records)
        assert found.difference is None, (seed + number, found.difference)
        assert len(found.steps) == sum(record.kind == "transition" for record in records)
        copy = await journal_of(json.loads(json.dumps(archive_of("r", records))))
        await assert_replays(copy, "r")


ANSWERS = [call("step", n=1), call("fails", n=2), call("step", n=3), "done"]


async def test_the_first_transition_that_differs_is_shown_with_both_contexts() -> None:
    journal = await played(ANSWERS, {"max_iterations": 4})
    records = await journal.load("r")
    created = json.loads(json.dumps(records[0].body))
    created["context"]["limits"]["max_iterations"] = 2
    found = await replay_run("r", spoilt(records, 0, created))
    assert found.difference is not None
    assert str(found.difference) == (
        "transition 9 differs: recorded update_budgets -> await_llm (budget_ok), "
        "replayed update_budgets -> terminate_error (budget_exceeded)"
    )
    assert [step.step.event for step in found.steps][-1] == "tools_executed"
    assert found.difference.fields["verdict"][0] is None
    assert found.difference.fields["verdict"][1][1] == "iterations"
    copy = await journal_of(archive_of("r", spoilt(records, 0, created)))
    with pytest.raises(AssertionError, match="transition 9 differs"):
        await assert_replays(copy, "r")


async def test_a_limit_on_a_tool_that_was_never_called_is_replayed() -> None:
    await assert_replays(await played(ANSWERS, {"tool_caps": {"fails": 1, "step": 9}}), "r")


async def test_each_step_has_the_context_at_its_transition() -> None:
    journal = await played(ANSWERS)
    found = await replay_run("r", await journal.load("r"))
    calls = [one for one in found.steps if one.step.event == "response_with_tools"]
    assert [one.context["spent"]["tool_calls"] for one in calls] == [1, 2, 3]
    assert [one.context["iteration"] for one in calls] == [1, 2, 3]
    with pytest.raises(ConfigError, match="until is -1; it must be the number of a record"):
        await replay_run("r", await journal.load("r"), until=-1)


class Failing:
    """A hook that fails."""

    async def enter_process_tools(self, run: Run[Any, Any]) -> None:
        raise OSError("no disk")


async def test_a_hook_that_fails_is_named_and_only_what_it_changed_differs() -> None:
    journal = await played(ANSWERS)
    found = await replay_run("r", await journal.load("r"), hooks=[Failing()])
    assert found.difference is not None
    assert str(found.difference).endswith("replayed process_tools -> terminate_error (failure, OSError)")
    assert not any(name.startswith("limits") for name in found.difference.fields)


class Restless:
    """A hook that ends the run where the recorded one continued."""

    async def leave_process_tools(self, run: Run[Any, Any]) -> None:
        if run.ctx.iteration == 2:
            raise ValueError("a hook with a fault")


async def test_a_hook_that_changes_the_run_is_found() -> None:
    journal = await played(ANSWERS)
    await assert_replays(journal, "r")
    with pytest.raises(AssertionError, match="replayed process_tools -> terminate_error"):
        await assert_replays(journal, "r", hooks=[Restless()])
    await assert_replays(journal, "r", hooks=[Restless()], until=10)


async def test_nothing_outside_is_touched_and_recorded_errors_are_repeated() -> None:
    journal = await played([LLMError("busy", kind="server_error"), call("step", n=1), "done"])
    records = await journal.load("r")
    before = [record for record in records if record.kind == "answer"]
    found = await replay_run("r", records)
    assert found.difference is None
    assert before[0].body["retries"] == 1
    assert found.steps[-1].context["spent"]["retries"] == 1


async def test_the_comparison_ends_at_an_error_from_outside() -> None:
    journal = await played([call("step", n=1), LLMError("gone", kind="auth")])
    found = await replay_run("r", await journal.load("r"))
    assert found.difference is None
    assert found.outside is not None
    assert (found.outside.outside, found.outside.source) == ("LLMError", "await_llm")


async def test_a_run_that_has_not_ended_is_compared_up_to_its_last_record() -> None:
    records = await (await played(ANSWERS)).load("r")
    for last in random.Random(1).sample(range(2, len(records)), 6):
        found = await replay_run("r", records[:last])
        assert found.difference is None


async def test_a_run_that_cannot_be_replayed_is_refused_with_one_sentence(tmp_path: Path) -> None:
    journal = await played(ANSWERS)
    records = await journal.load("r")
    other = {**records[0].body, "graph": "pipeline"}
    with pytest.raises(ConfigError, match="cannot be replayed: it is a run of graph 'pipeline'"):
        await replay_run("r", spoilt(records, 0, other))
    await in_a_circle(teams := MemoryJournal()).run("go", run_id="p")
    with pytest.raises(ConfigError, match="'p' cannot be replayed: it is a run of a team; its segments are"):
        await assert_replays(teams, "p")
    with pytest.raises(RunUnknown):
        await assert_replays(journal, "another")
    for text, sentence in [
        ("{", "is not JSON"),
        ("{}", "this is no archived run"),
        ('{"format": "x"}', "must be"),
    ]:
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            await assert_replays(tmp_path / "a.json", "r")


LOGIN = {"user": "ann", "password": "hunter2"}
KEY = "sk-live-abcdefgh12345678"


def login(user: str, password: str) -> str:
    return f"welcome {user}, your token={KEY}"


async def test_an_archive_has_no_secret_and_replays_the_same() -> None:
    journal = MemoryJournal()
    script: list[Any] = [call("login", **LOGIN), f"Your key is {KEY}."]
    agent = Agent(
        ScriptedLLM(script), tools=[login], journal=journal, observers=(), launch={"base_url": "http://x.org"}
    )
    await agent.run(f"Log in with Bearer {KEY}", run_id="r", metadata={"customer": "ann"})
    data = archive_of("r", await journal.load("r"))
    text = json.dumps(data)
    assert KEY not in text
    assert "hunter2" not in text
    assert "x.org" not in text
    assert "customer" not in text
    assert "[redacted 1]" in text
    await assert_replays(await journal_of(data), "r")
