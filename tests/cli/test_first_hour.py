"""The first hour of a user, typed in a pseudo-terminal: its transcript is `tests/data/first_hour/transcript.txt`.

The wheel is installed into an environment that has its libraries and nothing else. Then come a first agent, a bug in a
tool, a connection that is refused, a test with a model of the test kit, an approval, and a crash. TEST_TRANSCRIPT=write
writes the transcript: read the difference before it is committed.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.project.conftest import clean_environment, environment
from tests.providers.endpoint import closed_port

DATA = Path(__file__).resolve().parents[1] / "data" / "first_hour"
GOLDEN = DATA / "transcript.txt"
SWITCHES: Final = re.compile(r"ORCHESTRATOR_|(CI|BUILD_NUMBER)$")
"""Variables that a user at home does not have."""
WRITES: Final = os.environ.get("TEST_TRANSCRIPT") == "write"
COLUMNS, LINES = 110, 40

RULES = {
    "color": (r"\x1b\[[\d;]*m", ""),
    "generated id": (r"\b[0-9a-f]{32}\b", "ID"),
    "beginning of an id": (r"\b[0-9a-f]{12}\b", "ID-12"),
    "digest": (r"\b[0-9a-f]{64}\b", "DIGEST"),
    "folder": (r"(/[\w.-]+)+/shop/", "/FOLDER/"),
    "moment": (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT"),
    "time to an expiry": (r"in \d+d \d\dh", "in DAYS"),
    "seconds": (r"\b\d+\.\d{3}( s)?\b", r"N.NNN\1"),
    "time of pytest": (r"in \d+\.\d\ds", "in N.NNs"),
    "bar": (r" *█+", ""),
    "age": (r"(?<!\.)\b\d+s( ago)?\b", r"AGE\1"),
    "process": (r"kill -9 \d+", "kill -9 PID"),
    "port": (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    "version": (r"(?m)^orchestrator \d+\.\d+\.\d+$", "orchestrator VERSION"),
    "blanks": (r" +", " "),
}
"""Name of what differs from one day, process and machine to the next -> its pattern, and what stands for it."""


def normal(text: str) -> str:
    for pattern, stands_for in RULES.values():
        text = re.sub(pattern, stands_for, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


class Screen:
    """The lines that a terminal shows, of the controls that rich and the shell use."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text: str) -> None:
        """Show a text. Other controls than these would stand in the transcript, and fail it."""
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                self.row += 1
                self.lines += [""] * (self.row - len(self.lines) + 1)
            elif part == "\r":
                self.column = 0
            elif moved := re.fullmatch(r"\x1b\[(\d+)A", part):
                self.row -= int(moved[1])
            elif part == "\x1b[2K":
                self.lines[self.row] = ""
            elif (part.endswith("m") and part[0] == "\x1b") or part in ("\x1b[?25l", "\x1b[?25h"):
                continue
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
                self.column += len(part)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n") + "\n"


class Typist:
    """Types commands in a pseudo-terminal, and writes down what is seen."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables
        self.transcript = ""

    def says(self, text: str) -> None:
        """Add a heading."""
        self.transcript += f"\n# {text}\n"

    def types(
        self, command: str, *answers: tuple[str, str], code: int = 0, kill_at: str | None = None
    ) -> str:
        """Run a command in a shell; type each answer where its text is seen. Return what the screen shows in the end.

        With `kill_at` the command is killed as soon as its table has this state as the present one.
        """
        ours, theirs = pty.openpty()
        shell = subprocess.Popen(
            ["bash", "--norc", "-c", command if kill_at is None else f"exec {command}"],
            cwd=self.folder, env=self.variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        raw, waiting = b"", list(answers)
        try:
            while True:
                if select.select([ours], [], [], 0.05)[0]:
                    try:
                        more = os.read(ours, 65_536)
                    except OSError:  # no process has the other end any more
                        break
                    raw += more
                    if not more:
                        break
                if waiting and waiting[0][0] in raw.decode(errors="replace"):
                    os.write(ours, f"{waiting.pop(0)[1]}\n".encode())
                shown = re.sub(RULES["color"][0], "", raw.decode(errors="replace"))
                if kill_at is not None and re.search(rf"▶ +{kill_at}", shown):
                    shell.send_signal(signal.SIGKILL)
        finally:
            if shell.poll() is None and (waiting or kill_at is None):
                shell.wait(30)
            os.close(ours)
        screen = Screen()
        screen.feed(raw.decode())
        assert shell.wait(30) == (-signal.SIGKILL if kill_at else code), screen.text
        self.transcript += f"$ {command}\n{screen.text if raw else ''}"
        if kill_at:
            self.transcript += f"$ kill -9 {shell.pid}    # from another terminal\n"
        return screen.text


@pytest.fixture
def typist(tmp_path: Path, wheel: Path) -> Typist:
    folder, home = tmp_path / "shop", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    programs = environment(tmp_path / "environment")
    (site,) = programs.parent.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # without this tree
    pip = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
    }
    # On CI pytest prints its summary in full.
    own = {name: value for name, value in clean_environment().items() if not SWITCHES.match(name)}
    terminal = {
        "TERM": "xterm",
        "COLUMNS": str(COLUMNS),
        "LINES": str(LINES),
        "HOME": str(home),
        "LANG": "C.UTF-8",
    }
    terminal |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "NO_COLOR"):
        own.pop(name, None)
    path = os.pathsep.join((str(programs), os.defpath))
    return Typist(folder, {**own, **pip, **terminal, "PATH": path})


@pytest.mark.campaign
def test_the_first_hour_is_the_transcript(typist: Typist) -> None:
    shop = ("--model", "python:shop:")
    typist.says("Install into an empty environment.")
    typist.types("orchestrator --version", code=127)
    typist.types("pip install --quiet 'fsm-orchestrator[cli]'")
    typist.types("orchestrator --version")

    typist.says("A first agent: no key is needed.")
    typist.types("orchestrator run 'How much is A1?'", code=2)
    shutil.copy(DATA / "shop.py", typist.folder)
    typist.types("orchestrator run 'How much is A1?' --model demo")
    typist.types(f"orchestrator run 'How much is A1?' {shop[0]} {shop[1]}clerk --tool shop:price")

    typist.says("A broken tool: the model reads its error, and so does its author.")
    broken = f"run 'Is there a discount for A1?' {shop[0]} {shop[1]}helper --tool shop:discount"
    assert "KeyError: 'A1' (shop.py:" in typist.types(f"orchestrator {broken}")
    assert "return DISCOUNTS[item]" in typist.types(f"orchestrator --traceback {broken}")

    typist.says("A refused connection.")
    with closed_port() as port:
        server = f"OPENAI_API_KEY=x OPENAI_BASE_URL=http://127.0.0.1:{port}/v1 ORCHESTRATOR_RETRY__ATTEMPTS=1"
        typist.types(f"{server} orchestrator run 'How much is A1?' --model openai:gpt-5-mini", code=1)

    typist.says("A test with a model of the test kit: a bug of a tool fails it.")
    shutil.copy(DATA / "shop_tests.py", typist.folder / "test_shop.py")
    typist.types("python -m pytest -q -p no:cacheprovider --no-header --tb=line test_shop.py", code=1)

    typist.says("An approval.")
    pay = f"orchestrator run 'Refund A1.' --run-id refund {shop[0]} {shop[1]}cashier --tool shop:refund"
    typist.types(pay, ("run refund? type y or n", "y"))
    typist.types("cat refunds.txt")

    typist.says("A crash, and the same run again.")
    count = f"orchestrator run 'Count A1.' --run-id count {shop[0]} {shop[1]}counter --tool shop:stock"
    typist.types(count, kill_at="process_tools")
    typist.types("orchestrator runs list")
    typist.types("orchestrator runs resume count")
    typist.types("orchestrator runs list")

    found = normal(typist.transcript).strip() + "\n"
    if WRITES:
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


def test_each_rule_stands_for_what_differs_and_for_nothing_else() -> None:
    said = {
        "color": ("\x1b[1;32mended\x1b[0m", "ended"),
        "generated id": (f"run {'0a' * 16}, journal", "run ID, journal"),
        "beginning of an id": ("--digest 0123456789ab", "--digest ID-12"),
        "digest": ("digest " + "f" * 64, "digest DIGEST"),
        "folder": ('"/dev/shm/pytest-1/shop/shop.py"', '"/FOLDER/shop.py"'),
        "moment": ("2026-01-02 03:04:05, in 7d 00h", "MOMENT, in DAYS"),
        "time to an expiry": ("in 12d 05h", "in DAYS"),
        "seconds": ("init 1 0.001 and 12.345 s", "init 1 N.NNN and N.NNN s"),
        "bar": ("init 1 ████", "init 1"),
        "age": ("12s 3s ago", "AGE AGE ago"),
        "time of pytest": ("1 passed in 0.12s", "1 passed in N.NNs"),
        "process": ("kill -9 4321", "kill -9 PID"),
        "port": ("http://127.0.0.1:40001/v1", "http://127.0.0.1:PORT/v1"),
        "version": ("orchestrator 0.1.0", "orchestrator VERSION"),
        "blanks": ("a    b", "a b"),
    }
    assert said.keys() == RULES.keys()
    for text, stands_for in said.values():
        assert normal(text) == stands_for
    for text in ("shop.py:12", "5 euros are on their way", "1 request, 2 tool calls", "exit code 2"):
        assert normal(text) == text
