"""The forms of expressions in panels. `where` are matchers, in the short forms of `panel.MATCHERS`."""

from __future__ import annotations

_RATE = "$__rate_interval"


def _metric(name: str, where: str) -> str:
    return f"orchestrator_{name}{{{where}}}"


def rate(name: str, by: str, where: str = "%m") -> str:
    """Return the increments of a counter per second, summed."""
    return f"sum by ({by}) (rate({_metric(name, where)}[{_RATE}]))"


def increase(name: str, by: str, where: str = "%m", window: str = "1h") -> str:
    """Return the increase of a counter within the window, summed."""
    return f"sum by ({by}) (increase({_metric(name, where)}[{window}]))"


def lately(name: str, by: str, where: str = "%m") -> str:
    """Return the increase of a counter between two points of the graph, summed."""
    return increase(name, by, where, _RATE)


def total(name: str, by: str, where: str = "%m") -> str:
    """Return a gauge, summed."""
    return f"sum by ({by}) ({_metric(name, where)})"


def in_journals(by: str, where: str = "%m") -> str:
    """Return the runs of journals: each process reports those of its journals, and each journal counts once."""
    every = "journal, machine, agent, status, reason"
    return f"sum by ({by}) (max by ({every}) ({_metric('journal_runs', where)}))"


def age(name: str, by: str, where: str = "%m") -> str:
    """Return the age in seconds of the oldest of some timestamps."""
    return f"max by ({by}) (time() - {_metric(name, where)})"


def quantile(q: float, name: str, by: str, where: str = "%m") -> str:
    """Return the value that this share of a histogram's observations does not exceed."""
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', f'{by}, le', where)})"


def ratio(part: str, whole: str) -> str:
    """Return one expression divided by another with the same labels."""
    return f"{part} / {whole}"


def some(expression: str) -> str:
    """Return an expression without the values that are 0."""
    return f"{expression} > 0"
