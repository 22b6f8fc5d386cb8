"""Generated traces in which a careful reader sees a stall at limit 3; see `corpus`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from orchestrator_guards import StallKind
from tests.guards.corpus import Trace, bad, call, each, one, pairs, rounds


def repeat_results() -> Iterator[Trace]:
    kind = StallKind.REPEAT_RESULT
    read = one("read_file", {"path": "a.py", "lines": 20}, "import os")
    mixed = (call("read_file", {"path": "a"}, "A"), call("read_file", {"path": "b"}, "B"))
    texts = ('{"a": 1, "b": [2, 3]}', '{"b": [2, 3], "a": 1}', '{"a":1,"b":[2,3]}', ' {"b":[2,3],\n"a":1}')
    empties = ("", "null", "{}", " ")
    work = each(10, lambda i: one("edit", {"line": i}))
    missing = bad("read_file", {"path": "no.py"}, "no such file")
    full = one("next_page", {}, "no more pages", failed=True, policy="cumulative")
    yield Trace("same read four times", kind, "nothing new", [read] * 4)
    yield Trace("same read seven times", kind, "nothing new", [read] * 7)
    yield Trace("same missing file", kind, "the file will not appear", [missing] * 5)
    yield Trace("same batch", kind, "both files are known", [mixed] * 4)
    yield Trace("same batch in another order", kind, "order means nothing", rounds(2, mixed, mixed[::-1]))
    yield Trace("same call three in a batch, four times", kind, "the batch adds nothing", [read * 3] * 4)
    yield Trace("same arguments written otherwise", kind, "same JSON", [one("f", text) for text in texts])
    yield Trace("no arguments written otherwise", kind, "no arguments", [one("f", text) for text in empties])
    yield Trace(
        "tool name in another case", kind, "one tool", [one(n, {}) for n in ("Get", "get", "GET", "gEt")]
    )
    yield Trace("same result written otherwise", kind, "same JSON", [one("f", {}, text) for text in texts])
    yield Trace("broken arguments", kind, "never JSON", [bad("f", '{"path": "a', "invalid")] * 4)
    yield Trace("after ten good turns", kind, "worked, then stuck", [*work, *[read] * 4])
    yield Trace("stuck, then free again", kind, "four times before it moved on", [*[read] * 4, *work])
    yield Trace(
        "waits for ever with a strict tool", kind, "no poll declared", [one("status", {}, "pending")] * 8
    )
    yield Trace(
        "polls for ever", kind, "31 times the same answer", [one("status", {}, "pending", policy="poll")] * 40
    )
    yield Trace("a page after the last", kind, "a failed call is no progress", [full] * 5)
    yield Trace(
        "same long result", kind, "5 kB of the same", [one("fetch", {"url": "x"}, "lorem ipsum " * 450)] * 4
    )


def repeats() -> Iterator[Trace]:
    kind = StallKind.REPEAT
    batch = (call("read", {"p": 1}, "A"),)
    yield Trace(
        "stamped result",
        kind,
        "only the clock moves",
        each(8, lambda i: one("health", {}, json.dumps({"state": "down", "at": 1700000000 + i}))),
    )
    yield Trace(
        "request ids", kind, "only the id moves", each(9, lambda i: one("find", {"q": "x"}, f"none [r{i}]"))
    )
    yield Trace(
        "latency", kind, "only the latency moves", each(12, lambda i: one("find", {"q": "x"}, f"0 in {i} ms"))
    )
    yield Trace(
        "stamped batch", kind, "one of two moves", each(8, lambda i: (*batch, *one("now", {}, str(i))))
    )
    yield Trace(
        "polls for ever, stamped",
        kind,
        "sixty answers and it is not ready",
        each(70, lambda i: one("status", {}, f"pending at {i}", policy="poll")),
    )
    yield Trace(
        "stamped error", kind, "fails with another trace id", each(8, lambda i: bad("put", {}, f"500 {i}"))
    )


def alternations() -> Iterator[Trace]:
    kind = StallKind.ALTERNATION
    a, b, c, d = (one("read", {"path": p}, f"text of {p}") for p in "abcd")
    fails = bad("build", {}, "link error")
    pair = (call("read", {"path": "x"}, "X"), call("read", {"path": "y"}, "Y"))
    eight = each(8, lambda i: one("read", {"path": f"{i}.py"}, f"text {i}"))
    yield Trace("two files in turn", kind, "A,B four times", rounds(4, a, b))
    yield Trace("two files in turn, long", kind, "A,B eight times", rounds(8, a, b))
    yield Trace("three files in turn", kind, "A,B,C four times", rounds(4, a, b, c))
    yield Trace("four files in turn", kind, "A,B,C,D four times", rounds(4, a, b, c, d))
    yield Trace("eight files in turn", kind, "a long way round", rounds(4, *eight))
    yield Trace("twice one, once the other", kind, "A,A,B four times", rounds(4, a, a, b))
    yield Trace("look and fail", kind, "looks, builds, fails alike", rounds(4, a, fails))
    yield Trace("batch and single", kind, "batch order changes only", rounds(2, pair, a, pair[::-1], a))
    yield Trace("call and talk", kind, "announces, reads, announces", rounds(4, "Let me read it.", a))
    yield Trace(
        "after good work",
        kind,
        "worked, then to and fro",
        each(9, lambda i: one("edit", {"line": i})) + rounds(4, a, b),
    )
    yield Trace(
        "poll and sleep for ever",
        kind,
        "31 rounds",
        rounds(33, one("sleep", {"s": 5}), one("status", {}, "no", policy="poll")),
    )
    yield Trace(
        "edit and undo",
        kind,
        "does and undoes the same edit",
        rounds(4, one("edit", {"l": 1}), one("undo", {})),
    )
    yield Trace(
        "alternates, results stamped",
        kind,
        "NOT SEEN: cycles are compared with their results",
        pairs(6, lambda i: (a, one("health", {}, f"down at {i}"))),
    )
    yield Trace(
        "thinks between equal failures",
        kind,
        "NOT SEEN: the thought differs each time",
        pairs(6, lambda i: (fails, one("think", {"thought": f"try {i}"}, ""))),
    )


def error_cycles() -> Iterator[Trace]:
    kind = StallKind.ERROR_CYCLE
    denied = "permission denied"
    yield Trace(
        "guesses names", kind, "same refusal each time", each(5, lambda i: bad("open", {"n": i}, "not found"))
    )
    yield Trace(
        "guesses ids, id in message",
        kind,
        "eight guesses, all wrong",
        each(8, lambda i: bad("open", {"n": i}, f"no {i}")),
    )
    yield Trace(
        "other tools, same refusal",
        kind,
        "no rights at all",
        each(4, lambda i: bad(f"tool_{i}", {"n": i}, denied)),
    )
    yield Trace(
        "batches that fail",
        kind,
        "every call of every batch",
        each(5, lambda i: bad("put", {"n": i}, denied) * 2),
    )
    yield Trace(
        "schema guessed",
        kind,
        "same validation error",
        each(6, lambda i: bad("book", {"d": i}, '{"error": "date"}')),
    )
    yield Trace(
        "rate limited", kind, "hammers a closed door", each(6, lambda i: bad("search", {"q": f"q{i}"}, "429"))
    )
    yield Trace(
        "shell without luck",
        kind,
        "nine commands, nine errors",
        each(9, lambda i: bad("bash", {"c": i}, f"exit {i}")),
    )
    yield Trace(
        "good start, then only errors",
        kind,
        "worked, then the door is closed",
        each(5, lambda i: one("put", {"n": i})) + each(5, lambda i: bad("put", {"n": i + 9}, denied)),
    )
    yield Trace(
        "cards refused",
        kind,
        "tau-bench's refusal, four cards",
        each(4, lambda i: bad("update", {"card": i}, "Error: gift card balance is not enough")),
    )


def monologues() -> Iterator[Trace]:
    kind = StallKind.MONOLOGUE
    yield Trace("says the same", kind, "no answer, no call", ["I will now look into it."] * 4)
    yield Trace("says nothing", kind, "empty answers", [""] * 4)
    yield Trace("asks the same", kind, "nobody answers", ["Shall I continue?"] * 6)
    yield Trace("same text, other blanks", kind, "same words", ["a b", "a  b", " a b", "a\nb"])
    yield Trace(
        "works, then talks",
        kind,
        "worked, then talk",
        [*each(5, lambda i: one("put", {"n": i})), *["Done?"] * 4],
    )
    yield Trace("broken JSON again", kind, "same unusable answer", ['{"answer": '] * 5)
    yield Trace(
        "same thing in other words",
        kind,
        "NOT SEEN: words differ",
        ["I'll check.", "I will check.", "Let me check.", "Checking.", "I check."],
    )


def stalls() -> list[Trace]:
    return [*repeat_results(), *repeats(), *alternations(), *error_cycles(), *monologues()]
