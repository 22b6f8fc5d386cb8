"""Blocks and answers in a reply: a corpus as data, properties, and time that grows with the length and no faster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.machines.rlm.reply import FinalAnswer, Reply, code_blocks, final_answer, read

CORPUS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "answers" / "corpus.json").read_text(encoding="utf-8")
)


def test_the_corpus_has_all_bugs_of_the_original() -> None:
    assert len(CORPUS) >= 80
    assert len({case["name"] for case in CORPUS}) == len(CORPUS)
    assert {case["bug"] for case in CORPUS if "bug" in case} == {
        "an apostrophe gave no answer",
        "FINAL inside a repl block counted",
        "a smiley cut the answer",
        "an empty FINAL was an answer",
        "the error text became the answer",
    }


@pytest.mark.parametrize("case", CORPUS, ids=[case["name"] for case in CORPUS])
def test_a_reply_is_read_as_the_corpus_says(case: dict[str, Any]) -> None:
    final = FinalAnswer(*case["final"]) if case["final"] else None
    assert read(case["text"]) == Reply(tuple(case["blocks"]), final, case["unclosed"])
    assert code_blocks(case["text"]) == tuple(case["blocks"])
    assert final_answer(case["text"]) == final


# ---- any text at all ----

PIECES = st.sampled_from(
    [
        *(
            "FINAL(",
            "FINAL_VAR(",
            "FINAL()",
            "FINAL(42)",
            "FINAL_VAR(x)",
            "**FINAL(",
            "```repl\n",
            "```\n",
            "````\n",
        ),
        *(
            "~~~\n",
            "~~~~repl\n",
            "```python\n",
            "(",
            ")",
            "))",
            ":)",
            ":(",
            ";-)",
            "'",
            '"',
            "`",
            "``",
            "\n",
            "\n\n",
        ),
        *(
            "\r\n",
            " ",
            "\t",
            "    ",
            "a",
            "don't ",
            "1) ",
            "[0, 1) ",
            "x",
            "\0",
            "\u2028",
            "é",
            "𝟘",
            "\\",
            ".",
            "*",
        ),
    ]
)
REPLIES = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=60).map("".join))


@given(REPLIES)
def test_any_text_is_read_and_what_is_found_was_in_it(text: str) -> None:
    reply = read(text)
    plain = text.replace("\r\n", "\n")
    for block in reply.blocks:
        assert all(line.strip(" \t") in plain for line in block.split("\n"))
    if reply.final is not None:
        assert reply.final.value in plain
        assert reply.final.value == reply.final.value.strip()
        assert reply.final.value
    assert len(reply.blocks) <= plain.count("repl")
    assert read(text) == reply


@given(REPLIES)
def test_text_before_that_holds_no_marks_changes_nothing(text: str) -> None:
    reply = read(text)
    assert read("Let me think about it.\n\n" + text) == reply


@given(st.text(st.characters(exclude_characters="()`~\"'\r", exclude_categories=["Cs"]), min_size=1))
def test_an_answer_without_marks_comes_back_as_it_was(answer: str) -> None:
    lines = answer.split("\n")
    if not answer.strip() or any(line.lstrip(" \t*").startswith("FINAL") for line in lines):
        return
    assert final_answer(f"Done.\nFINAL({answer})") == FinalAnswer("text", answer.strip())


@given(st.from_regex(r"[^\W\d]\w{0,20}", fullmatch=True))
def test_every_name_is_a_variable(name: str) -> None:
    assert final_answer(f"FINAL_VAR({name})") == FinalAnswer("variable", name)


@given(st.lists(st.text(st.characters(exclude_characters="`~\r", exclude_categories=["Cs"])), max_size=6))
def test_blocks_come_back_as_they_were(blocks: list[str]) -> None:
    text = "\n".join(f"Block:\n```repl\n{block}\n```" for block in blocks)
    assert code_blocks(text) == tuple(
        block.removesuffix("\n") if block == "\n" else block for block in blocks
    )


# ---- time ----

HOSTILE: dict[str, Callable[[int], str]] = {
    "spaces": lambda n: " " * n,
    "line ends": lambda n: "\n" * n,
    "back ticks": lambda n: "`" * n,
    "tildes": lambda n: "~" * n,
    "fences that open and close": lambda n: "```\n" * (n // 4),
    "fences that only open": lambda n: "```a\n" * (n // 5),
    "fences with back ticks behind": lambda n: ("`" * 50 + "x`\n") * (n // 53),
    "blocks that only open": lambda n: "```repl\n" * (n // 8),
    "answers that only open": lambda n: "FINAL(\n" * (n // 7),
    "answers between fences": lambda n: "FINAL(x)\n```a\n```\n" * (n // 18),
    "one answer over many fences": lambda n: "FINAL(" + "```a\n```\n)" * (n // 10),
    "parentheses that open": lambda n: "FINAL(" + "(" * n,
    "parentheses that close": lambda n: "FINAL(" + ")" * n,
    "closing ones with spaces": lambda n: "FINAL(" + ") " * (n // 2),
    "closing ones on lines": lambda n: "FINAL(" + "\n)" * (n // 2),
    "marks behind a closing one": lambda n: "FINAL()" + "." * n + ")",
    "smileys": lambda n: "FINAL(" + ":) " * (n // 3),
    "single quotes": lambda n: "FINAL(" + " 'a" * (n // 3),
    "double quotes": lambda n: "FINAL(a " + '"' * n,
    "a quote that is not closed": lambda n: 'FINAL("' + "a" * n,
    "a variable without an end": lambda n: "FINAL_VAR(" + "a" * n,
    "a variable of spaces": lambda n: "FINAL_VAR(" + " " * n + ")",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_reply_takes_longer_than_its_length_allows(name: str) -> None:
    """What is quadratic takes 2,500,000,000 steps here; `make bench` has the time for each character."""
    text = HOSTILE[name](50_000)
    began = time.process_time()
    read(text)
    assert time.process_time() - began < 5
