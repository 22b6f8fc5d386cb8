from __future__ import annotations

import subprocess
import sys

from tests.ending import rest


def test_lines_that_came_together_with_one_that_was_read_are_not_lost() -> None:
    said = "import sys; print('one\\ntwo', flush=True); print('a\\nb' * 100_000, file=sys.stderr); print('three')"
    with subprocess.Popen(
        [sys.executable, "-c", said], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        out, err = rest(process)
    assert (out, len(err), process.returncode) == ("two\nthree\n", 300_001, 0)
