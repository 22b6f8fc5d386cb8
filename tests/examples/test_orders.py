"""The example of a typed machine in a stream server, as a process."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.runtime.runs.runs import Runs
from tests.contract.test_guides import of_language
from tests.examples.process import command_of_guide, environment

COMMAND = [sys.executable, "-W", "error", "-m", "orchestrator.examples.orders"]


def ends(journal: Path) -> list[tuple[str, str, str]]:
    """Status, outcome and reason of the runs, sorted."""

    async def found() -> list[tuple[str, str, str]]:
        async with SqliteJournal(journal) as opened:
            heads = await Runs(opened).list()
        return sorted((str(one.status), str(one.outcome), str(one.reason)) for one in heads)

    return asyncio.run(found())


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The server as a process, and its port."""
    with subprocess.Popen(
        [*COMMAND, "--port", "0"], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield server, int(line_of(server).rstrip(".").rpartition(":")[2])
        finally:
            server.kill()


def line_of(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


def test_the_command_of_the_guide_prints_the_dialogues_and_the_journal_has_the_end_of_each_order(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", command_of_guide("orders")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [shown] = [one.text for one in of_language("text", "streaming") if one.text.startswith("Ann:")]
    assert done.stdout.startswith(shown)
    assert [line.split()[2] for line in done.stdout.removeprefix(shown).splitlines()[1:]] == ["order"] * 3
    assert ends(tmp_path / "orders.db") == [
        ("ended", "completed", "none"),
        ("ended", "completed", "none"),
        ("ended", "no_progress", "stalled"),
    ]


def test_a_server_that_is_interrupted_leaves_the_open_orders_as_interrupted(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, port), socket.create_connection(("127.0.0.1", port)) as connection:
        replies = connection.makefile("rw")
        assert replies.readline() == "cart 0\n"
        replies.write("add lamp 45\n")
        replies.flush()
        assert replies.readline() == "cart 45\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert replies.read() == ""
    assert ends(tmp_path / "orders.db") == [("parked", "", "interrupted")]


def test_the_tenth_event_in_a_row_that_leads_nowhere_ends_the_order(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"ship\n" * 10)
            assert connection.makefile().read() == "cart 0\n" * 10
        assert "'Ship' is not handled in state 'cart'" in line_of(server)
    assert ends(tmp_path / "orders.db") == [("ended", "failed", "invalid_transition")]
