"""The thermometer of the source: what it counts in a tree whose figures are known."""

from __future__ import annotations

from pathlib import Path

from tests.shape import SOURCES, read, report, shape_of, single_use

TEXT = '''"""A module."""

import os
from pathlib import (
    Path,
)

# a comment
LIMIT = 3


def public(path: Path) -> int:
    """Return a number."""
    return _once(path) + _twice(path) + _twice(path) + sorted([path], key=lambda one: one.name)[0].stat().st_size


def _once(path: Path) -> int:
    def nested() -> int:
        return 1

    return nested()


def _twice(path: Path) -> int:
    return len(os.fspath(path))


def enter_state(run: object) -> None:
    pass


@registered
def _command() -> None:
    pass


def _handed_over() -> None:
    pass


CALLBACKS = [_handed_over]
'''


def test_functions_with_one_call_site_are_counted_with_nested_ones_and_lambdas(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(TEXT)
    file = read(path)
    assert [function.name for function in single_use([file])] == ["_once", "nested", "<lambda>"]
    shape = shape_of([file], single_use([file]))
    assert (shape.files, shape.lines, shape.imports, shape.single) == (1, 41, 4, 3)
    assert (shape.code, round(shape.comments * shape.lines)) == (17, 1)


def test_the_report_has_a_line_for_each_folder_and_each_anchor(tmp_path: Path) -> None:
    for source in SOURCES:
        (tmp_path / source / "inner").mkdir(parents=True)
        (tmp_path / source / "inner" / "module.py").write_text(TEXT.replace("_once", f"_once_{source}"))
    lines = [line.split(" ")[0] for line in report(tmp_path, [], list_single=False)]
    assert lines[1:5] == ["structlog", "python-statemachine", "pydantic-ai", "all"]
    assert lines[5:] == [
        "callbacks",
        "callbacks/inner",
        "guards",
        "guards/inner",
        "orchestrator",
        "orchestrator/inner",
    ]
