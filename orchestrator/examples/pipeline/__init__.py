"""A pipeline that writes a Python module from examples of what its functions should do. No model, no network.

`orchestrator pipeline run --example` runs it. The planner decides which examples are checked, the validator asks for
those that are missing, the implementer searches for the shortest function that does what it has been shown, and the
judge runs the tests in a process of their own: what they find wrong is shown to the implementer the next time.
"""

from pathlib import Path

SPEC = Path(__file__).resolve().parent / "spec.toml"
"""What `--example` runs."""
