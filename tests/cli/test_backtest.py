"""`orchestrator backtest`: the report as a table, as JSON and as CSV; sweeps; exported runs; bad input."""

from __future__ import annotations

import asyncio
import csv
import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, Limits, Response, Usage
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM
from tests.cli.recorded import JOURNAL, Tape, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


def look(query: str) -> str:
    return f"seen: {query}"


def asks(query: object) -> Response:
    return Response(None, (call("look", query=str(query)),), usage=Usage(90, 10, cost=0.01))


async def played() -> None:
    """Three runs: one completes after five turns, one repeats itself, one is short."""
    scripts: dict[str, list[Any]] = {
        "long-run": [*map(asks, range(5)), "done"],
        "stuck-run": [asks("moon")] * 9,
        "short-run": [asks("sun"), "done"],
    }
    limits = Limits(max_repeated_success=0)
    async with SqliteJournal(JOURNAL) as journal:
        for run_id, answers in scripts.items():
            agent = Agent(
                ScriptedLLM(answers),
                tools=[look],
                limits=limits,
                journal=journal,
                observers=(),
                name="support",
            )
            await agent.run("go", run_id=run_id, tags={"team": run_id[0]})


@pytest.fixture
def journal(folder: Path) -> Path:
    asyncio.run(played())
    return folder / JOURNAL


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.usefixtures("journal")
def test_the_report_names_harm_benefit_savings_and_the_guard_of_each_run(cli: Cli) -> None:
    done = cli("backtest", *AT, "--set", "max_no_progress=2", "--set", "max_iterations=4")
    assert done.code == 0
    rows = {line.split("  ")[1]: line.split() for line in done.out.splitlines() if line.startswith("  ")}
    assert rows["stops earlier; failed, stalled or ran out: benefit"][-6:-2] == ["1", "1", "100", "0.01"]
    assert rows["stops earlier; completed: harm"][-6:-3] == ["1", "2", "102"]
    assert rows["unchanged"][-1] == "1"
    assert rows["long-run"] == words("long-run completed stops earlier harm iterations 4")
    assert rows["stuck-run"] == words("stuck-run no_progress stops earlier benefit no_progress 3")


@pytest.mark.usefixtures("journal")
def test_the_report_is_one_json_object_and_one_csv_row_for_each_run(
    cli: Cli, lines: Callable[[str], Any]
) -> None:
    [report] = lines(cli("backtest", *AT, "--set", "max_iterations=4", "--json").out)
    assert report["limits"] == {"max_iterations": 4}
    assert (report["runs"], report["unchanged"]) == (3, 2)
    assert report["stops"]["harm"] | {"seconds": 0} == {
        "runs": 1,
        "requests": 2,
        "tokens": 102,
        "costs": {"unknown": 0.01},
        "seconds": 0,
    }
    assert report["guards"] == [{"guard": "iterations", "change": "stop", "runs": 1}]
    rows = csv.DictReader(io.StringIO(cli("backtest", *AT, "--set", "max_iterations=4", "--csv").out))
    found = {row["run_id"]: row for row in rows}
    assert found.keys() == {"long-run", "stuck-run", "short-run"}
    assert (found["long-run"]["change"], found["long-run"]["effect"]) == ("stop", "harm")
    assert (found["long-run"]["guard"], found["long-run"]["turn"]) == ("iterations", "4")
    assert found["short-run"]["change"] == "none"


@pytest.mark.usefixtures("journal")
def test_a_sweep_has_one_row_for_each_value(cli: Cli, lines: Callable[[str], Any]) -> None:
    done = cli("backtest", *AT, "--sweep", "max_iterations=1..3")
    head, *rows = [line.split() for line in done.out.splitlines()]
    assert head[:4] == ["max_iterations", "runs", "benefit", "harm"]
    assert [row[:4] for row in rows] == [["1", "3", "1", "2"], ["2", "3", "1", "1"], ["3", "3", "1", "1"]]
    [report] = lines(cli("backtest", *AT, "--sweep", "max_iterations=1..3", "--json").out)
    assert [one["value"] for one in report["values"]] == ["1", "2", "3"]
    rows_ = [*csv.reader(io.StringIO(cli("backtest", *AT, "--sweep", "max_iterations=1..3", "--csv").out))]
    assert [row[0] for row in rows_] == ["value", "1", "2", "3"]
    assert rows_[0][1:] == [
        *(
            "runs",
            "benefit",
            "harm",
            "undecided",
            "other_message",
            "assumed_benefit",
            "assumed_harm",
            "open_end",
        ),
        *("tokens", "cost"),
    ]


@pytest.mark.usefixtures("journal")
def test_a_plot_draws_benefit_against_harm_for_each_value(cli: Cli, folder: Path) -> None:
    done = cli("backtest", *AT, "--sweep", "max_iterations=1..3", "--plot", "sweep.svg")
    assert done.code == 0
    text = (folder / "sweep.svg").read_text()
    assert "Backtest of 3 runs: max_iterations=1..3" in text
    assert "harm: runs that had completed" in text
    bad = cli("backtest", *AT, "--set", "max_iterations=3", "--plot", "sweep.gif")
    assert (bad.code, bad.out) == (2, "")
    assert "a drawing is written to a file *.svg or *.png" in bad.err


@pytest.mark.usefixtures("journal")
def test_conditions_select_the_runs(cli: Cli) -> None:
    policy = ("--set", "max_iterations=1")
    for conditions, count in [
        (("--agent", "support"), 3),
        (("--agent", "other"), 0),
        (("--outcome", "completed"), 2),
        (("--tag", "team=s"), 2),
        (("--since", "1h"), 3),
        (("--older-than", "1h"), 0),
    ]:
        done = cli("backtest", *AT, *policy, *conditions)
        expected = f"{count} runs evaluated" if count else "no run was evaluated"
        assert done.out.startswith(expected), conditions


@pytest.mark.usefixtures("journal")
def test_limits_of_a_file_are_replaced_by_those_of_set(cli: Cli, folder: Path) -> None:
    (folder / "policy.toml").write_text("[limits]\nmax_iterations = 2\napproval_seconds = 5\n")
    done = cli("backtest", *AT, "--limits", "policy.toml", "--set", "max_iterations=4")
    assert "long-run" in done.out
    assert done.out.endswith("not evaluated, because no decision depends on it: approval_seconds\n")
    (folder / "flat.toml").write_text("max_iterations = 4\n")
    assert cli("backtest", *AT, "--limits", "flat.toml").out == done.out.rpartition("not evaluated")[0]


@pytest.mark.usefixtures("journal")
def test_a_guard_of_the_host_is_one_more_limit(cli: Cli, folder: Path) -> None:
    (folder / "policy.py").write_text(
        "def cheap(cost, iteration):\n    return cost < 0.02 * iteration - 0.03\n"
    )
    done = cli("backtest", *AT, "--guard", "policy:cheap")
    assert "cheap  stops earlier" in done.out


@pytest.mark.usefixtures("journal")
def test_exported_runs_give_the_same_report_without_any_text(cli: Cli, folder: Path) -> None:
    names = ("long-run", "short-run", "stuck-run")
    text = "".join(cli("runs", "export", name, *AT).out for name in names)
    assert "seen: " not in text
    (folder / "runs.jsonl").write_text(text)
    policy = ("--set", "max_iterations=4", "--set", "max_no_progress=2", "--json")
    found = cli("backtest", "runs.jsonl", *policy)
    assert found.code == 0
    assert found.out == cli("backtest", *AT, *policy).out


@pytest.mark.usefixtures("journal")
def test_runs_that_cannot_be_evaluated_are_named_and_left_out(cli: Cli, folder: Path) -> None:
    record(Tape("a-pipeline", graph="pipeline").begin(), Tape("old-run").begin().completes())
    with closing(sqlite3.connect(folder / JOURNAL)) as store, store:
        store.execute(
            "UPDATE record SET body = CAST(replace(CAST(body AS TEXT), 'moon', 'moan') AS BLOB) WHERE key IN "
            "(SELECT key FROM record WHERE instr(body, CAST('moon' AS BLOB)) LIMIT 1)"
        )
    done = cli("backtest", *AT, "--set", "max_iterations=3")
    assert done.code == 0
    assert done.out.startswith("2 runs evaluated")
    left_out = [line for line in done.out.splitlines() if line.startswith("left out: ")]
    assert any("stuck-run" in line and "damaged" in line for line in left_out), done.out
    assert any("old-run" in line for line in left_out), done.out


@pytest.mark.usefixtures("journal")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no policy to test: give --set, --limits, --guard, --input-guard, "),
        (("--set", "max_turns=3"), "unknown setting limits.max_turns; known: approval_seconds, "),
        (("--set", "max_iterations"), "limit 'max_iterations' is not of the form name=value"),
        (("--set", "completion_retries=0"), "give 1 or more"),
        (("--sweep", "max_iterations=9..2"), "must go up, over at most 100 values"),
        (("--sweep", "max_iterations"), "is not of the form NAME=A..B"),
        (("--sweep", "max_turns=1..2"), "unknown limit 'max_turns'; did you mean 'max_iterations'?"),
        (
            ("--set", "max_iterations=3", "--machine", "pipeline"),
            "evaluates runs of llm_loop, not of 'pipeline'",
        ),
        (("--set", "max_iterations=3", "--json", "--csv"), "give one of them"),
        (("--set", "max_iterations=3", "--since", "soon"), "'soon' is no duration"),
        (("--limits", "missing.toml"), "missing.toml: No such file or directory"),
        (("--limits", "models.py"), "models.py is not TOML"),
        (("--guard", "models:number"), "a guard must be a function, not int"),
        (("--guard", "models:look"), "takes some of: iteration, input_tokens"),
        (("--set", "max_iterations=3", "models.py"), "models.py, line 2: this is not JSON"),
        (("--set", "max_iterations=3", "models.py", "--agent", "a"), "give FILE or conditions, not both"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(cli: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    done = cli("backtest", *AT, *arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.startswith("orchestrator: ")
    assert done.err.count("\n") == 1


def test_a_missing_journal_and_other_files_are_refused(cli: Cli, folder: Path) -> None:
    assert "there is no journal" in cli("backtest", *AT, "--set", "max_iterations=3").err
    for text, sentence in [
        ("[1]", "this is no exported run"),
        ('{"format": "orchestrator-run/1"}', "export it again"),
        ('{"format": "orchestrator-run/1", "trace": {}}', "the format is None"),
        ('{"format": "orchestrator-run/1", "trace": {"format": "orchestrator-trace/1"}}', "has another form"),
    ]:
        (folder / "a.json").write_text(text)
        done = cli("backtest", "a.json", "--set", "max_iterations=3")
        assert (done.code, done.out) == (2, "")
        assert sentence in done.err
