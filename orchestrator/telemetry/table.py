"""The catalogue as the table of the documentation."""

from __future__ import annotations

from orchestrator.telemetry.catalogue import CATALOGUE, PREFIX, Metric, MetricSource

_HEAD = ("name", "type", "labels", "buckets", "meaning", "made from")


def table() -> str:
    """Return the catalogue as Markdown, one row for each metric, in its order."""
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_row, CATALOGUE)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def _row(row: Metric) -> tuple[str, ...]:
    labels = ", ".join(
        f"{label}{{{', '.join(row.values[label])}}}" if label in row.values else label for label in row.labels
    )
    facts = ", ".join(kind.__name__ for kind in row.fed_by)
    made = {
        MetricSource.OBSERVED: facts or "watchdog, telemetry",
        MetricSource.SCRAPED: "scrape",
        MetricSource.STORED: "metrics serve",
        MetricSource.PUSHED: "batch push",
    }
    buckets = " ".join(f"{bound:g}" for bound in row.buckets)
    return f"`{PREFIX}{row.name}`", row.kind.value, labels, buckets, row.help, made[row.made]
