"""The examples in docstrings run, and none of them is where `doctest` does not look."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.contract.test_layers import ROOT, modules
from tests.contract.test_prose import docstrings

pytestmark = pytest.mark.check


def test_the_examples_of_each_module_run() -> None:
    sources = {name: file.read_text(encoding="utf-8") for name, file in modules(ROOT).items()}
    with_examples = [
        name
        for name, source in sources.items()
        if ">>> " in source  # few files are parsed
        and any(">>> " in str(docstring.value) for docstring in docstrings(source))
    ]
    assert len(with_examples) > 30
    results = {name: doctest.testmod(import_module(name)) for name in with_examples}
    assert {name: result for name, result in results.items() if result.failed or not result.attempted} == {}
