"""A small shop as files, and a plan that changes it, for `make demo-plan`. No model, no network."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

SHOP = _HERE / "shop"
"""The project in its initial state."""
PLAN = _HERE / "plan.toml"
"""Five steps that create, edit and delete files."""
