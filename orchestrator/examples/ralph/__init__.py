"""The ralph loop without a model: five small programs plan, ask, write code with its tests, review and check it.

`orchestrator ralph run --example` runs it in the working directory: temperature.py and test_temperature.py are written
there. The first attempt at the first task is not good, a task is found on the way, and the first check of the whole
finds that something is missing.
"""

from __future__ import annotations

from pathlib import Path

AGENTS = Path(__file__).parent / "agents.toml"
"""Who does what: a file for `--agents`."""

REQUEST = "Convert temperatures between Celsius and Fahrenheit, with tests"
"""What is asked for."""

ANSWERS = {"*": "two"}
"""What a person would answer to the question that is asked."""
