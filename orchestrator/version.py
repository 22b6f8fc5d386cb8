"""The version of the package: the one place that sets it. `pyproject.toml` and `orchestrator.__version__` read it."""

__version__ = "0.1.0"
