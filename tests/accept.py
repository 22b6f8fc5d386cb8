"""`make accept`: write every file that is derived from the code, and print what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.environment import make_neutral
from tests.guards import package

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the derived files. The package of guards is first: what is new in it cannot be imported before."""
    make_neutral()  # the derived transcripts start runs, which would leave a key in the user's home
    changed = package.accept()
    from tests.derived import GRAPHS, derived  # imports the package of guards

    changed += [path for path, text in derived() if _write(path, text)]
    for path in changed:
        print(path)
        if path.startswith(GRAPHS) and _is_new_version(path):
            print(
                f"  {Path(path).stem} has another fingerprint. Open runs of the version before are refused on resume"
            )
            print("  unless a migration is registered: say which in CHANGELOG.md.")
    print(f"{len(changed)} files changed" if changed else "nothing changed")
    if changed:
        subprocess.run(["git", "diff", "--stat", "--", *changed], cwd=ROOT, check=False)


def _write(path: str, text: str) -> bool:
    """Write a file if its text is another one; return whether it was."""
    file = ROOT / path
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return True


def _is_new_version(path: str) -> bool:
    """Return whether the version that was committed has another fingerprint, the first line."""
    done = subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return done.returncode == 0 and done.stdout.splitlines()[:1] != (ROOT / path).read_text().splitlines()[:1]


if __name__ == "__main__":
    main()
