"""What a REPL is to code mode: names that stay, output, errors, answers, questions; what becomes of a lost worker."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.machines.rlm.code_mode import CodeResult
from orchestrator.repl import Level, ReplError, ReplLimits, Sandbox, WorkerRepl
from tests.passing_time import pass_time
from tests.repl.conftest import SMALL, Opener


async def upper(prompts: tuple[str, ...]) -> Sequence[str | Exception]:
    return [prompt.upper() for prompt in prompts]


# ---- names and output ----


async def test_names_stay_from_block_to_block(opened: Opener) -> None:
    async with opened() as repl:
        assert (
            await repl.run("def double(n):\n    return 2 * n\nx = double(21)")
        ).text_for_model() == "(no output)"
        assert (await repl.run("print(double(x))")).stdout == "84\n"


async def test_the_names_that_the_seed_promises_are_there(opened: Opener) -> None:
    async with opened({"lines": ["a", "b"]}, depth=2, correlation_id="run-7") as repl:
        found = await repl.run(
            "print(context['lines'], RLM_DEPTH, RLM_CORRELATION_ID)\n"
            "print(callable(llm_query), callable(llm_query_batched), callable(FINAL_VAR))"
        )
    assert found.stdout == "['a', 'b'] 2 run-7\nTrue True True\n"


async def test_a_value_on_the_last_line_is_shown_as_in_a_prompt(opened: Opener) -> None:
    async with opened("abc") as repl:
        assert (await repl.run("1\nlen(context)")).stdout == "3\n"
        assert (await repl.run("None")).stdout == ""


async def test_both_streams_come_in_order(opened: Opener) -> None:
    async with opened(limits=SMALL) as repl:
        found = await repl.run(
            "import io\nprint('a')\nfrom typing import sys as s\nprint('b', file=s.stderr)\nprint('c')"
        )
    assert found.stdout == "a\nb\nc\n"


async def test_text_of_all_kinds_goes_through(opened: Opener) -> None:
    text = "é 漢字 🜚 \x00\x1b[31m \u2028"
    async with opened(text) as repl:
        assert (await repl.run("print(context, end='')")).stdout == text
        assert (await repl.run("print('half: \\ud800', end='')")).stdout == "half: ?"
        await repl.run("FINAL_VAR('context')\nhalf = 'x\\udfff'")
        assert await repl.variable("half") == "x?"


async def test_an_error_is_told_with_the_lines_of_the_code_and_none_of_ours(opened: Opener) -> None:
    async with opened() as repl:
        found = await repl.run("def f():\n    return 1 / 0\n\nf()\nprint('never')")
    assert not found.ok
    assert found.stdout == ""
    assert found.error is not None
    assert 'File "<block 1>", line 4' in found.error
    assert "return 1 / 0" in found.error
    assert found.error.endswith("ZeroDivisionError: division by zero")
    assert ".py" not in found.error


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = = 1", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: a block ends at its last line"),
        ("def f(): f()\nf()", "RecursionError"),
        ("import os", "'os' cannot be imported here; these can: base64"),
        ("from . import x", "cannot be imported here"),
        ("open('/etc/passwd')", "outside the working folder"),
        ("open('../x', 'w')", "outside the working folder"),
        ("eval('1')", "NameError"),
        ("input()", "NameError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "E"),
        ("llm_query(3)", "TypeError: llm_query takes one prompt"),
        ("llm_query_batched('one')", "TypeError: llm_query_batched takes a list"),
        ("llm_query_batched(['x'] * 21)", "ValueError: 21 prompts at once; at most 20"),
        ("llm_query('x' * 100001)", "ValueError: the prompts of one call may have 100,000"),
        ("llm_query('x')", "QueryError: there is no model to ask here"),
        ("FINAL_VAR('nothing')", "NameError: FINAL_VAR takes the name of a variable; 'nothing' is none of"),
        ("FINAL_VAR(['x' * 60000])", "ValueError: an answer of 60,004 characters"),
        ("x = " + "(" * 300, "Error"),
        ("x = 1\x00", "null bytes"),
    ],
)
async def test_what_goes_wrong_in_a_block_is_told_and_costs_no_names(
    opened: Opener, code: str, said: str
) -> None:
    async with opened() as repl:
        await repl.run("kept = 5")
        found = await repl.run(code)
        assert said in (found.error or "")
        assert (found.lost, found.final) == (None, None)
        assert (await repl.run("kept")).stdout == "5\n"


def test_what_the_model_is_told_has_the_start_of_the_output_and_the_end_of_the_error() -> None:
    found = CodeResult(stdout="a" * 50, error="e" * 90 + "THE END", dropped=7)
    text_for_model = found.text_for_model(40)
    assert text_for_model.startswith("a" * 19)
    assert "[38 more characters of output were cut" in text_for_model
    assert text_for_model.endswith("…" + "e" * 13 + "THE END")
    assert CodeResult().text_for_model() == "(no output)"
    assert CodeResult(stdout="x\n").text_for_model() == "x"


# ---- answers ----


async def test_an_answer_given_in_the_code_is_returned_unless_the_code_raises(opened: Opener) -> None:
    async with opened() as repl:
        assert (await repl.run("total = 6 * 7\nFINAL_VAR('total')")).final == "42"
        assert (await repl.run("FINAL_VAR('total')\n1 / 0")).final is None
        assert (await repl.run("total")).final is None
        assert (await repl.run("FINAL_VAR(3.5)")).final == "3.5"


async def test_a_variable_is_read_as_text_and_a_missing_one_is_none(opened: Opener) -> None:
    async with opened("the context") as repl:
        await repl.run(
            "n = 5\nlong = 'x' * 60000\n"
            "class Bad:\n    def __str__(self): raise ValueError('no')\nbad = Bad()\nempty = ''"
        )
        names = ("n", "context", "empty", "missing", "long", "bad", "llm_query", "__builtins__", "n + 1", "")
        found = [await repl.variable(name) for name in names]
    assert found == ["5", "the context", "", *[None] * 7]


# ---- questions ----


async def test_questions_are_answered_in_order_and_counted(opened: Opener) -> None:
    async with opened(broker=upper) as repl:
        found = await repl.run(
            "print(llm_query('one'), llm_query_batched(['b', 'a', 'c']), llm_query_batched([]))"
        )
    assert found.stdout == "ONE ['B', 'A', 'C'] []\n"
    assert found.queries == 4


async def test_a_question_that_fails_is_an_error_the_code_can_catch(opened: Opener) -> None:
    async def half(prompts: tuple[str, ...]) -> list[str | Exception]:
        return [RuntimeError(f"no answer to {prompt}") if prompt == "bad" else "fine" for prompt in prompts]

    code = (
        "try:\n    llm_query_batched(['good', 'bad', 'bad'])\n"
        "except QueryError as error:\n    print(error, error.answers)"
    )
    async with opened(broker=half) as repl:
        assert (await repl.run(code)).stdout == "no answer to bad (and 1 more of 3) ['fine', None, None]\n"
        failed = await repl.run("llm_query('bad')")
    assert (failed.error or "").endswith("QueryError: no answer to bad")


@pytest.mark.parametrize("answers", [[], ["a", "b"]])
async def test_a_broker_that_loses_answers_or_raises_fails_the_question_only(
    opened: Opener, answers: list[str]
) -> None:
    async def wrong(prompts: tuple[str, ...]) -> list[str]:
        if prompts == ("raise",):
            raise ConnectionError("the line is dead")
        return answers

    async with opened(broker=wrong) as repl:
        assert f"{len(answers)} answers for 1 questions" in ((await repl.run("llm_query('x')")).error or "")
        assert "the line is dead" in ((await repl.run("llm_query('raise')")).error or "")
        assert (await repl.run("1")).ok


async def test_waiting_for_an_answer_is_no_time_of_the_code(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(prompts: tuple[str, ...]) -> list[str]:
        pass_time(monkeypatch, 600)
        return ["late"] * len(prompts)

    async with opened(broker=slow) as repl:
        found = await repl.run("print(llm_query('x'))", seconds=60)
    assert (found.stdout, found.lost) == ("late\n", None)
    assert found.seconds < 60


# ---- lost workers ----


async def test_a_block_that_never_ends_costs_the_names_and_the_model_is_told(opened: Opener) -> None:
    async with opened("the context") as repl:
        await repl.run("x = 1")
        found = await repl.run("import time\ntime.sleep(1000)", seconds=0.3)
        assert found.lost == "wall time"
        assert "it ran longer than 0.3 s" in found.text_for_model()
        assert "every variable, function and file is gone" in found.text_for_model()
        assert (await repl.run("context")).stdout == "'the context'\n"
        assert "NameError" in ((await repl.run("x")).error or "")


async def test_a_worker_that_dies_between_blocks_is_built_anew_by_the_next_one(opened: Opener) -> None:
    async with opened() as repl:
        await repl.run("x = 1")
        assert repl._worker is not None
        repl._worker._strike()
        await repl._worker._process.wait()
        lost = await repl.run("x")
        assert lost.lost == "memory"
        assert "the system killed it" in lost.text_for_model()
        assert (await repl.run("1 + 1")).stdout == "2\n"


async def test_a_cancelled_call_kills_the_worker_and_the_next_one_gets_another(opened: Opener) -> None:
    asked = asyncio.Event()

    async def never(prompts: tuple[str, ...]) -> list[str]:
        asked.set()
        await asyncio.Event().wait()
        return []

    async with opened(broker=never) as repl:
        call = asyncio.ensure_future(repl.run("llm_query('x')"))
        await asked.wait()
        assert repl._worker is not None
        process = repl._worker._process
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert process.returncode is not None
        assert (await repl.run("1 + 1")).stdout == "2\n"


async def test_a_call_that_is_cancelled_while_the_worker_starts_leaves_nothing(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with opened() as repl:
        call = asyncio.ensure_future(repl.run("1"))
        while not any(tmp_path.iterdir()):  # noqa: ASYNC110  made by a thread that tells nobody
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await repl.run("1")).stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


async def test_blocks_asked_for_at_once_run_one_after_the_other(opened: Opener) -> None:
    async with opened() as repl:
        await repl.run("seen = []")
        await asyncio.gather(*(repl.run(f"seen.append({number})") for number in range(5)))
        assert (await repl.run("seen")).stdout == "[0, 1, 2, 3, 4]\n"


async def test_closing_ends_the_process_and_takes_the_folder_away(opened: Opener) -> None:
    async with opened() as repl:
        await repl.run("open('a.txt', 'w').write('x')")
        assert repl._worker is not None
        process, folder = repl._worker._process, Path(repl._worker._folder)
        assert folder.is_dir() != repl._worker.isolation.has("file_tree")
    assert process.returncode is not None
    assert not folder.exists()
    await repl.close()
    with pytest.raises(ReplError, match="closed"):
        await repl.run("1")


async def test_a_folder_that_is_in_memory_leaves_nothing_on_the_disk(opened: Opener) -> None:
    """Also where the program is killed before it could take anything away."""
    async with opened() as repl:
        if not (await repl.isolation()).has("file_tree"):
            pytest.skip("no file tree of its own here")
        assert repl._worker is not None
        assert not Path(repl._worker._folder).exists()
        await repl.run("with open('a.txt', 'w') as file: file.write('kept')")
        assert (await repl.run("open('a.txt').read()")).stdout == "'kept'\n"


async def test_closing_while_a_block_runs_ends_it(opened: Opener) -> None:
    async with opened() as repl:
        await repl.run("x = 1")
        call = asyncio.ensure_future(repl.run("while True: pass"))
        await asyncio.sleep(0)
        await repl.close()
        assert (await call).lost == "exit"


async def test_the_worker_ends_with_the_program(tmp_path: Path) -> None:
    """A program that is killed leaves no worker behind, also one in the middle of an endless block."""
    script = tmp_path / "program.py"
    script.write_text(
        "import asyncio\nfrom orchestrator.repl import WorkerRepl\n"
        "async def main():\n"
        "    repl = WorkerRepl()\n"
        "    await repl.isolation()\n"
        "    print(repl._worker._process.pid, repl._worker._pid, flush=True)\n"
        "    await repl.run('while True: pass')\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert program.stdout is not None
    launcher, worker = map(int, (await program.stdout.readline()).split())
    program.kill()
    await program.wait()
    async with asyncio.timeout(60):
        for pid in (launcher, worker):
            while _lives(pid):  # noqa: ASYNC110  nobody tells us of a process that is not ours
                await asyncio.sleep(0.01)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# ---- what cannot work ----


async def test_a_context_that_does_not_fit_is_said_in_one_sentence() -> None:
    limits = replace(SMALL, memory_bytes=96 * 1024 * 1024)
    async with WorkerRepl("x" * 60_000_000, limits=limits) as repl:
        with pytest.raises(ReplError, match="context does not fit into 100,663,296 bytes of memory"):
            await repl.run("1")


async def test_a_level_that_cannot_be_had_is_refused_with_what_is_missing() -> None:
    sandbox = Sandbox(least=Level.FULL, locks=frozenset({"limits", "network_namespace"}))
    async with WorkerRepl(sandbox=sandbox) as repl:
        with pytest.raises(ReplError, match="full is required; still reachable: files"):
            await repl.run("1")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ReplLimits(seconds=0), "seconds is 0; it must be a number above 0"),
        (lambda: ReplLimits(batch=1.5), "batch is 1.5"),  # type: ignore[arg-type]
        (lambda: ReplLimits(seconds=float("nan")), "seconds is nan"),
        (lambda: ReplLimits(memory_bytes=1000), "at least 67,108,864"),
        (lambda: Sandbox(locks=frozenset({"door"})), "no such lock: door"),
        (lambda: Sandbox(least=9), "give Level.LIMITS"),  # type: ignore[arg-type]
        (lambda: WorkerRepl(limits=5), "5 is no ReplLimits"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_when_it_is_said(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=said):
        make()


async def test_a_small_block_takes_milliseconds(opened: Opener) -> None:
    """The fastest of fifty has no pause in it, unless somebody put one into each by accident."""
    async with opened() as repl:
        taken = []
        for _ in range(50):
            began = time.monotonic()
            await repl.run("1")
            taken.append(time.monotonic() - began)
        assert min(taken) < 0.1
