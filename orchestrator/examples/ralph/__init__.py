"""The ralph loop without a model: five small programs plan, ask, write code with its tests, review and check it.

`orchestrator ralph run --example` runs it in the working directory and writes temperature.py and test_temperature.py
there. The first attempt at the first task fails its review, the executor adds a task, and the first check of the
whole finds a missing part.
"""

from __future__ import annotations

from pathlib import Path

AGENTS = Path(__file__).parent / "agents.toml"
"""The programs of the roles: a file for `--agents`."""

REQUEST = "Convert temperatures between Celsius and Fahrenheit, with tests"
"""The request."""

ANSWERS = {"*": "two"}
"""A person's answer to the question."""
