"""Every line that our code writes is listed in the schema, so that whoever reads the log knows all there are."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.syntax import nodes

pytestmark = pytest.mark.check

ROOT = Path(__file__).parents[2]
FOLDERS = ("orchestrator", "callbacks", "guards")
SCHEMA = json.loads((ROOT / "orchestrator/telemetry/log_schema.json").read_text(encoding="utf-8"))

LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log", "msg", "say"}
"""What a call is named that writes a line; `say` is how the log keeps the method of a level."""
NAME = re.compile(r"[a-z]+(?:\.[a-z_]+)+")


def listed() -> set[str]:
    """The names under $defs."""
    return {name for kind in SCHEMA["$defs"].values() for name in kind["properties"]["msg"]["enum"]}


def written(source: str) -> Iterator[str]:
    """The names of the lines that a module writes: dotted texts that come first in a call of a level, or are a msg."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes(source):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    for node in nodes(source):
        for said in _said(node):
            for place in given.get(said.id, []) if isinstance(said, ast.Name) else [said]:
                texts = (part.value for part in ast.walk(place) if isinstance(part, ast.Constant))
                yield from (text for text in texts if isinstance(text, str) and NAME.fullmatch(text))


def _said(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and node.args:
        called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
        if called in LEVELS:
            yield node.args[0]
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "msg":
                yield value


def test_every_name_of_a_line_in_the_code_is_listed_and_every_listed_one_is_written() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    found = {name for file in files for name in written(file.read_text(encoding="utf-8"))}
    assert found == listed()


def test_a_line_that_is_not_listed_would_be_found() -> None:
    assert list(written('logger_from_context().warning("context.odd", a=1)')) == ["context.odd"]
    assert list(written('text = "run.c"; logger.info(text); fields = {"msg": "run.d"}')) == ["run.c", "run.d"]
    assert list(written('say("run.a" if new else "run.b")')) == ["run.a", "run.b"]
    assert list(written('logger.error("a sentence for people")')) == []
