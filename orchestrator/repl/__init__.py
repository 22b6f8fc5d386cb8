"""A REPL for code that a model wrote: a worker process with limits, behind the locks that the kernel offers.

Code mode uses `WorkerRepl`. README.md lists the guarantees and their limits.
"""

from orchestrator.repl.isolation import Isolation, Level, ReplLimits, Sandbox, SandboxLock
from orchestrator.repl.process import ReplError
from orchestrator.repl.worker_repl import WorkerRepl

__all__ = ["Isolation", "Level", "ReplError", "ReplLimits", "Sandbox", "SandboxLock", "WorkerRepl"]
