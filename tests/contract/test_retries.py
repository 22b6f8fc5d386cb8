"""Every retry goes through `orchestrator.llm.retry`: no loop of the package tries a thing again by itself.

A loop is taken for a retry where it catches an error, repeats after it, and either leaves after a success or waits
before it repeats. A loop over things that are there is none: each turn of it is about another thing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.contract.syntax import tree

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("orchestrator", "callbacks", "guards")

ALLOWED: dict[str, str] = {
    "orchestrator/cli/runs/listing.py:_watch": "prints a listing again at each interval",
    "orchestrator/cli/runs/events.py:_follow": "a poll: prints what is new, and the timeout is its interval",
    "orchestrator/cli/metrics.py:_serve": "a poll: reads the journal, and the timeout is its interval",
    "orchestrator/console/feed.py:Feed._watch": "a poll: reads the version of the journal, also after a success",
    "orchestrator/engines/engine_directory.py:Registration.listen": "a poll: looks for commands, also after a success",
    "orchestrator/engines/orphan_recovery.py:OrphanRecovery.keep": "a poll: looks for orphaned runs",
    "orchestrator/engines/worker.py:Worker._reap": "a poll: looks for dead workers, also after a success",
    "orchestrator/kernel/driver.py:Driver._loop_over_events": "each turn is another event, an error fires one",
    "orchestrator/kernel/journal.py:waited": "awaits one write to its end; the caller gets its error",
    "orchestrator/telemetry/metrics.py:SharedGauges._run": "a heartbeat: writes figures, also after a success",
    "orchestrator/telemetry/watchdog.py:Watchdog._beat": "a heartbeat: measures, also after a success",
    "orchestrator/runtime/service/evicted_runs.py:_Watcher._watch": "a poll: reads the journal, also after a success",
    "orchestrator/runtime/service/run_service.py:RunService.outlast": "waits for news of a run before each read",
    "orchestrator/runtime/service/inbox.py:_Listener._listen": "a poll: looks for requests, also after a success",
    "orchestrator/runtime/runs/runs.py:RunFollower.until_end": "a poll: reads what is new, also after a success",
    "orchestrator/runtime/approval/status.py:_listen": "a poll: looks for requests, also after a success",
    "orchestrator/runtime/notification.py:Notifier._watch": "a poll: reads the journal, also after a success",
    "orchestrator/runtime/approval/status.py:lost": "each turn reads another command",
}
"""File:function -> why its loop is no retry."""

Loop = ast.While | ast.For | ast.AsyncFor
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def inside(nodes: Sequence[ast.AST], *, barred: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Nodes below, without what lies inside of the barred ones."""
    for node in nodes:
        yield node
        if not isinstance(node, barred):
            yield from inside(list(ast.iter_child_nodes(node)), barred=barred)


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a block can never be followed by another turn of its loop."""
    match body[-1]:
        case ast.Return() | ast.Raise() | ast.Break():
            return True
        case ast.If(body=then, orelse=other):
            return bool(other) and leaves(then) and leaves(other)
        case ast.With(body=within) | ast.AsyncWith(body=within):
            return leaves(within)
        case _:
            return False


def name_of(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]


def is_cancellation(caught: ast.expr | None) -> bool:
    """A wait that is taken up again after a cancellation keeps it: that has its own tests."""
    return caught is not None and name_of(caught) == "CancelledError"


def suppressed(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.With):
        for item in node.items:
            if isinstance(item.context_expr, ast.Call) and name_of(item.context_expr) == "suppress":
                yield from item.context_expr.args


def repeats_after_an_error(nodes: Sequence[ast.AST]) -> bool:
    for node in nodes:
        if isinstance(node, ast.Try) and any(
            not leaves(handler.body) and not is_cancellation(handler.type) for handler in node.handlers
        ):
            return True
        if not all(map(is_cancellation, suppressed(node))):
            return True
    return False


def leaves_after_a_success(nodes: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(below, ast.Return | ast.Break)
        for node in nodes
        if isinstance(node, ast.Try)
        for below in inside([*node.body, *node.orelse], barred=(*_SCOPES, *_LOOPS))
    )


def waits(nodes: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Call) and name_of(node) in {"sleep", "wait", "wait_for"} for node in nodes
    )


_SCOPES: tuple[type[ast.AST], ...] = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS: tuple[type[ast.AST], ...] = (ast.While, ast.For, ast.AsyncFor)


def counts(loop: Loop) -> bool:
    """Whether it repeats one thing: `for` over numbers, or `while` whose condition fetches no other one."""
    if isinstance(loop, ast.While):
        return not (isinstance(loop.test, ast.Compare) and isinstance(loop.test.left, ast.NamedExpr))
    return name_of(loop.iter) in {"range", "count", "repeat"}


def is_retry(loop: Loop) -> bool:
    within = list(inside(loop.body, barred=(*_SCOPES, *_LOOPS)))
    return (
        counts(loop)
        and repeats_after_an_error(within)
        and (leaves_after_a_success(within) or waits(list(inside(loop.body, barred=_SCOPES))))
    )


def retries(source: str) -> list[str]:
    """Qualified names of the functions that have such a loop."""
    if not re.search(r"\b(try|suppress)\b", source):  # half of the modules: a search is faster than a parser
        return []

    def visit(node: ast.AST, path: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            path = (*path, node.name)
        if isinstance(node, Loop) and is_retry(node):
            yield ".".join(path)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, path)

    return list(visit(tree(source), ()))


@functools.cache
def found() -> list[str]:
    files = sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))
    assert len(files) > 400
    return [
        f"{file.relative_to(ROOT).as_posix()}:{name}"
        for file in files
        for name in retries(file.read_text(encoding="utf-8"))
    ]


def test_every_retry_goes_through_the_retry_policy() -> None:
    assert sorted(set(found()) - ALLOWED.keys()) == []


def test_every_exception_is_still_needed() -> None:
    assert sorted(ALLOWED.keys() - set(found())) == []


RETRIES = {
    "counted": """
def f():
    for attempt in range(3):
        try:
            return call()
        except OSError:
            if attempt == 2:
                raise
""",
    "for ever, with a wait": """
async def f():
    while True:
        try:
            await call()
            break
        except Exception:
            log()
        await clock.sleep(1)
""",
    "by a verdict": """
async def f():
    again = 0
    while True:
        try:
            found = await ask(again)
        except Unusable as error:
            wrong = error
        else:
            return found
        again += 1
""",
    "a restart after each end": """
async def f():
    while not self.ceased:
        try:
            await work()
        except Exception:
            log()
        await asyncio.sleep(1)
""",
    "with suppress": """
def f():
    while True:
        with contextlib.suppress(OSError):
            call()
        time.sleep(1)
""",
    "around another loop": """
def f():
    while not queue.empty():
        for number in itertools.count():
            try:
                call()
                break
            except OSError:
                pass
""",
}

NO_RETRIES = {
    "over things": """
def f(things):
    for thing in things:
        try:
            return call(thing)
        except OSError:
            continue
""",
    "every error leaves": """
def f():
    while True:
        try:
            head = read()
        except Unknown:
            return None
        if head.ended:
            return head
""",
    "a wait that keeps a cancellation": """
async def f():
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
""",
    "the same with suppress": """
async def f():
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
""",
    "each thing of a queue": """
def f():
    while (thing := queue.get()) is not None:
        try:
            return call(thing)
        except OSError:
            continue
""",
    "no error is caught": """
async def f():
    while not ended():
        await asyncio.sleep(1)
""",
    "a function that is only defined there": """
def f():
    while True:
        def g():
            try:
                return call()
            except OSError:
                return None
        take(g)
""",
}


@pytest.mark.parametrize("source", RETRIES.values(), ids=RETRIES)
def test_a_hand_written_retry_is_found(source: str) -> None:
    assert retries(source) == ["f"]


@pytest.mark.parametrize("source", NO_RETRIES.values(), ids=NO_RETRIES)
def test_a_loop_that_tries_nothing_again_is_not_taken_for_one(source: str) -> None:
    assert retries(source) == []
