"""How the examples are started."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(**variables: str) -> dict[str, str]:
    """Return an environment that finds the three packages from any folder and has no settings of ours."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    path = os.pathsep.join(str(ROOT / part) for part in ("", "callbacks", "guards"))
    return {**own, "PYTHONPATH": path, **variables}
