"""Ten megabytes searched by code with sub-calls: no request of the run carries more than 20 kB of messages."""

from __future__ import annotations

import json
import random

import pytest

from orchestrator import Request
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.testing import FunctionLLM

SIZE = 10_000_000
MOST = 20_000
"""Bytes of the messages of one request, as JSON."""
NEEDLES = 5

LOOK = "```repl\nprint(type(context).__name__, len(context), context.count('\\n'))\nprint(context[:300])\n```"
SEARCH = """```repl
import re

spots = [m.start() for m in re.finditer("access code", context)]
print(len(spots), "places")
parts = [context[max(0, at - 2_000) : at + 2_000] for at in spots]
codes = llm_query_batched([f"Which code is named here? Answer with the code alone.\\n\\n{part}" for part in parts])
print(codes)
```"""
FLOOD = "```repl\nprint(context)\n```"
ANSWER = "```repl\nanswer = ' '.join(sorted(codes))\nprint(len(answer))\n```\nFINAL_VAR(answer)"


def haystack(seed: int) -> tuple[str, list[str]]:
    """Return the text and the codes that are hidden in it."""
    chance = random.Random(seed)
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(2_000)
    ]
    lines, size = [], 0
    while size < SIZE:
        lines.append(" ".join(chance.choices(words, k=12)))
        size += len(lines[-1]) + 1
    codes = [f"{chance.randrange(10**8):08d}" for _ in range(NEEDLES)]
    share = len(lines) // NEEDLES  # of the text for each: no part that is read has two
    for place, code in enumerate(codes):
        at = place * share + chance.randrange(share // 10, share)
        lines.insert(at, f"The access code is {code}, keep it.")
    return "\n".join(lines), codes


def size_of(request: Request) -> int:
    return len(json.dumps([message.to_openai() for message in request.messages]).encode())


@pytest.mark.parametrize(
    ("turns", "limits"),
    [
        ((LOOK, SEARCH, ANSWER), RlmLimits()),
        ((LOOK, FLOOD, SEARCH, ANSWER), RlmLimits(result_chars=4_000)),
    ],
    ids=["defaults", "code that prints all of it"],
)
async def test_ten_megabytes_are_searched_with_small_requests(
    seed: int, turns: tuple[str, ...], limits: RlmLimits
) -> None:
    text, codes = haystack(seed)
    assert len(text) >= SIZE

    def root(request: Request) -> str:
        return turns[sum(message.role == "assistant" for message in request.messages)]

    def reader(request: Request) -> str:
        (message,) = request.messages
        return message.text.partition("The access code is ")[2][:8]

    llm, sub_llm = FunctionLLM(root), FunctionLLM(reader)
    result = await Rlm(llm, sub_model=sub_llm, limits=limits, observers=()).run("Which codes?", text)

    assert result.outcome is Outcome.COMPLETED, result.error
    assert result.output == " ".join(sorted(codes))
    assert (len(llm.requests), len(sub_llm.requests), result.sub_calls) == (len(turns), NEEDLES, NEEDLES)
    sizes = [size_of(request) for request in (*llm.requests, *sub_llm.requests)]
    assert max(sizes) < MOST, sizes
    cut = [
        message.text
        for message in llm.requests[-1].messages
        if "characters of output were cut" in message.text
    ]
    assert len(cut) == turns.count(FLOOD)


async def test_code_that_asks_for_ever_is_refused_by_the_limit_that_is_there_by_default() -> None:
    turns = (
        "```repl\nsaid = 0\nwhile True:\n    llm_query('again')\n    said += 1\n```",
        "```repl\nfound = str(said)\n```\nFINAL_VAR(found)",
    )

    def root(request: Request) -> str:
        return turns[sum(message.role == "assistant" for message in request.messages)]

    llm, sub_llm = FunctionLLM(root), FunctionLLM(lambda _request: "yes")
    result = await Rlm(llm, sub_model=sub_llm, observers=()).run("p", "a text")
    assert (result.outcome, result.output, result.sub_calls) == (Outcome.COMPLETED, "1000", 1_000)
    assert len(sub_llm.requests) == 1_000
    assert "QueryError: sub_calls: 1000 of 1000 used" in llm.requests[-1].messages[-1].text
