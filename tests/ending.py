"""What a process that was read line by line still says until it ends."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

_PATIENCE = 120.0


def rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what comes on standard output and standard error from here on, once the process has ended.

    Not `communicate()`: that reads past the file objects, so a line that came together with one that was read is lost.
    A process that does not end is killed, and the test fails.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    with ThreadPoolExecutor(2) as pool:
        said = [pool.submit(end.read) for end in (process.stdout, process.stderr)]
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out, err = (end.result() for end in said)
    return out, err
