"""A label has at most as many values as its cap; further names become one value."""

from __future__ import annotations

import pytest

from orchestrator.telemetry import instrument
from orchestrator.telemetry.catalogue import CATALOGUE
from orchestrator.telemetry.instrument import OTHER, LabelValues, is_label

NAMES = ("a", "b", "c")


@pytest.mark.parametrize("admits", [False, True])
def test_exactly_as_many_names_as_the_cap_says_keep_their_labels(admits: bool) -> None:
    folded: list[None] = []
    values = LabelValues(len(NAMES), lambda: folded.append(None), rest="_unknown", admits=admits)
    for name in NAMES:
        assert values.declare(name) == values.of(name) == values.declare(name) == name
    assert folded == []
    assert values.declare("d") == OTHER
    assert folded == []
    assert [values.of(name) for name in ("d", *NAMES, "e")] == [OTHER, *NAMES, OTHER]
    assert len(folded) == 2


def test_an_undeclared_name_is_the_rest_until_the_cap_was_reached() -> None:
    folded: list[None] = []
    values = LabelValues(1, lambda: folded.append(None), rest="_unknown")
    assert (values.of("a"), values.of("_unknown")) == ("_unknown", "_unknown")
    assert (values.declare("a"), values.of("b")) == ("a", "_unknown")
    assert folded == []
    values.declare("b")
    assert (values.of("a"), values.of("b"), values.of("_unknown")) == ("a", OTHER, "_unknown")
    assert len(folded) == 1


def test_where_use_declares_a_name_the_first_names_are_kept_and_the_next_ones_counted() -> None:
    folded: list[None] = []
    values = LabelValues(2, lambda: folded.append(None), admits=True)
    assert [values.of(name) for name in "aabcab"] == ["a", "a", "b", OTHER, "a", "b"]
    assert len(folded) == 1


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("", False),
        ("x", True),
        ("x" * 120, True),
        ("x" * 121, False),
        ("a\nb", False),
        ("http://x", False),
        ("a:b", True),
    ],
)
def test_a_name_may_be_a_label_if_it_is_short_and_printable_and_no_address(name: str, fits: bool) -> None:
    assert is_label(name) is fits
    assert LabelValues(9, lambda: None).declare(name) == (name if fits else OTHER)


def test_label_values_of_names_that_are_not_shown_and_their_limits_are_known_to_dashboards() -> None:
    assert (instrument.OTHER, instrument.UNREGISTERED, instrument.UNKNOWN) == (
        "_other",
        "_unregistered",
        "_unknown",
    )
    assert instrument.CAPS == {
        "machine": 16,
        "agent": 32,
        "tool": 64,
        "model": 16,
        "guard": 32,
        "backend": 8,
        "journal": 8,
    }
    counted = instrument.CAPS.keys() - {"journal"}  # a scrape folds journals, and counts no fold
    assert instrument.FOLDED.keys() == counted | {"budget", "outcome", "reason"}
    assert instrument.MOST_DEFINITIONS == 4
    assert [is_label("x" * length) for length in (0, 1, 120, 121)] == [False, True, True, False]
    assert not any(is_label(name) for name in ("a\nb", "http://host", "\x00"))
    names = {metric.name for metric in CATALOGUE}
    assert set(instrument.FOLDED.values()) <= names
