"""Runs that somebody else began: what their journal names is asked for nothing, and starts nothing, before a yes."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import hmac
import json
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, SqliteJournal
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.cli.trust.signature import KEY, is_own, signed
from orchestrator.errors import ConfigError
from orchestrator.examples.ralph import REQUEST
from orchestrator.machines.rlm.model import TOOLS_LIMITS
from orchestrator.rlm import Rlm
from orchestrator.testing import FunctionLLM
from tests.cli.conftest import Cli, Done
from tests.cli.parked import parked
from tests.cli.recorded import JOURNAL, Tape, record
from tests.cli.shop import Shop, shop
from tests.cli.test_pipeline import left_open
from tests.cli.test_ralph import agents as ralph_agents
from tests.providers.loopback import Loopback, in_a_thread
from tests.providers.talker import talker

__all__ = ["shop"]

OURS = "sk-the-users-own"
AT = ("--journal", JOURNAL)

pytestmark = pytest.mark.usefixtures("cli", "untrusted")  # modules of the folder can be imported


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """The stranger's server; the user's key is in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", OURS)
    with in_a_thread(talker) as running:
        yield running


@contextmanager
def as_somebody_else(folder: Path) -> Iterator[None]:
    """What is begun inside is begun on the stranger's machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "the-strangers-home"))
        yield


def forged(make: Callable[[FunctionLLM, SqliteJournal], Awaitable[Any]]) -> None:
    """Leave a run open while its model is asked."""

    async def leave() -> None:
        asked = asyncio.Event()

        async def answer(_: Any) -> str:
            asked.set()
            await asyncio.Event().wait()
            return ""

        async with SqliteJournal(JOURNAL) as journal:
            running = asyncio.ensure_future(make(FunctionLLM(answer), journal))
            await asked.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(leave())


def loop_run(launch: dict[str, Any]) -> None:
    forged(
        lambda llm, journal: Agent(llm, journal=journal, observers=(), launch=launch).run("Hi", run_id="r1")
    )


def mode_run(launch: dict[str, Any]) -> None:
    options: dict[str, Any] = {"mode": "tools", "limits": TOOLS_LIMITS, "observers": (), "launch": launch}
    forged(lambda llm, journal: Rlm(llm, journal=journal, **options).run("Hi", "a text", run_id="r1"))


def keys(server: Loopback) -> list[str]:
    return [str(one.headers.get("authorization")) for one in server.asked]


@pytest.mark.parametrize(
    ("begin", "command"),
    [
        (loop_run, ("runs", "resume", "r1")),
        (loop_run, ("runs", "fork", "r1")),
        (mode_run, ("rlm", "resume", "r1")),
    ],
    ids=["resume", "fork", "rlm"],
)
def test_the_key_goes_to_the_address_of_a_stranger_only_after_a_yes(
    cli: Cli,
    server: Loopback,
    one_sentence: Callable[[Done], str],
    begin: Callable[[dict[str, Any]], None],
    command: tuple[str, ...],
) -> None:
    begin({"model": "openai:talker-1", "base_url": f"{server.url}/v1"})
    said = one_sentence(cli(*command, *AT))
    assert f"r1 was not started by you on this machine; it would use base_url '{server.url}/v1'" in said
    assert "use model 'openai:talker-1'" in said
    assert "--trust" in said
    assert keys(server) == []
    cli(*command, "--trust", *AT)
    assert keys(server)[0] == f"Bearer {OURS}"


def test_the_programs_of_a_strangers_pipeline_are_named_and_not_started(
    cli: Cli, folder: Path, one_sentence: Callable[[Done], str]
) -> None:
    program = [sys.executable, "-c", "open('taken', 'w'); print('{}')"]
    stages = {name: {"command": program} for name in ("planner", "validator", "implementer", "judge")}
    left_open(folder, launch={"pipeline": {"stages": stages, "spec": "x"}, "cwd": str(folder)})
    said = one_sentence(cli("pipeline", "resume", "r1", *AT))
    assert "use command " in said
    assert "taken" in said
    assert not (folder / "taken").exists()
    cli("pipeline", "resume", "r1", "--trust", *AT)
    assert (folder / "taken").exists()


def test_a_strangers_tools_are_not_imported_and_his_mcp_servers_not_started(
    cli: Cli, folder: Path, one_sentence: Callable[[Done], str]
) -> None:
    (folder / "theirs.py").write_text("open('taken', 'w')\n")
    loop_run(
        {
            "model": "python:theirs:model",
            "tools": ["theirs:tool"],
            "mcp": ["touch taken"],
            "mcp_env": ["OPENAI_API_KEY"],
            "cwd": str(folder),
        }
    )
    said = one_sentence(cli("runs", "resume", "r1", *AT))
    for one in (
        "model 'python:theirs:model'",
        "mcp 'touch taken'",
        "mcp_env 'OPENAI_API_KEY'",
        "tools 'theirs:tool'",
    ):
        assert f"use {one}" in said
    assert not (folder / "taken").exists()


def test_agents_of_a_strangers_session_do_nothing_before_a_yes(
    cli: Cli, folder: Path, one_sentence: Callable[[Done], str]
) -> None:
    ralph_agents(folder)
    with as_somebody_else(folder):
        assert cli("ralph", "run", REQUEST, "--trust").code == 1  # it asks something
    (session,) = (folder / ".ralph-sessions").iterdir()
    before = {file: file.read_bytes() for file in session.iterdir()}
    assert "use command " in one_sentence(cli("ralph", "resume", session.name))
    assert {file: file.read_bytes() for file in session.iterdir()} == before
    (folder / "answers.txt").write_text("*: two\n")
    assert cli("ralph", "resume", session.name, "--answers", "answers.txt", "--trust").code == 0


def test_a_plan_that_a_stranger_approved_is_not_carried_out(
    cli: Cli, folder: Path, shop: Shop, one_sentence: Callable[[Done], str]
) -> None:
    with as_somebody_else(folder):
        for command in (shop.submit, *(("approval", name, *shop.here) for name in ("diff", "approve"))):
            assert cli(*command).code == 0
    for name in ("execute", "resume", "cancel", "rollback", "retry", "status"):
        said = one_sentence(cli("approval", name, *shop.here))
        assert (
            "was not started by you on this machine; it would carry out, or take back, the plan that `"
            in said
        )
    look = shlex.split(said.partition("`")[2].partition("`")[0])[1:]
    assert "green tea,4" in cli(*look).out
    assert "not started by you" in cli(*shop.submit).err
    assert shop.tree() == shop.before
    assert cli("approval", "execute", "--trust", *shop.here).code == 0
    assert shop.tree() != shop.before


def test_files_are_put_back_only_where_the_user_says_when_a_stranger_says_where(
    cli: Cli, folder: Path, one_sentence: Callable[[Done], str]
) -> None:
    from tests.cli.test_runs_rollback import _changed

    for name in ("old.txt", "doomed.txt"):
        (folder / name).write_text(name.partition(".")[0])
    asyncio.run(_changed(Tape("run-1", launch={"cwd": str(folder)}).begin(), folder))
    said = one_sentence(cli("runs", "rollback", "run-1", "--yes", *AT))
    assert f"says that its files are in {folder}: give the folder with --root DIR" in said
    assert not (folder / "doomed.txt").exists()
    assert cli("runs", "rollback", "run-1", "--yes", "--root", str(folder), *AT).code == 0
    assert (folder / "doomed.txt").exists()


def test_a_changed_launch_is_a_strangers(cli: Cli, server: Loopback) -> None:
    loop_run({**signed({"model": "openai:talker-1"}), "base_url": f"{server.url}/v1"})
    assert "not started by you" in cli("runs", "resume", "r1", *AT).err
    assert keys(server) == []


def test_what_would_flood_the_sentence_is_counted_and_addresses_come_first(
    cli: Cli, one_sentence: Callable[[Done], str]
) -> None:
    tools = [f"m{number}:\x1b[2J{'t' * 500}" for number in range(50)]
    loop_run({"tools": tools, "model": "openai:m", "base_url": "https://elsewhere.example"})
    said = one_sentence(cli("runs", "resume", "r1", *AT))
    assert "it would use base_url 'https://elsewhere.example', use model 'openai:m', use tools 'm0:" in said
    assert "and 40 more: --trust" in said
    assert "\x1b" not in said
    assert len(said) < 4_000


def test_a_run_that_an_earlier_version_signed_is_still_the_users_own(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    place = folder / "state" / "orchestrator"
    place.mkdir(parents=True, mode=0o700)
    (place / "seal.key").write_bytes(b"k" * 32)
    (place / "seal.key").chmod(0o600)
    plain = {"model": "openai:m", "cwd": "/home/me"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    earlier = {**plain, "seal": hmac.new(b"k" * 32, text.encode(), hashlib.sha256).hexdigest()}
    assert is_own(earlier)
    assert not is_own({**earlier, "model": "openai:other"})
    again = signed(earlier)
    assert (again.keys() - plain.keys(), is_own(again)) == ({"signature"}, True)


@pytest.mark.parametrize("value", ["{folder}", "{folder}/{journal}", "all"])
def test_a_container_resumes_the_runs_of_a_journal_that_it_trusts(
    cli: Cli, server: Loopback, folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    loop_run({"model": "openai:talker-1", "base_url": f"{server.url}/v1"})
    monkeypatch.setenv("ORCHESTRATOR_TRUST", f"{folder}/other.db")
    assert "not started by you" in cli("runs", "resume", "r1", *AT).err
    monkeypatch.setenv("ORCHESTRATOR_TRUST", value.format(folder=folder, journal=JOURNAL))
    cli("runs", "resume", "r1", *AT)
    assert keys(server)[0] == f"Bearer {OURS}"


def nested(depth: int) -> dict[str, Any]:
    """A launch in a launch in a launch."""
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"signature": "0" * 64, "x": found}
    return found


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage of other tests is collected: its finalizers would fail where the recursion is at its deepest."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "launch",
    ["text", {"signature": "é"}, {"signature": 7}, {"signature": "0" * 64}, ["signature"], nested(100_000)],
    ids=["text", "letter", "number", "wrong", "list", "deep"],
)
def test_a_launch_of_any_other_shape_is_not_the_users_own(
    launch: Any, folder: Path, no_collection: None
) -> None:
    signed({})  # there is a key
    assert not is_own(launch)
    with pytest.raises(ConfigError, match="not started by you"):
        refuse_untrusted_run(launch, "run r1", folder / JOURNAL)


# ---- of one's own ----


def test_a_run_of_ones_own_goes_on_without_a_word_in_a_folder_that_was_moved(cli: Cli, folder: Path) -> None:
    parked(folder)
    cli("runs", "approve", "run-1", *AT)
    (folder / "moved").mkdir()
    shutil.move(folder / JOURNAL, folder / "moved" / JOURNAL)
    assert cli("runs", "resume", "run-1", "--journal", f"moved/{JOURNAL}").code == 0


def test_a_run_that_was_trusted_and_forked_is_ones_own(cli: Cli, server: Loopback) -> None:
    loop_run({"model": "openai:talker-1", "base_url": f"{server.url}/v1"})
    assert cli("runs", "fork", "r1", "--run-id", "mine", "--trust", *AT).code == 0
    asked = len(keys(server))
    assert cli("runs", "fork", "mine", "--prompt", "And now?", *AT).code == 0
    assert len(keys(server)) > asked


def test_a_run_that_names_nothing_goes_on_with_what_the_command_line_names(cli: Cli, folder: Path) -> None:
    record(Tape("old").begin())
    done = cli("runs", "fork", "old", "--model", "python:models:model", "--json", *AT)
    assert json.loads(done.out)["outcome"] == "completed"


@pytest.mark.parametrize("home", ["no-home", "x" * 300], ids=["absent", "unreadable"])
def test_without_a_home_the_key_is_among_the_temporary_files(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", str(folder / home))
    (folder / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    parked(folder)
    cli("runs", "approve", "run-1", *AT)
    assert cli("runs", "resume", "run-1", *AT).code == 0
    (key,) = (folder / "temporary").glob("orchestrator-*/*")
    assert (key.name, key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (KEY, 0o600, 0o700)
    assert not (folder / "no-home").exists()


def test_where_no_key_can_be_kept_a_run_is_begun_and_resumed_with_a_yes(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file" / "state"))
    monkeypatch.setenv("TMPDIR", str(folder / "file" / "temporary"))
    parked(folder)
    cli("runs", "approve", "run-1", *AT)
    assert cli("runs", "resume", "run-1", *AT).code == 2
    assert cli("runs", "resume", "run-1", "--trust", *AT).code == 0


@pytest.mark.parametrize(("mode", "believed"), [(0o600, True), (0o644, False), (0o640, False)])
def test_a_key_that_a_checkout_may_have_left_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mode: int, believed: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("TMPDIR", str(folder))
    launch = signed({"model": "openai:m"})
    (folder / "state" / "orchestrator" / KEY).chmod(mode)
    assert is_own(launch) == believed


def test_processes_that_begin_at_once_have_one_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    with ThreadPoolExecutor(8) as pool:
        seals = list(pool.map(lambda _: signed({"model": "openai:m"})["signature"], range(8)))
    assert len(set(seals)) == 1
    assert [file.name for file in (folder / "state" / "orchestrator").iterdir()] == [KEY]
