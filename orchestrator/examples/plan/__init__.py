"""A small shop, as files, and a plan that changes it: what `make demo-plan` shows. No model, no network."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

SHOP = _HERE / "shop"
"""The project, as it is before anything is done."""
PLAN = _HERE / "plan.toml"
"""Five steps that create, edit and delete files."""
