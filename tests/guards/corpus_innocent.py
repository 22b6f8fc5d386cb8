"""Generated traces in which nothing is wrong, however alike the turns are; see `corpus`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.guards.corpus import Trace, bad, call, each, one, pairs, rounds


def innocent_calls() -> Iterator[Trace]:
    files = ("a.pdf", "b.pdf", "c.pdf")
    attach = [call("attach_file", {"name": name}) for name in files]
    read = one("read_file", {"path": "a"}, "A")
    git = one("git_status", {}, "clean")
    mixed = (call("read", {"p": "a"}, "A"), call("read", {"p": "b"}, "B"))
    on, off = one("lamp", {"on": True}), one("lamp", {"on": False})
    append = one("append", {"text": "-"}, policy="cumulative")
    yield Trace("attach three files at once", None, "three files", [tuple(attach)])
    yield Trace("attach three files", None, "three files", [(one_file,) for one_file in attach])
    yield Trace(
        "attach twelve files", None, "twelve files", each(12, lambda i: one("attach_file", {"name": i}))
    )
    yield Trace("attach one file ten times", None, "declared cumulative", [append] * 10)
    yield Trace(
        "next page",
        None,
        "declared cumulative",
        each(9, lambda i: one("next_page", {}, f"p{i}", policy="cumulative")),
    )
    yield Trace(
        "next page, some alike",
        None,
        "declared cumulative",
        [one("next_page", {}, "empty", policy="cumulative")] * 9,
    )
    yield Trace(
        "pages by number", None, "arguments differ", each(15, lambda i: one("page", {"n": i}, "no match"))
    )
    yield Trace(
        "pages by cursor",
        None,
        "arguments differ",
        each(15, lambda i: one("page", {"cursor": f"c{i}"}, "[]")),
    )
    yield Trace("read three times", None, "two repeats", [read] * 3)
    yield Trace("batch three times", None, "two repeats", [mixed] * 3)
    yield Trace(
        "batches of the same tools",
        None,
        "arguments differ",
        each(8, lambda i: (*one("a", {"i": i}), *one("b", {"i": i}))),
    )
    yield Trace(
        "read, write, read …",
        None,
        "every edit differs",
        pairs(8, lambda i: (one("read", {}, f"v{i}"), one("edit", {"i": i}))),
    )
    yield Trace(
        "edit and test",
        None,
        "every edit differs, tests still fail",
        pairs(6, lambda i: (one("edit", {"i": i}), bad("test", {}, "1 failed"))),
    )
    yield Trace(
        "status after each step", None, "other work between", pairs(8, lambda i: (one("add", {"f": i}), git))
    )
    yield Trace("blinks three times", None, "asked to blink", rounds(3, on, off))
    yield Trace("three rounds of three", None, "two repeats of the cycle", rounds(3, read, git, on))
    yield Trace("five dice", None, "asked for five", each(5, lambda i: one("dice", {}, str(i))))
    yield Trace(
        "clock between steps",
        None,
        "other work between",
        pairs(8, lambda i: (one("now", {}, str(i)), one("log", {"i": i}))),
    )
    yield Trace(
        "goes back to a file",
        None,
        "four visits, other work between",
        pairs(5, lambda i: (read, one("edit", {"i": i}), one("test", {"i": i}))),
    )
    yield Trace(
        "same result everywhere",
        None,
        "every call differs",
        each(12, lambda i: one(f"tool_{i % 3}", {"i": i})),
    )
    yield Trace(
        "array order counts", None, "other arguments", [one("sum", f"[{i}, {9 - i}]") for i in range(8)]
    )
    yield Trace("one answer", None, "done", ["42"])
    yield Trace("three different drafts", None, "each is new", ["draft 1", "draft 2", "draft 3", "draft 4"])
    yield Trace("same draft three times", None, "two repeats", ["draft"] * 3)
    yield Trace(
        "case of arguments counts",
        None,
        "other files",
        [one("cat", {"f": f}) for f in ("a", "A", "aa", "AA")],
    )
    yield Trace(
        "five runs asked for",
        None,
        "WRONGLY STOPPED: the task says run it five times; undeclared",
        [one("bench", {}, "ok")] * 5,
    )
    yield Trace(
        "undeclared next page",
        None,
        "WRONGLY STOPPED: eight pages, undeclared",
        each(8, lambda i: one("next_page", {}, f"p{i}")),
    )


def innocent_waits() -> Iterator[Trace]:
    pending = one("status", {"job": 7}, "pending", policy="poll")
    done = one("status", {"job": 7}, "done", policy="poll")
    sleep = one("sleep", {"s": 5})
    down = one("ping", {}, "refused", failed=True, policy="poll")
    strict = one("status", {"job": 7}, "pending")
    yield Trace("polls three times", None, "then it is done", [*[pending] * 3, done])
    yield Trace("polls twenty times", None, "then it is done", [*[pending] * 20, done])
    yield Trace("polls thirty times", None, "the last one that is allowed", [*[pending] * 30, done])
    yield Trace("polls and sleeps", None, "then it is done", [*rounds(12, sleep, pending), done])
    yield Trace("polls and sleeps in one batch", None, "then it is done", [*[sleep + pending] * 12, done])
    yield Trace(
        "polls two jobs",
        None,
        "both will end",
        rounds(9, pending, one("status", {"job": 8}, "pending", policy="poll")),
    )
    yield Trace(
        "watches progress",
        None,
        "per cent rise",
        each(25, lambda i: one("status", {}, f"{i * 4} %", policy="poll")),
    )
    yield Trace(
        "server comes up",
        None,
        "refused until it is up",
        [*[down] * 12, one("ping", {}, "pong", policy="poll")],
    )
    yield Trace(
        "strict poll, short", None, "two repeats", [strict, strict, strict, one("status", {"job": 7}, "done")]
    )
    yield Trace(
        "strict poll, percent", None, "per cent rise", each(6, lambda i: one("status", {}, f"{i * 20} %"))
    )
    yield Trace(
        "strict poll that ends",
        None,
        "WRONGLY STOPPED: it would have ended; no poll declared",
        [*[strict] * 5, one("status", {"job": 7}, "done")],
    )


def innocent_errors() -> Iterator[Trace]:
    fail = bad("put", {"n": 1}, "timeout")
    yield Trace("fails once, works", None, "recovered", [fail, one("put", {"n": 1})])
    yield Trace("fails three times, works", None, "two repeats", [*[fail] * 3, one("put", {"n": 1})])
    yield Trace(
        "three guesses",
        None,
        "third is right",
        [*each(3, lambda i: bad("open", {"n": i}, "none")), one("open", {"n": 9})],
    )
    yield Trace(
        "six different errors",
        None,
        "learns from each",
        each(6, lambda i: bad("bash", {"c": i}, f"error {i}")),
    )
    yield Trace(
        "errors everywhere",
        None,
        "other tool, other error",
        each(8, lambda i: bad(f"t{i}", {"i": i}, f"e{i}")),
    )
    yield Trace(
        "every other call fails",
        None,
        "half succeed",
        each(12, lambda i: one("put", {"n": i}, "full" if i % 2 else "ok", failed=bool(i % 2))),
    )
    yield Trace(
        "one of two fails",
        None,
        "the other succeeds",
        each(8, lambda i: (call("a", {"i": i}, "no", failed=True), call("b", {"i": i}))),
    )
    yield Trace(
        "three errors, talk, three errors",
        None,
        "asks the user between",
        [*[fail] * 3, "Which one?", *each(3, lambda i: bad("open", {"n": i}, "none"))],
    )
    yield Trace(
        "fails, looks, fixes",
        None,
        "each fix differs",
        pairs(7, lambda i: (bad("build", {}, f"error in line {i}"), one("edit", {"l": i}))),
    )


def innocent() -> list[Trace]:
    return [*innocent_calls(), *innocent_waits(), *innocent_errors()]
