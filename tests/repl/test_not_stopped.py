"""What code can do although every lock holds. Each test shows what happens; README.md of the package lists them.

What would stop these is a stronger wall (a virtual machine, a container without our interpreter), or a policy on what
a model is told; a lock around the process cannot.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.repl.conftest import Opener
from tests.repl.escapes import PRELUDE


async def test_the_list_of_imports_can_be_got_round(opened: Opener) -> None:
    async with opened() as repl:
        assert "cannot be imported" in ((await repl.run("import subprocess")).error or "")
        found = await repl.run(
            "from typing import sys\nprint(sys.modules['importlib'].import_module('subprocess').__name__)"
        )
    assert found.stdout == "subprocess\n"


async def test_the_name_open_can_be_got_round_but_not_the_lock_behind_it(opened: Opener) -> None:
    async with opened() as repl:
        found = await repl.run("import io\nio.open('/etc/hostname')")
    assert "FileNotFoundError" in (found.error or "") or "PermissionError" in (found.error or "")
    assert "outside the working folder" not in (found.error or "")


async def test_python_s_own_library_can_be_read(opened: Opener) -> None:
    async with opened() as repl:
        found = await repl.run(PRELUDE + "print(slurp(os.__file__))")
    assert found.stdout == f"{Path(os.__file__).read_bytes()[:100]!r}\n"


async def test_kernel_version_memory_and_clock_of_the_machine_can_be_seen(opened: Opener) -> None:
    async with opened() as repl:
        found = await repl.run(
            PRELUDE
            + """
import time
memory = (ctypes.c_long * 20)()
libc.sysinfo(memory)
print(os.uname().release, memory[4] > 10**6, time.time() > 1.7e9)
"""
        )
    assert found.stdout == f"{os.uname().release} True True\n"


async def test_a_whole_core_can_be_used_up_to_the_limit(opened: Opener) -> None:
    async with opened() as repl:
        found = await repl.run(
            "import time\nbegan = time.process_time()\nwhile time.process_time() - began < 0.3: pass\nprint('used')"
        )
    assert found.stdout == "used\n"


async def test_what_it_knows_can_be_sent_to_the_model_it_may_ask(opened: Opener) -> None:
    """The way out that is there on purpose: who may read the prompts of sub-calls may read the context."""
    asked: list[str] = []

    async def broker(prompts: tuple[str, ...]) -> Sequence[str]:
        asked.extend(prompts)
        return ["thanks"] * len(prompts)

    async with opened("a confidential context", broker=broker) as repl:
        await repl.run("llm_query('Remember this: ' + context)")
    assert asked == ["Remember this: a confidential context"]


async def test_the_code_of_the_worker_can_be_changed_by_what_runs_in_it(opened: Opener) -> None:
    """It is one process: code may give any answer, and lie about its output. It gains nothing it could not print."""
    async with opened() as repl:
        await repl.run(
            PRELUDE
            + "s = sys.modules['orchestrator.repl.inside.session'].ReplNamespace\n"
            + "s.run = lambda self, code: {'stdout': 'all is well', 'dropped': 0, 'error': None, 'final': '42'}"
        )
        found = await repl.run("1 / 0")
    assert (found.stdout, found.final, found.ok) == ("all is well", "42", True)


async def test_a_forged_end_of_a_block_is_believed_once_and_noticed_by_the_next_block(opened: Opener) -> None:
    forged = """
import json
frame = json.dumps({'t': 'done', 'n': 1, 'stdout': 'forged', 'dropped': 0, 'error': None, 'final': None}).encode()
os.write(channel()._writing, len(frame).to_bytes(4, 'big') + frame)
"""
    async with opened() as repl:
        assert (await repl.run(PRELUDE + forged)).stdout == "forged"
        assert (await repl.run("1")).lost == "protocol"
        assert (await repl.run("1")).stdout == "1\n"


async def test_control_characters_of_the_output_are_passed_on(opened: Opener) -> None:
    """They are part of the text; whoever shows it on a terminal has to make them harmless, as the CLI does."""
    async with opened() as repl:
        assert (await repl.run("print('\\x1b[2J', end='')")).stdout == "\x1b[2J"
