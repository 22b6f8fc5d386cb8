"""Plans that must not be made, by class: what each says, what lies in its project, and the code that refuses it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Setting = Callable[[Path], object]
Step = dict[str, Any]

DIFF = "@@ -1,2 +1,2 @@\n one = 1\n-two = 2\n+two = 3\n"
"""Of a.py as `project` makes it."""


@dataclass(frozen=True)
class Hostile:
    """One plan, or what stands in its place (`document`)."""

    name: str
    code: str
    steps: tuple[Step, ...] = ()
    setting: Setting = lambda _: None
    document: Any = None
    also: tuple[str, ...] = ()
    """Further codes that it is refused with."""

    @property
    def plain(self) -> Any:
        return {"goal": "harm", "steps": list(self.steps)} if self.document is None else self.document


def project(root: Path) -> Path:
    """A small project, and beside it what no plan may reach."""
    inner = root / "project"
    (inner / "src").mkdir(parents=True)
    (inner / ".git").mkdir()
    (inner / ".git" / "config").write_text("[core]\n")
    (inner / "a.py").write_text("one = 1\ntwo = 2\n")
    (inner / "src" / "b.py").write_text("b = 1\n")
    (root / "outside").mkdir()
    (root / "outside" / "secret.txt").write_text("secret\n")
    return inner


def create(path: str, content: str = "x = 1\n", **more: Any) -> Step:
    return {"id": "1", "kind": "create", "files": [{"path": path, "content": content}], **more}


def edit(path: str, diff: str = DIFF, **more: Any) -> Step:
    return {"id": "1", "kind": "edit", "files": [{"path": path, "diff": diff, **more}]}


def delete(path: str, number: str = "1") -> Step:
    return {"id": number, "kind": "delete", "files": [{"path": path}]}


def run(*argv: str, **more: Any) -> Step:
    return {"id": "1", "kind": "run", "argv": list(argv), **more}


def many(number: int, **more: Any) -> tuple[Step, ...]:
    return tuple({**create(f"new{one}.py"), "id": str(one), **more} for one in range(number))


def files(number: int) -> list[dict[str, str]]:
    return [{"path": f"new{one}.txt", "content": "x\n"} for one in range(number)]


def link(target: str, name: str) -> Setting:
    return lambda root: (root / name).symlink_to(target)


def written(name: str, content: bytes) -> Setting:
    def write(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    return write


def sock(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(root / "sock"))  # the name of a socket is short


def fake_program(root: Path) -> None:
    (root / "tool").write_text("#!/bin/sh\n")
    (root / "tool").chmod(0o755)


def set_id_program(root: Path) -> None:
    fake_program(root)
    (root / "tool").chmod(0o4755)


def _paths(code: str, paths: Mapping[str, str]) -> Iterator[Hostile]:
    for name, path in paths.items():
        yield Hostile(name, code, (create(path),))


LONG = "x = 1\n" * 251
SHELLS = (
    "zsh-5.9",
    "bash5",
    "sh",
    "bash",
    "zsh",
    "env",
    "sudo",
    "xargs",
    "busybox",
    "cmd.exe",
    "PowerShell",
    "find",
    "timeout",
)

HOSTILE: tuple[Hostile, ...] = (
    *_paths(
        "SEC-001",
        {
            "traversal up": "../outside/secret.txt",
            "traversal in the middle": "src/../../outside/new.txt",
            "traversal that comes back": "src/../a2.py",
            "traversal with backslashes": "src\\..\\..\\outside\\new.txt",
            "traversal as last part": "src/..",
        },
    ),
    *_paths(
        "SEC-002",
        {
            "absolute": "/etc/cron.d/new",
            "absolute twice": "//etc/passwd",
            "home": "~/.bashrc",
            "home of another": "~root/x",
            "drive": "C:\\Windows\\x.txt",
            "drive relative": "c:x.txt",
            "share": "\\\\server\\share\\x.txt",
        },
    ),
    *_paths(
        "SEC-004",
        {
            "git hook": ".git/hooks/pre-commit",
            "git in capitals": ".GIT/config",
            "git below": "src/.git/config",
            "our own journal": ".orchestrator/journal.db",
            "workflow": ".github/workflows/ci.yml",
            "git as a file": ".git",
            "short name of git": "GIT~1/config",
            "full-width git": "．ｇｉｔ/config",
        },
    ),
    *_paths(
        "SEC-005",
        {
            "environment": ".env",
            "environment in capitals": "SRC/.ENV",
            "environment of production": "src/.env.production",
            "private key": "src/server.PEM",
            "ssh key": "id_rsa",
            "package credentials": ".npmrc",
            "submodules": ".gitmodules",
            "our temporary name": ".a.py.0123456789abcdef.tmp",
        },
    ),
    *_paths(
        "SEC-006",
        {
            "build": "build/x.py",
            "modules": "src/node_modules/x.js",
            "cache": "__PYCACHE__/x.py",
            "egg": "a.egg-info/x",
        },
    ),
    *_paths(
        "SEC-007",
        {"device name": "NUL", "device name with an ending": "src/con.txt", "port": "com1.log"},
    ),
    *_paths(
        "SEC-010",
        {
            "zero byte": "a\0.py",
            "line feed": "a\nb.py",
            "escape": "a\x1b[2K.py",
            "turned reading order": "a\u202egpj.py",
            "letter without width": "a\u200bb.py",
            "accents apart": "cafe\u0301.py",
            "blank at the end": "a.py ",
            "dot at the end": "src./b.py",
            "doubled slash": "src//b2.py",
            "here": "./b2.py",
            "stream": "a.py:hidden",
            "backslash": "src\\b2.py",
            "pattern": "*.py",
        },
    ),
    *_paths("FS-011", {"long name": "x" * 256, "long path": "/".join(["folder"] * 200)}),
    Hostile("empty path", "VAL-014", (create(""),)),
    Hostile("dot path", "VAL-014", (create("."),)),
    # ---- what lies on the disk ----
    Hostile("link to a file outside", "SEC-003", (edit("l.py"),), link("../outside/secret.txt", "l.py")),
    Hostile("link to a file inside", "SEC-003", (edit("l.py"),), link("a.py", "l.py")),
    Hostile("create through a dangling link", "SEC-003", (create("l.py"),), link("../outside/new", "l.py")),
    Hostile("folder that is a link", "SEC-003", (create("l/new.py"),), link("../outside", "l")),
    Hostile("folder that is a link to src", "SEC-003", (create("l/new.py"),), link("src", "l")),
    Hostile("delete a link", "SEC-003", (delete("l.py"),), link("a.py", "l.py")),
    Hostile("pipe", "SEC-007", (edit("p"),), lambda root: os.mkfifo(root / "p")),
    Hostile("delete a pipe", "SEC-007", (delete("p"),), lambda root: os.mkfifo(root / "p")),
    Hostile("socket", "SEC-007", (edit("sock"),), sock),
    Hostile("below a pipe", "SEC-007", (create("p/x.py"),), lambda root: os.mkfifo(root / "p")),
    Hostile(
        "hard link to a file outside",
        "SEC-008",
        (edit("h.txt", "@@ -1 +1 @@\n-secret\n+mine\n"),),
        lambda root: (root / "h.txt").hardlink_to(root.parent / "outside" / "secret.txt"),
    ),
    Hostile(
        "delete a hard link",
        "SEC-008",
        (delete("h.txt"),),
        lambda root: (root / "h.txt").hardlink_to(root.parent / "outside" / "secret.txt"),
    ),
    Hostile(
        "edit of a set-id program",
        "SEC-013",
        (edit("tool", "@@ -1 +1 @@\n-#!/bin/sh\n+#!/bin/rm\n"),),
        set_id_program,
    ),
    Hostile("delete a set-id program", "SEC-013", (delete("tool"),), set_id_program),
    Hostile("folder as a file", "FS-009", (edit("src"),)),
    Hostile("file as a folder", "FS-009", (create("a.py/x.py"),)),
    Hostile("binary file", "FS-007", (edit("bin.dat"),), written("bin.dat", b"\x00\x01\xff")),
    Hostile("no UTF-8", "FS-007", (delete("latin.txt"),), written("latin.txt", "é".encode("latin-1"))),
    Hostile("oversize file", "FS-008", (edit("big.txt"),), written("big.txt", b"x" * 1_048_577)),
    Hostile("create over a file", "FS-002", (create("a.py"),)),
    Hostile("edit of nothing", "FS-001", (edit("none.py"),)),
    Hostile("delete of nothing", "FS-001", (delete("none.py"),)),
    Hostile("stale digest", "FS-006", (edit("a.py", sha256="0" * 64),)),
    # ---- names that are one ----
    Hostile("other case on the disk", "SEC-009", (create("A.PY"),)),
    Hostile("other case of a folder", "SEC-009", (create("SRC/new.py"),)),
    Hostile(
        "other composition on the disk", "SEC-009", (create("café.py"),), written("cafe\u0301.py", b"x = 1\n")
    ),
    Hostile("two cases in a plan", "SEC-009", (create("N.py"), {**create("n.py"), "id": "2"})),
    Hostile("sharp s", "SEC-009", (create("straße.py"), {**create("strasse.py"), "id": "2"})),
    Hostile("ligature", "SEC-009", (create("ﬁle.py"), {**create("file.py"), "id": "2"})),
    Hostile("two cases of a folder", "SEC-009", (create("x/a.py"), {**create("X/b.py"), "id": "2"})),
    Hostile("file and folder", "FS-009", (create("x"), {**create("x/b.py"), "id": "2"})),
    # ---- too much ----
    Hostile("11 steps", "VAL-007", many(11)),
    Hostile("4 files in a step", "VAL-008", ({"id": "1", "kind": "create", "files": files(4)},)),
    Hostile(
        "16 files",
        "VAL-009",
        tuple(
            {
                "id": str(step),
                "kind": "create",
                "files": [{**one, "path": f"{step}{one['path']}"} for one in files(2)],
            }
            for step in range(8)
        ),
    ),
    Hostile("501 new lines", "VAL-010", (create("new.py", "x = 1\n" * 501),)),
    Hostile(
        "501 changed lines",
        "VAL-010",
        (edit("a.py", "@@ -1,2 +1,503 @@\n one = 1\n" + "+x = 1\n" * 501 + " two = 2\n"),),
    ),
    Hostile(
        "502 lines in two files",
        "VAL-010",
        ({"id": "1", "kind": "create", "files": [{"path": f"{n}.py", "content": LONG} for n in "ab"]},),
    ),
    Hostile("11 constraints", "VAL-011", (create("n.py", constraints=["x"] * 11),)),
    Hostile("more than 100 KB", "VAL-012", (create("n.txt", "x" * 102_401),)),
    Hostile("two deletions", "VAL-013", (delete("a.py"), delete("src/b.py", "2"))),
    Hostile(
        "two deletions in a step",
        "VAL-013",
        ({"id": "1", "kind": "delete", "files": [{"path": "a.py"}, {"path": "src/b.py"}]},),
    ),
    # ---- no plan at all, or one that is none ----
    Hostile("no step", "VAL-006", ()),
    Hostile("no target", "VAL-014", ({"id": "1", "kind": "create", "files": []},)),
    Hostile("no program", "VAL-014", (run(),)),
    Hostile("doubled id", "VAL-015", (create("n.py"), create("m.py"))),
    Hostile("later step", "VAL-015", (create("n.py", depends_on=["2"]), {**create("m.py"), "id": "2"})),
    Hostile("step on itself", "VAL-015", (create("n.py", depends_on=["1"]),)),
    Hostile("unknown step", "VAL-015", (create("n.py", depends_on=["9"]),)),
    Hostile("step without an id", "VAL-015", ({**create("n.py"), "id": " "},)),
    Hostile(
        "one file twice in a step",
        "VAL-015",
        ({"id": "1", "kind": "create", "files": [{"path": "n.py", "content": "x = 1\n"}] * 2},),
    ),
    Hostile("create with a diff", "VAL-016", ({**edit("a.py"), "kind": "create"},)),
    Hostile("edit with content", "VAL-016", ({**create("a.py"), "kind": "edit"},)),
    Hostile("delete with content", "VAL-016", ({**create("a.py"), "kind": "delete"},)),
    Hostile("create that runs", "VAL-016", (create("n.py", argv=["make"]),)),
    Hostile("command with files", "VAL-016", (run("make", files=[{"path": "a.py"}]),)),
    Hostile("command for ever", "VAL-016", (run("make", timeout=301),)),
    Hostile("unreadable diff", "VAL-017", (edit("a.py", "two = 3\n"),)),
    Hostile("diff with a wrong count", "VAL-017", (edit("a.py", DIFF.replace("-1,2", "-1,3")),)),
    Hostile(
        "diff with endless numbers",
        "VAL-017",
        (edit("a.py", DIFF.replace("-1,2", "-" + "9" * 5_000 + ",2")),),
    ),
    Hostile("diff with other digits", "VAL-017", (edit("a.py", DIFF.replace("-1,2", "-١,٢")),)),
    Hostile("diff of another file", "VAL-017", (edit("a.py", "--- a/src/b.py\n+++ b/src/b.py\n" + DIFF),)),
    Hostile(
        "diff of two files", "VAL-017", (edit("a.py", DIFF + "--- a/src/b.py\n+++ b/src/b.py\n" + DIFF),)
    ),
    Hostile("diff that leads out", "VAL-017", (edit("a.py", "--- a/a.py\n+++ b/../outside/x\n" + DIFF),)),
    Hostile("diff without a change", "VAL-018", (edit("a.py", "@@ -1,2 +1,2 @@\n one = 1\n two = 2\n"),)),
    Hostile("diff that takes and gives", "VAL-018", (edit("a.py", "@@ -1 +1 @@\n-one = 1\n+one = 1\n"),)),
    Hostile("diff with other context", "VAL-003", (edit("a.py", DIFF.replace("one = 1", "one = 2")),)),
    Hostile("diff at another line", "VAL-003", (edit("a.py", DIFF.replace("@@ -1,2 +1,2", "@@ -2,2 +2,2")),)),
    Hostile("diff beyond the end", "VAL-003", (edit("a.py", "@@ -9,0 +10 @@\n+x = 1\n"),)),
    Hostile("no Python", "VAL-005", (create("n.py", "def f(:\n"),)),
    Hostile("no JSON", "VAL-005", (create("n.json", "{,}"),)),
    Hostile("no TOML", "VAL-005", (create("n.toml", "= 1"),)),
    Hostile("brackets without end", "VAL-005", (create("n.py", "(" * 5_000),)),
    Hostile("binary content", "FS-007", (create("n.txt", "a\0b"),)),
    Hostile("binary diff", "FS-007", (edit("a.py", "GIT binary patch\nliteral 3\n"),)),
    Hostile("edit after its deletion", "FS-001", (delete("a.py"), {**edit("a.py"), "id": "2"})),
    Hostile("create after its creation", "FS-002", (create("n.py"), {**create("n.py"), "id": "2"})),
    Hostile("escape in a title", "SEC-010", (create("n.py", title="fine\x1b[2K"),)),
    Hostile("turned reading order in a constraint", "SEC-010", (create("n.py", constraints=["\u202e"]),)),
    Hostile("escape in a goal", "SEC-010", document={"goal": "\x1b]0;x\x07", "steps": [create("n.py")]}),
    Hostile("endless title", "VAL-012", (create("n.py", title="x" * 2_001),)),
    Hostile("endless id", "VAL-015", ({**create("n.py"), "id": "x" * 65},)),
    Hostile("endless path", "FS-011", (create("../" * 100_000),)),
    Hostile("endless argument", "VAL-012", (run("make", "x" * 102_401),)),
    # ---- commands ----
    *(Hostile(f"program {name}", "SEC-012", (run(name, "-c", "x"),)) for name in SHELLS),
    Hostile("program by path", "SEC-012", (run("/bin/sh", "-c", "x"),)),
    Hostile("program of the project", "SEC-012", (run("./tool"),), fake_program),
    Hostile("program with a blank", "SEC-012", (run("make all"),)),
    Hostile("program from a variable", "SEC-012", (run("$SHELL"),)),
    Hostile("program that looks like another", "SEC-012", (run("mаke"),)),
    Hostile("argument with an escape", "SEC-010", (run("make", "\x1b[2K"),)),
    Hostile("argument with a zero byte", "SEC-010", (run("make", "a\0b"),)),
    Hostile("program that is not there", "BLD-001", (run("no-such-program-here"),)),
    # ---- documents ----
    Hostile("no table", "VAL-002", document=["harm"]),
    Hostile("text", "VAL-002", document="rm -rf"),
    Hostile("steps missing", "VAL-002", document={"goal": "x"}),
    Hostile("unknown key", "VAL-002", document={"steps": [{**create("n.py"), "shell": True}]}),
    Hostile("unknown kind", "VAL-002", document={"steps": [{"id": "1", "kind": "chmod"}]}),
    Hostile("time without end", "VAL-002", document={"steps": [{**run("make"), "timeout": float("inf")}]}),
    Hostile("negative time", "VAL-002", document={"steps": [run("make", timeout=-1)]}),
    Hostile("half a letter", "VAL-002", document={"steps": [create("n.py", "\ud800")]}),
    Hostile("path as a number", "VAL-002", document={"steps": [create(7)]}),  # type: ignore[arg-type]
    Hostile("argv as text", "VAL-002", document={"steps": [run("make") | {"argv": "rm -rf /"}]}),
)
