"""The compiled parser of PromQL with which these tests read expressions does not load on Python 3.15 yet."""

from __future__ import annotations

import sys

collect_ignore = (
    ["test_drift.py", "test_live.py", "test_pack.py", "test_runbooks.py"]
    if sys.version_info >= (3, 15)
    else []
)
