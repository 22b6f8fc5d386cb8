"""Execute a recorded run again on its recorded answers and results, and compare its transitions.

`recording` reads what the model and the tools gave, `doubles` gives it again, `replay` runs and compares.
"""

from __future__ import annotations

from orchestrator.runtime.run_replay.replay import ReplayDifference, ReplayStep, RunReplay, replay_run

__all__ = ["ReplayDifference", "ReplayStep", "RunReplay", "replay_run"]
