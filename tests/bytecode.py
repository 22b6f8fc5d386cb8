"""Bytecode of the tests in a fresh clone: no module is compiled twice because several processes begin at once.

pytest rewrites the asserts of each file of tests, which takes as long as everything else in the collection.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
OURS = "orchestrator"


def rewrite_fewer_asserts(config: pytest.Config) -> None:
    """Let Python compile our own modules: one bytecode for the tests and for the processes that they start.

    pytest rewrites the whole package, because it has a plugin; only `testing` has asserts that tests see fail.
    """
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    getattr(hook, "_must_rewrite", set()).discard(OURS)
    pytest.register_assert_rewrite(f"{OURS}.testing")


def import_a_share(session: pytest.Session) -> None:
    """Import the later files of tests first, in all workers but one: each compiles a part, and reads the others'.

    Nothing where only some files are collected. A file that cannot be imported is reported by the collection.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or [Path(one).resolve() for one in session.config.args] != [TESTS]:
        return
    files = sorted(TESTS.rglob("test_*.py"))
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in files[len(files) * number // count :] if number else []:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if name not in sys.modules:
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)
