"""A pipeline that writes a Python module from examples of its functions. No model, no network.

`orchestrator pipeline run --example` runs it. The planner selects the examples to check, the validator asks for
missing ones, the implementer searches for the shortest function that matches its examples, and the judge runs the
tests in a separate process. The implementer receives the failed tests for its next attempt.
"""

from pathlib import Path

SPEC = Path(__file__).resolve().parent / "spec.toml"
"""The specification that `--example` uses."""
