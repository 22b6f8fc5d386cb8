"""The notebook of the examples, executed by nbclient in a kernel of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.process import ROOT, environment

NOTEBOOK = ROOT / "orchestrator/examples/runs.ipynb"
EXECUTE = """
import json, sys
import nbclient, nbformat
from traitlets.config import Config

sockets = Config({"KernelManager": {"transport": "ipc"}})  # no ports that somebody else could take meanwhile
notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
done = nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", config=sockets).execute()
print(json.dumps([cell.outputs for cell in done.cells if cell.cell_type == "code"]))
"""


@pytest.mark.campaign
def test_the_notebook_shows_a_timeline_and_the_plot_of_a_backtest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXECUTE, str(NOTEBOOK)],
        cwd=tmp_path,  # the kernel's sockets are made in it
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    imports, recorded, timeline, figures, plot = json.loads(done.stdout)
    assert (imports, recorded) == ([], [])
    assert 'class="fsm-drawing fsm-timeline"' in svg(timeline)
    assert "part-4" in svg(timeline)
    assert figures[0]["data"]["text/plain"].startswith("{'1': (2, 4),")
    assert 'class="fsm-drawing fsm-plot"' in svg(plot)
    assert "Backtest of 6 runs: max_iterations=1..7" in svg(plot)


def svg(outputs: list[dict[str, Any]]) -> str:
    [output] = outputs
    drawn: str = output["data"]["image/svg+xml"]
    return drawn


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells] == [([], None)] * len(cells)
