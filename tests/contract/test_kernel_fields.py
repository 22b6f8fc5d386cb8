"""Only the kernel writes the parts of a run; other modules call methods of `Run`."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

import pytest

from orchestrator.kernel.run import Control, Cursor, PendingWrites, Run
from tests.contract.syntax import nodes
from tests.contract.test_layers import ROOT, modules

PARTS = {"cursor", "control", "writes"}


def _targets(source: str) -> Iterator[ast.expr]:
    for node in nodes(source):
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target
        elif isinstance(node, ast.Delete):
            yield from node.targets


def _attributes(target: ast.expr) -> Iterator[ast.Attribute]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _attributes(one)
    elif isinstance(target, ast.Attribute):
        yield target


def _is_part(node: ast.expr) -> bool:
    """Return whether this is a part of a run; an object of another class may have an attribute of that name itself."""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, ast.Attribute) and node.attr in PARTS and not own


def writes_to_parts(source: str) -> list[str]:
    """Return each assignment in `source` to a part of a run or to a field of one."""
    if not re.search(rf"\b({'|'.join(PARTS)})\b", source):  # most modules: a search is faster than a parser
        return []
    found = [
        (attribute.lineno, ast.unparse(attribute))
        for target in _targets(source)
        for attribute in _attributes(target)
        if _is_part(attribute) or _is_part(attribute.value)
    ]
    return [f"{line}: {text}" for line, text in sorted(found)]


@pytest.mark.check
def test_no_module_outside_the_kernel_writes_a_field_of_a_run() -> None:
    found = {
        name: written
        for name, path in modules(ROOT).items()
        if not name.startswith("orchestrator.kernel.")
        and (written := writes_to_parts(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_the_search_finds_every_kind_of_assignment() -> None:
    source = """
run.cursor.seq = 1
a, run.control.halted = 1, 2
self.run.writes.stay += 1
run.cursor = x
del self.run.control
self.cursor = x.cursor
"""
    assert writes_to_parts(source) == [
        "2: run.cursor.seq",
        "3: run.control.halted",
        "4: self.run.writes.stay",
        "5: run.cursor",
        "6: self.run.control",
    ]


@pytest.mark.parametrize("part", [Cursor, Control, PendingWrites])
def test_what_a_run_shows_of_its_parts_is_read_only(part: type) -> None:
    for field in dataclasses.fields(part):
        shown = getattr(Run, field.name, None)
        assert shown is None or (isinstance(shown, property) and shown.fset is None) or callable(shown)
