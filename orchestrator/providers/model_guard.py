"""The switch of the test kit that forbids real models. It imports only our errors.

There are two ways to set it, with different scopes. The environment variable is read at each call and reaches
threads, xdist workers and subprocesses. The context manager reaches the code inside its block, and the tasks and
`asyncio.to_thread` calls made there; a bare `threading.Thread` starts with an empty context and does not see it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from orchestrator.errors import ConfigError, see_guide

NO_REAL_MODELS: Final = "ORCHESTRATOR_NO_REAL_MODELS"
"""Environment variable; any value except `0`, `false`, `no`, `off` and empty forbids real models."""

_OFF: Final = frozenset(("", "0", "false", "no", "off"))
_REFUSING: ContextVar[bool] = ContextVar("orchestrator_refuse_real_models", default=False)


def real_models_refused() -> bool:
    """Return whether only test doubles (models whose class has `double = True`) may answer now."""
    return _REFUSING.get() or os.environ.get(NO_REAL_MODELS, "").strip().lower() not in _OFF


def refuse_real(llm: object) -> None:
    """Raise ConfigError for a model that is not a test double, if real models are refused."""
    if real_models_refused() and getattr(llm, "double", False) is not True:
        raise ConfigError(
            f"real model calls are refused, and {type(llm).__name__} is not a test double; {see_guide('testing')}"
        )


@contextmanager
def refuse_real_models() -> Iterator[None]:
    """Refuse, inside the `with` block, every model that is not a test double.

    Example:
        >>> with refuse_real_models():
        ...     real_models_refused()
        True
    """
    token = _REFUSING.set(True)
    try:
        yield
    finally:
        _REFUSING.reset(token)
