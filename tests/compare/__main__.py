"""`python -m tests.compare BEFORE AFTER`: what the tests of a revision prove, and those of a later one do not.

    python -m tests.compare main HEAD                        lines and branches, tests, mutants
    python -m tests.compare main HEAD --only tests           one of the three
    python -m tests.compare main HEAD --area kernel --seed 7 --sample 20
    python -m tests.compare main HEAD --judged judged.txt    tests that are gone, and why nothing is lost

Each revision is measured in a worktree with an environment of its own: all tests with coverage, the lists of tests of
each tier, and `make mutants`. That takes an hour, so the figures are kept in build/compare, in a folder for each
commit, and measured once. A report of another machine is used if it is put there as `coverage.json`, written by
`make coverage` and `coverage json`.

The exit code is 1 if a line, a branch or a mutant is lost, or if a test is gone that was not judged. Other changes of
the tests (its tier, its file, the number of its cases) are listed for a person to judge.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.compare.measurement import COVERAGE, LISTS, commands, commit_of, measure, mutants_file, sources
from tests.compare.places import Counts, Place, lines_and_branches, lost, test_places

ROOT = Path(__file__).resolve().parents[2]
PARTS = "coverage", "tests", "mutants"
VERDICT = re.compile(r"^(\S+):\d+ (.+): (detected by |SURVIVES )", re.MULTILINE)
"""A verdict of `make mutants`: the path and the rest of the mutant, without its line."""


class Comparison(NamedTuple):
    """A part of the report."""

    lines: list[str]
    lost: int
    """How much of what was proved before is not proved now."""


def main(arguments: Sequence[str] | None = None, repository: Path = ROOT) -> int:
    """Run the command; return 1 if something is lost."""
    options = _parser().parse_args(arguments)
    parts = options.only or PARTS
    mutants = [f"--seed={options.seed}", f"--sample={options.sample}"]
    mutants += [f"--area={area}" for area in options.area]
    judged = _judged(options.judged) if options.judged else frozenset[str]()
    commits = [commit_of(repository, revision) for revision in (options.before, options.after)]
    folders = [options.store / commit for commit in commits]
    for commit, folder in zip(commits, folders, strict=True):
        measure(repository, commit, folder, commands(parts, mutants))
    compared: list[Comparison] = []
    if "coverage" in parts:
        reports = [json.loads((folder / COVERAGE).read_text()) for folder in folders]
        texts = [sources(repository, commit) for commit in commits]
        measured = [lines_and_branches(*pair) for pair in zip(reports, texts, strict=True)]
        for kind, before, after in zip(("lines", "branches"), *measured, strict=True):
            compared.append(coverage(kind, before, after))
    if "tests" in parts:
        compared.append(tests(_tiers(folders[0]), _tiers(folders[1]), judged))
    if "mutants" in parts:
        compared.append(detected(*(_verdicts(folder / mutants_file(mutants)) for folder in folders)))
    for part in compared:
        print("\n".join(part.lines))
    return int(any(part.lost for part in compared))


def _parser() -> argparse.ArgumentParser:
    description, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.compare",
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="BEFORE", help="a revision of git")
    parser.add_argument("after", metavar="AFTER", help="a later one")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--seed", type=int, default=0, help="of the mutants (default: 0)")
    parser.add_argument("--sample", type=int, default=15, help="mutants of each area (default: 15)")
    parser.add_argument(
        "--area", action="append", default=[], help="mutants of this area; repeatable (default: all)"
    )
    parser.add_argument(
        "--judged", type=Path, metavar="FILE", help="lines `name: where its behaviour is tested now`"
    )
    parser.add_argument(
        "--store", type=Path, default=ROOT / "build" / "compare", metavar="FOLDER", help="of the measurements"
    )
    return parser


# ---- lines and branches ----


def coverage(kind: str, before: Counts, after: Counts) -> Comparison:
    """Compare the lines or the branches."""
    missing = list(lost(before, after))
    figures = (
        f"{kind}: {counts.covered.total():,} of {counts.existing.total():,} covered {when}"
        for counts, when in ((before, "before"), (after, "after"))
    )
    lines = [f"{', '.join(figures).replace(f', {kind}: ', ', ')}; {len(missing):,} lost"]
    lines += [f"  lost: {place.path} {place.function}: {place.text}" for place in missing]
    return Comparison(lines, len(missing))


# ---- tests ----

Tiers = Mapping[Place, Mapping[str, int]]
"""Test -> tiers that it is in -> the number of its cases there."""


def _tiers(folder: Path) -> Tiers:
    ids = {
        which: {line for line in (folder / file).read_text().splitlines() if "::" in line}
        for which, file in LISTS.items()
    }
    sets = {
        "test and campaign": ids["test"] & ids["campaign"],
        "test": ids["test"] - ids["campaign"],
        "campaign": ids["campaign"] - ids["test"],
        "neither": ids["all"] - ids["test"] - ids["campaign"],
    }
    tiers: dict[Place, dict[str, int]] = {}
    for tier, some in sets.items():
        for place, count in test_places(some).items():
            tiers.setdefault(place, {})[tier] = count
    return tiers


def _judged(file: Path) -> frozenset[str]:
    names = []
    for line in file.read_text().splitlines():
        name, _, reason = line.partition(":")
        if not reason.strip():
            raise SystemExit(f"compare: {file}: {line!r} has no reason; write `name: where it is tested now`")
        names.append(name.strip())
    return frozenset(names)


def tests(before: Tiers, after: Tiers, judged: frozenset[str]) -> Comparison:
    """Compare the sets of tests. A test that is gone from its file may be in a file that did not have it."""
    elsewhere = {place.function: place for place in after.keys() - before.keys()}
    gone: list[tuple[Place, Mapping[str, int]]] = []
    changed: list[str] = []
    for place, then in sorted(before.items()):
        to = place if place in after else elsewhere.get(place.function)
        if to is None:
            gone.append((place, then))
        else:
            changed += _changes(place, then, to, after[to])
    unjudged = [pair for pair in gone if pair[0].function not in judged]
    figures = f"{len(before):,} before ({_cases(before)}), {len(after):,} after ({_cases(after)})"
    lines = [f"tests: {figures}; {len(gone):,} gone, of which {len(gone) - len(unjudged):,} were judged"]
    lines += [f"  gone: {place.path} {place.function} ({_tier(then)})" for place, then in unjudged]
    return Comparison(lines + changed, len(unjudged))


def _cases(tiers: Tiers) -> str:
    cases: Counter[str] = Counter()
    for counts in tiers.values():
        cases.update(counts)
    return ", ".join(f"{tier} {count:,}" for tier, count in cases.most_common())


def _changes(place: Place, then: Mapping[str, int], to: Place, now: Mapping[str, int]) -> Iterator[str]:
    if to != place:
        yield f"  another file: {place.path} -> {to.path} {place.function}"
    if then.keys() != now.keys():
        yield f"  another tier: {to.path} {place.function} ({_tier(then)} -> {_tier(now)})"
    if sum(now.values()) < sum(then.values()):
        yield f"  fewer cases: {to.path} {place.function} ({sum(then.values())} -> {sum(now.values())})"


def _tier(counts: Mapping[str, int]) -> str:
    return ", ".join(counts) if len(counts) == 1 else ", ".join(f"{tier} {n}" for tier, n in counts.items())


# ---- mutants ----


def _verdicts(file: Path) -> dict[str, bool]:
    found = VERDICT.findall(file.read_text())
    if not found:
        raise SystemExit(
            f"compare: {file} has no verdict: `make mutants` failed; remove the file to repeat it"
        )
    return {f"{path} {mutant}": said.startswith("detected") for path, mutant, said in found}


def detected(before: Mapping[str, bool], after: Mapping[str, bool]) -> Comparison:
    """Compare the verdicts on the mutants that both samples have."""
    both = sorted(before.keys() & after.keys())
    missing = [mutant for mutant in both if before[mutant] and not after[mutant]]
    then, now = (sum(verdicts[one] for one in both) for verdicts in (before, after))
    figures = f"{len(both)} of {len(before)} are in both samples, {then} detected before, {now} after"
    return Comparison(
        [f"mutants: {figures}; {len(missing)} lost", *(f"  lost: {mutant}" for mutant in missing)],
        len(missing),
    )


if __name__ == "__main__":
    sys.exit(main())
