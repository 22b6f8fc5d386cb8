"""The progress guard against a labelled corpus (tests/data/progress/README.md)."""

from __future__ import annotations

from collections import Counter, deque

from orchestrator_guards import StallKind, TurnFingerprint, fingerprint, progress, stall, window_size
from tests.guards.corpus import Trace, derived, recorded
from tests.guards.corpus_innocent import innocent
from tests.guards.corpus_stalls import stalls

LIMIT = 3


def corpus() -> list[Trace]:
    return [*recorded(), *derived(), *stalls(), *innocent()]


def first_stop(trace: Trace) -> StallKind | None:
    """Replay a trace turn by turn as a run would; return the kind of stall that stops it."""
    window: deque[TurnFingerprint] = deque(maxlen=window_size(LIMIT))
    for step in trace.steps:
        window.append(fingerprint((), step) if isinstance(step, str) else fingerprint(step))
        if not progress(window, LIMIT):
            return stall(window, LIMIT).kind
    return None


def test_the_guard_has_precision_and_recall_of_at_least_95_percent() -> None:
    judged = [(trace, first_stop(trace)) for trace in corpus()]
    right = [trace for trace, found in judged if trace.label and found]
    wrong = [f"stopped ({found}): {t.name}: {t.reason}" for t, found in judged if found and not t.label]
    missed = [f"missed ({t.label}): {t.name}: {t.reason}" for t, found in judged if t.label and not found]

    precision = len(right) / (len(right) + len(wrong))
    recall = len(right) / (len(right) + len(missed))
    confusion = "\n".join(
        [
            f"{len(judged)} traces: {len(right)} stalls seen, precision {precision:.3f}, recall {recall:.3f}",
            *wrong,
            *missed,
        ]
    )

    assert precision >= 0.95, confusion
    assert recall >= 0.95, confusion


def test_the_guard_names_the_kind_that_the_label_names() -> None:
    confusion = Counter((trace.label, first_stop(trace)) for trace in corpus() if trace.label)

    renamed = {pair: n for pair, n in confusion.items() if pair[1] and pair[0] != pair[1]}

    assert sum(renamed.values()) <= 0.05 * confusion.total(), renamed


def test_the_corpus_is_large_and_has_every_kind() -> None:
    traces = corpus()
    labels = Counter(trace.label for trace in traces)

    assert len(traces) >= 120
    assert len({trace.name for trace in traces}) == len(traces)
    assert all(trace.reason and trace.steps for trace in traces)
    assert all(labels[kind] >= 5 for kind in (*StallKind, None)), labels
