"""A turn takes at most so many machine instructions."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks.instructions import IMPORT_LIMIT, LIMITS, PADDINGS, SPREAD, count, import_count

pytestmark = pytest.mark.campaign

if sys.version_info[:2] == (3, 11):  # the limits are those of this interpreter; CI has it as the oldest

    @pytest.mark.system("valgrind")
    @pytest.mark.parametrize("contestant", LIMITS)
    def test_a_turn_takes_no_more_instructions_than_the_limit(contestant: str) -> None:
        counts: list[int] = []
        most = LIMITS[contestant] * SPREAD
        for padding in PADDINGS:
            counts.append(count(contestant, padding=padding))
            if counts[-1] <= most:
                return
        pytest.fail(f"{counts} instructions a turn in {len(counts)} layouts of the heap, limit {most:,.0f}")

    @pytest.mark.system("valgrind")
    def test_an_import_takes_no_more_instructions_than_the_limit() -> None:
        import_count()  # compiles the modules
        assert import_count() <= IMPORT_LIMIT
