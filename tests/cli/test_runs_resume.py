"""`runs resume`: a run goes on as it was started, with an answer given elsewhere and nothing twice."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from tests.cli.parked import LOOKER, agents, bodies, claimed, parked, said, stored
from tests.cli.recorded import JOURNAL, Call, Tape, play, record
from tests.cli.test_stop import until
from tests.ending import rest

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
AT = ("--journal", JOURNAL)

pytestmark = pytest.mark.usefixtures("cli")  # modules of the folder can be imported


def paid(folder: Path) -> str:
    file = folder / "paid.txt"
    return file.read_text() if file.exists() else ""


# ---- going on ----


def test_a_run_goes_on_with_an_answer_given_meanwhile(cli: Cli, folder: Path) -> None:
    parked(folder)
    assert cli("runs", "approve", "run-1", "--by", "ann", *AT).code == 0
    done = cli("runs", "resume", "run-1", "--by", "bob", *AT)
    assert (done.code, done.err, paid(folder)) == (0, "", "4\n")
    assert "run run-1, journal journal.db\n    resumed\n    tool pay: ok" in done.out
    assert done.out.endswith(
        "\n1 paid: 4 euros\n\noutcome: completed; 1 request, 1 tool call, 1 tokens in, 1 out\n"
    )
    assert [one["by"] for one in bodies("resumed")] == ["bob"]


def test_it_is_told_again_once_it_is_over_and_nothing_runs(cli: Cli, folder: Path) -> None:
    parked(folder)
    cli("runs", "approve", "run-1", *AT)
    cli("runs", "resume", "run-1", *AT)
    before = stored()
    shutil.move(folder / "agents.py", folder / "gone.txt")  # nobody has to have the model for that
    done = cli("runs", "resume", "run-1", *AT)
    assert (done.code, done.err) == (0, "")
    assert "run run-1 has ended:\n\n1 paid: 4 euros\n\noutcome: completed" in done.out
    found = json.loads(cli("runs", "resume", "run-1", "--json", *AT).out)
    assert [found[name] for name in ("run_id", "outcome", "output")] == [
        "run-1",
        "completed",
        "1 paid: 4 euros",
    ]
    assert (paid(folder), stored()) == ("4\n", before)


def test_an_ended_run_has_the_exit_code_of_its_outcome(cli: Cli, folder: Path) -> None:
    parked(folder, limits=Limits(max_iterations=2), **LOOKER)
    done = cli("runs", "resume", "run-1", *AT)
    assert done.code == 4
    assert (
        done.err
        == "orchestrator: the run ended as budget_exceeded (max_iterations): iterations: 2 of 2 used\n"
    )


def test_json_is_the_whole_result(cli: Cli, folder: Path) -> None:
    parked(folder)
    cli("runs", "reject", "run-1", "--why", "too dear", *AT)
    done = cli("runs", "resume", "run-1", "--json", *AT)
    found = json.loads(done.out)
    assert [one["role"] for one in found["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert "too dear" in found["messages"][2]["content"]
    assert [one["seq"] for one in found["transitions"]] == list(range(1, 9))
    assert paid(folder) == ""


def test_it_goes_on_in_the_folder_it_was_started_in(
    cli: Cli, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked(folder)
    cli("runs", "approve", "run-1", *AT)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    done = cli("runs", "resume", "run-1", "--journal", str(folder / JOURNAL), "--log", "mine.log")
    assert done.code == 0
    assert (paid(folder), paid(elsewhere)) == ("4\n", "")
    assert (elsewhere / "mine.log").exists()
    assert Path.cwd() == elsewhere


def test_limits_of_the_run_can_be_raised(cli: Cli, folder: Path) -> None:
    parked(folder, limits=Limits(max_iterations=1, max_tool_errors=7))
    cli("runs", "approve", "run-1", *AT)
    assert cli("runs", "resume", "run-1", "--limit", "max_iterations=5", *AT).code == 0
    (body,) = bodies("resumed")
    limits = body["context"]["limits"]
    assert (limits["max_iterations"], limits["max_tool_errors"]) == (5, 7)


def test_a_call_that_was_approved_for_one_tool_is_asked_again_where_another_one_is_given(
    start: Start, cli: Cli, folder: Path
) -> None:
    parked(folder)
    (folder / "mine.py").write_text(
        "from orchestrator.testing import FunctionLLM\n"
        "other = FunctionLLM(lambda request: request.messages[-1].text, model='other')\n"
        "def pay(euros: int) -> str:\n    return 'by another hand'\n"
    )
    cli("runs", "approve", "run-1", *AT)
    running = start("runs", "resume", "run-1", "--model", "python:mine:other", "--tool", "mine:pay", *AT)
    until(running, "runs respond")
    assert paid(folder) == ""
    assert cli("runs", "approve", "run-1", *AT).code == 0
    out, err = rest(running)
    assert (running.returncode, err) == (0, "")
    assert "by another hand" in out
    assert paid(folder) == ""


def test_without_an_answer_it_waits_again_and_takes_one_from_another_process(
    start: Start, cli: Cli, folder: Path
) -> None:
    parked(folder)
    running = start("runs", "resume", "run-1", *AT)
    shown = until(running, "runs respond")
    assert "run run-1 waits for a person; answer from another terminal:" in shown
    assert "      euros = 4\n" in shown
    command = re.search(r"orchestrator (runs approve .*)", shown)
    assert command is not None
    answered = cli(*command[1].split())
    assert answered.code == 0
    assert "holds the run and carries it out" in answered.out
    out, err = rest(running)
    assert (running.returncode, err) == (0, "")
    assert "1 paid: 4 euros" in out
    assert paid(folder) == "4\n"


def test_a_run_that_another_process_paused_goes_on_there(start: Start, cli: Cli, folder: Path) -> None:
    agents(folder)
    (folder / "steps.py").write_text(
        "import asyncio\n"
        "from orchestrator.testing import FunctionLLM\nfrom orchestrator.providers.scripted import call\n"
        "from orchestrator.runtime.service.child_run import current_scope\n"
        "async def slow() -> str:\n"
        "    while current_scope().run.control.pause_request is None:\n        await asyncio.sleep(0.01)\n"
        "    return 'done'\n"
        "model = FunctionLLM(lambda r: 'end' if r.messages[-1].role == 'tool' else call('slow'))\n"
    )
    options = ("--model", "python:steps:model", "--tool", "steps:slow", "--run-id", "run-1", *AT)
    running = start("run", "hi", *options)
    until(running, "-> process_tools")
    assert cli("runs", "pause", "run-1", "--by", "ann", *AT).code == 0
    shown = until(running, "orchestrator runs resume run-1")
    assert "run run-1 is paused; to continue it, type in another terminal:" in shown
    refused = cli("runs", "resume", "run-1", "--limit", "max_iterations=9", *AT)
    assert (refused.code, "is held by" in refused.err) == (2, True)
    assert "posted: resume for run run-1 by bob" in cli("runs", "resume", "run-1", "--by", "bob", *AT).out
    out, _ = rest(running)
    assert (running.returncode, "outcome: completed" in out) == (0, True)


# ---- what cannot go on ----


def test_a_model_or_tool_that_is_gone_is_one_sentence_that_names_the_option(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    parked(folder, "run-1")
    before = stored()
    gone = ("--model", "python:nowhere:model")
    assert "there is no module 'nowhere'" in one_sentence(cli("runs", "resume", "run-1", *gone, *AT))
    done = cli("runs", "resume", "run-1", "--tool", "agents:missing", *AT)
    assert one_sentence(done).endswith("agents has no 'missing'; --tool names another")
    source = (folder / "agents.py").read_text()
    (folder / "agents.py").write_text(source.replace("def teller", "def teller_of_a_bank"))
    sys.modules.pop("agents", None)
    done = cli("runs", "resume", "run-1", *AT)
    sys.modules.pop("agents", None)
    assert one_sentence(done).endswith("agents has no 'teller'; --model names another")
    assert (done.code, stored()) == (2, before)


def test_a_run_of_another_program_needs_its_model_named(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(Tape("run-1", fingerprint=LLM_LOOP.fingerprint).begin().parks("waiting"))
    done = cli("runs", "resume", "run-1", *AT)
    assert "was not started by the command line, so its model is not known: give --model SPEC" in (
        one_sentence(done)
    )
    assert done.code == 2


def test_a_folder_that_is_gone_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    parked(folder, cwd=str(folder / "gone"))
    done = cli("runs", "resume", "run-1", *AT)
    assert f"the folder {folder}/gone that the run was started in is gone" in one_sentence(done)


def test_a_run_that_somebody_holds_is_one_sentence_with_the_owner(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    async def held() -> Any:
        async with SqliteJournal(JOURNAL) as journal:
            await play(Tape("run-1", fingerprint=LLM_LOOP.fingerprint).begin(), journal)
            return await asyncio.to_thread(cli, "runs", "resume", "run-1", *AT)

    done = asyncio.run(held())
    assert "run run-1 is held by worker-1: that process continues it" in one_sentence(done)
    assert done.code == 2


def test_poison_is_one_sentence_the_first_time(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    parked(folder)
    claimed(4)
    done = cli("runs", "resume", "run-1", "--json", *AT)
    assert "run run-1 is poison: taken up 5 times without a step" in one_sentence(done)
    assert done.code == 2
    assert (stored()[0].status, stored()[0].reason) == ("parked", "poison")
    cli("runs", "approve", "run-1", *AT)
    assert cli("runs", "resume", "run-1", *AT).code == 0


def test_another_version_of_the_graph_is_one_sentence_that_names_the_way(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(
        Tape("run-1").begin(), Tape("run-2", graph="pipeline").begin(), Tape("run-3", graph="ralph").begin()
    )
    done = cli("runs", "resume", "run-1", *AT)
    assert "runs migrate --using MODULE:FUNCTION run-1 --journal journal.db" in one_sentence(done)
    done = cli("runs", "resume", "run-2", *AT)
    assert "run run-2 belongs to graph 'pipeline'" in one_sentence(done)
    assert done.code == 2
    done = cli("runs", "resume", "run-3", *AT)
    assert "`orchestrator ralph resume run-3 --journal journal.db` resumes it" in one_sentence(done)
    assert [stored(one)[0].epoch for one in ("run-1", "run-2")] == [1, 1]


GRAPHS = ("llm_loop", "pipeline", "ralph", "code_mode", "tools_mode", "pipeline_checkpoint", "hosts_own")
GROUPS = {"runs": {"llm_loop"}, "pipeline": {"pipeline"}, "rlm": {"code_mode", "tools_mode"}}


def test_every_group_names_what_goes_on_with_a_run_of_another_graph(
    cli: Cli, one_sentence: Callable[[Any], str]
) -> None:
    record(*(Tape(graph, graph=graph).begin() for graph in GRAPHS))
    goes_on = {
        graph: f"`orchestrator {group} resume {graph} --journal"
        for group in GROUPS
        for graph in GROUPS[group]
    }
    goes_on |= {
        "ralph": "`orchestrator ralph resume ralph --journal",
        "pipeline_checkpoint": "`CheckpointManager.load_state_machine`",
        "hosts_own": "only the program that started it",
    }
    for group, own in GROUPS.items():
        for graph in set(GRAPHS) - own:
            told = one_sentence(cli(group, "resume", graph, *AT))
            assert f"belongs to graph {graph!r}: {goes_on[graph]}" in told
            assert told.endswith("resumes it")


def test_a_damaged_run_is_one_sentence(cli: Cli, one_sentence: Callable[[Any], str], folder: Path) -> None:
    record(Tape("run-1").begin())
    db = apsw.Connection(JOURNAL)
    db.execute("UPDATE record SET kind='kind' WHERE key = (SELECT max(key) FROM record)")
    db.close()
    done = cli("runs", "resume", "run-1", *AT)
    assert "record 1 is damaged" in one_sentence(done)
    assert done.code == 2


# ---- the list ----


def test_without_a_run_it_says_what_would_happen_to_each_and_touches_nothing(cli: Cli, folder: Path) -> None:
    parked(folder)
    here: dict[str, Any] = {"fingerprint": LLM_LOOP.fingerprint}
    record(
        Tape("hosted", **here).begin(),
        Tape("mid-call", **here).begin().asked_for(Call("pay")),
        Tape("other").begin(),
        Tape("foreign", graph="pipeline").begin(),
        Tape("over", **here).begin().completes(),
    )
    before = Path(JOURNAL).read_bytes()
    done = cli("runs", "resume", *AT)
    assert (done.code, done.err) == (0, "")
    assert (
        "run-1  parked (approval) in process_tools\n"
        "    waits for a person: may pay run? (call 1:0); continues in process_tools\n"
        "    orchestrator runs resume run-1 --journal journal.db\n"
    ) in done.out
    assert "asks a person about pay: it may have happened (irreversible)" in done.out
    assert "orchestrator runs resume hosted --model SPEC --journal journal.db" in done.out
    assert "waits for its graph version ffffffffffff, or for a migration to" in done.out
    assert "resume other" not in done.out
    assert "over" not in re.findall(r"^\S+", done.out, re.MULTILINE)
    assert done.out.endswith("\n4 open; nothing was touched; 1 of graph 'pipeline', for another program\n")
    assert Path(JOURNAL).read_bytes() == before
    found = said(cli("runs", "resume", "--json", *AT).out)
    assert [(one["run_id"], one["model"]) for one in found] == [
        ("run-1", "python:agents:teller"),
        ("hosted", None),
        ("mid-call", None),
        ("other", None),
    ]


def test_where_no_run_is_open_that_is_said(cli: Cli, folder: Path) -> None:
    record(Tape("over").begin().completes())
    assert cli("runs", "resume", *AT).out == "no run is open\n"
