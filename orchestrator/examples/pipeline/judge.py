"""The judge: writes the module and its tests into a new folder and runs them in a separate process."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.runtime.service.program import last_words, run_program

SECONDS = 60.0
"""Maximum duration of the tests."""

_RUN = """
import json, sys, unittest

try:
    found = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
except BaseException as error:
    print(json.dumps({"run": 0, "wrong": {"import": f"{type(error).__name__}: {error}"}}))
    sys.exit()
result = unittest.TextTestRunner(stream=sys.stderr).run(found)
wrong = {}
for case, text in result.failures + result.errors:
    lines = text.strip().splitlines()
    said = [line for line in lines if line.startswith("AssertionError")] or lines
    wrong[case.id().rpartition(".")[2]] = said[-1]
print(json.dumps({"run": result.testsRun, "wrong": wrong}))
"""


async def judge(request: Any) -> dict[str, Any]:
    """Score the module by the share of its tests that pass; the comments name each failed test."""
    module, functions = request.plan.content["module"], request.plan.content["functions"]
    examples = {wanted["name"]: wanted["examples"] for wanted in request.spec["functions"]}
    cases = [(one["name"], number) for one in functions for number in one["checks"]]
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder)
        (workdir / f"{module}.py").write_text(request.implementation.content, encoding="utf-8")
        tests = [_test(module, name, number, examples[name][number]) for name, number in cases]
        text = "\n".join(
            [f"import unittest\n\nimport {module}\n\n\nclass Examples(unittest.TestCase):", *tests]
        )
        (workdir / f"test_{module}.py").write_text(text, encoding="utf-8")
        found = await _run(workdir, f"test_{module}", request.key)
    wrong = found["wrong"]
    if found["run"] != len(cases):  # the module cannot be imported
        return {"score": 0, "comments": "\n".join(f"failed: {module}: {said}" for said in wrong.values())}
    comments = [
        f"failed: {name}: example {number}: {wrong[f'test_{name}_{number}']}"
        for name, number in cases
        if f"test_{name}_{number}" in wrong
    ]
    score = 10 * (len(cases) - len(comments)) / len(cases)
    return {"score": score, "comments": "\n".join(comments)}


def _test(module: str, name: str, number: int, example: dict[str, Any]) -> str:
    call = f"{module}.{name}({example['given']!r})"
    return f"    def test_{name}_{number}(self):\n        self.assertEqual({call}, {example['gives']!r})\n"


async def _run(workdir: Path, tests: str, key: str) -> dict[str, Any]:
    """Run the tests and return their number, and name -> last line of each failure. Raises RuntimeError."""
    ended = await run_program(
        [sys.executable, "-c", _RUN, tests], b"", call=key, seconds=SECONDS, folder=workdir
    )
    try:
        found: dict[str, Any] = json.loads(ended.out)
    except ValueError:
        raise RuntimeError(f"the tests could not be run: {last_words(ended.err)}") from None
    return found
