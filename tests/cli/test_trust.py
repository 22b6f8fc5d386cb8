"""Untrusted projects: before the user consents, no request leaves, no file is imported and no program starts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.cli.trust import consent
from orchestrator.cli.trust.consent import (
    ProjectFile,
    TrustConsent,
    command_trust,
    consents,
    is_trusted_file,
    is_trusted_folder,
    project_settings,
    settings_file,
)
from orchestrator.errors import ConfigError
from tests.cli.conftest import Cli, Done, whole_program
from tests.providers.loopback import Loopback, in_a_thread
from tests.providers.talker import ANSWER, talker

OWN_KEY = "sk-the-users-own"
EVIL = (
    "import pathlib\npathlib.Path('taken').write_text('x')\nasync def m(request):\n    return 'from evil'\n"
)
PROGRAM = [sys.executable, "-c", "open('taken', 'a').write('x')"]
ROLES = ("planner", "executor", "reviewer")
STAGES = ("planner", "validator", "implementer", "judge")


@pytest.fixture(autouse=True)
def project(
    untrusted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The project of another person; the user has a key and an empty state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setenv("OPENAI_API_KEY", OWN_KEY)
    (untrusted / "evil.py").write_text(EVIL)
    return untrusted


@pytest.fixture
def server() -> Iterator[Loopback]:
    """The server of the other person: it remembers each request."""
    with in_a_thread(talker) as running:
        yield running


def settings(folder: Path, text: str) -> Path:
    file = folder / "orchestrator.toml"
    file.write_text(text)
    return file


class Channel(NamedTuple):
    """One way in which a folder names what is to be used."""

    file: str
    text: str
    command: tuple[str, ...]
    named: str
    """Part of the sentence."""


def command_lines(table: str, names: tuple[str, ...]) -> str:
    return "".join(f"[{table}.{name}]\ncommand = {json.dumps(PROGRAM)}\n" for name in names)


RALPH = ("ralph", "run", "Write it.")
PIPELINE = ("pipeline", "run", "pipe.toml")
CODE = [
    Channel("orchestrator.toml", 'model = "python:evil:m"\n', ("run", "hello"), "use model 'python:evil:m'"),
    Channel("orchestrator.toml", 'Model = "python:evil:m"\n', ("run", "hello"), "use model 'python:evil:m'"),
    Channel(
        "orchestrator.toml",
        'model = "python:evil:m"\n',
        ("approval", "submit", "Do it."),
        "use model 'python:evil:m'",
    ),
    Channel("ralph.toml", command_lines("agents", ROLES), RALPH, "use command "),
    Channel(
        "ralph.toml",
        "".join(f'[agents.{role}]\npython = "evil:m"\n' for role in ROLES),
        (*RALPH, "--agents", "ralph.toml"),
        "use python 'evil:m'",
    ),
    Channel("pipe.toml", 'spec = "x"\n' + command_lines("stages", STAGES), PIPELINE, "use command "),
    Channel(
        "pipe.toml",
        'spec = "x"\nbudget = "evil:m"\n'
        + "".join(f'[stages.{one}]\npython = "json:loads"\n' for one in STAGES),
        (*PIPELINE, "--json"),
        "use budget 'evil:m'",
    ),
]
CHANNELS = pytest.mark.parametrize(
    "channel", CODE, ids=["model", "Model", "planner", "ralph", "ralph-python", "pipeline", "budget"]
)


@CHANNELS
def test_code_and_programs_of_an_untrusted_file_start_only_after_consent_and_again_after_each_change(
    cli: Cli, project: Path, one_sentence: Callable[[Done], str], channel: Channel
) -> None:
    file = project / channel.file
    file.write_text(channel.text)
    taken = project / "taken"
    before = set(project.iterdir())
    done = cli(*channel.command)
    said = one_sentence(done)
    assert done.code == 2
    assert f"{channel.file} is not trusted; it would " in said
    assert channel.named in said
    assert (
        f"`orchestrator trust {channel.file}` in {project} allows this content, or --trust allows it" in said
    )
    assert set(project.iterdir()) == before
    assert "evil" not in sys.modules
    try:
        done = cli("trust", channel.file)
        assert done.code == 0, done.err
        assert channel.named in done.out
        done = cli(*channel.command)
        assert taken.exists(), done.err
        taken.unlink()
        sys.modules.pop("evil", None)
        shutil.rmtree(project / ".orchestrator", ignore_errors=True)
        file.write_text(channel.text + "#")
        said = one_sentence(cli(*channel.command))
        assert f"{channel.file} has changed since you trusted it; it would " in said
        assert not taken.exists()
        cli(*channel.command, "--trust")
        assert taken.exists()
        taken.unlink()
        sys.modules.pop("evil", None)
        one_sentence(cli(*channel.command))  # --trust was for one command
        assert not taken.exists()
    finally:
        sys.modules.pop("evil", None)


def test_the_key_goes_to_the_address_of_an_untrusted_file_only_after_consent(
    cli: Cli, project: Path, server: Loopback, one_sentence: Callable[[Done], str]
) -> None:
    settings(project, f'model = "openai:talker-1"\nbase_url = "{server.url}/v1"\n')
    said = one_sentence(cli("run", "hello"))
    assert f"it would use base_url '{server.url}/v1', use model 'openai:talker-1': read it, then " in said
    assert server.asked == []
    assert cli("trust").code == 0
    assert json.loads(cli("run", "hello", "--json").out)["output"] == ANSWER
    assert server.asked[0].headers["authorization"] == f"Bearer {OWN_KEY}"


def test_a_journal_in_a_database_that_an_untrusted_file_names_is_not_connected_to(
    cli: Cli, project: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        address = f"postgresql://me:pw@127.0.0.1:{listening.getsockname()[1]}/x?connect_timeout=2"
        settings(project, f'journal = "{address}"\n')
        for command in (("runs", "list"), ("run", "hi", "--model", "python:models:answers"), ("doctor",)):
            said = cli(*command).err
            assert "it would use journal 'postgresql://[redacted]@127.0.0.1" in said
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_every_setting_of_an_untrusted_file_needs_consent_and_no_value_of_a_secret_is_printed(
    cli: Cli, project: Path, one_sentence: Callable[[Done], str]
) -> None:
    settings(
        project,
        'openai_api_key = "sk-theirs"\n[mcp_headers]\nauthorization = "Bearer theirs"\n'
        "[limits]\nmax_iterations = 0\n[prices]\nm = [0.0, 0.0]\n[retry]\nattempts = 1000\n",
    )
    said = one_sentence(cli("run", "hi", "--model", "python:models:answers"))
    assert "it would set openai_api_key, set mcp_headers, set limits, set prices, set retry: " in said
    assert "theirs" not in said


def test_what_an_untrusted_file_says_cannot_drive_the_terminal_or_flood_it(
    cli: Cli, project: Path, one_sentence: Callable[[Done], str]
) -> None:
    tools = json.dumps([f"m{number}:\x1b[2J\u202e{'t' * 500}" for number in range(50)])
    agents = "".join(f'[agents.{one}]\nmodel = "openai:m"\ntools = {tools}\n' for one in ROLES)
    (project / "ralph.toml").write_text(agents)
    said = one_sentence(cli(*RALPH))
    assert "use model 'openai:m', use tools 'm0:" in said
    assert ", and 39 more: read it" in said
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said)
    assert len(said) < 4_000


def test_a_dot_env_file_is_never_read(cli: Cli, project: Path, server: Loopback) -> None:
    text = (
        f"ORCHESTRATOR_MODEL=openai:talker-1\nORCHESTRATOR_BASE_URL={server.url}/v1\nOPENAI_API_KEY=theirs\n"
    )
    for name in (".env", ".env.local", ".envrc"):
        (project / name).write_text(text)
    assert "no model: give --model" in cli("run", "hello").err
    assert {source for _, source in shown(cli)} == {"default"}
    assert server.asked == []


def shown(cli: Cli) -> set[tuple[str, str]]:
    found = json.loads(cli("config", "show", "--json").out)
    secret = ("openai_api_key", "anthropic_api_key")
    return {(name, one["source"]) for name, one in found.items() if name not in secret}


def test_settings_of_an_untrusted_file_are_shown_marked_and_not_used(cli: Cli, project: Path) -> None:
    settings(project, 'model = "python:evil:m"\n')
    assert ("model", "orchestrator.toml (not trusted)") in shown(cli)
    cli("trust")
    assert ("model", "orchestrator.toml") in shown(cli)
    assert not (project / "taken").exists()


def test_a_folder_is_trusted_by_consent_to_a_file_in_it_or_by_the_environment(
    cli: Cli, untrusted: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "orchestrator.toml"
    for file in (elsewhere, untrusted / "orchestrator.toml"):
        file.write_text("tool_timeout = 5\n")
    assert not is_trusted_folder(untrusted)
    assert cli("trust", str(elsewhere)).code == 0
    assert not is_trusted_folder(untrusted)
    assert cli("trust", "orchestrator.toml").code == 0
    assert is_trusted_folder(untrusted)
    assert not is_trusted_folder(untrusted.parent)
    monkeypatch.setenv("ORCHESTRATOR_TRUST", str(untrusted.parent))
    assert is_trusted_folder(untrusted.parent)


def test_what_the_command_line_and_the_environment_name_needs_no_further_consent(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("run", "hi", "--model", "python:models:answers", "--tool", "models:look").code == 0
    monkeypatch.setenv("ORCHESTRATOR_MODEL", "python:models:answers")
    assert cli("run", "hi", "--tool", "models:look").code == 0
    settings(project, "# nothing is set\n")
    assert cli("run", "hi", "--tool", "models:look").code == 0
    assert cli("pipeline", "run", "--example", "--json").code == 0


# ---- processes ----

DECOYS = (
    "typer",
    "rich",
    "openai",
    "httpx",
    "pydantic",
    "apsw",
    "structlog",
    "transitions",
    "dotenv",
    "uvloop",
)


def test_files_of_the_folder_never_replace_installed_packages(program: Cli, project: Path) -> None:
    for name in (*DECOYS, "orchestrator_callbacks", "orchestrator_guards", "sitecustomize"):
        (project / f"{name}.py").write_text(EVIL)
    done = program("run", "hi", "--model", "python:models:answers", "--tool", "models:look", "--json")
    assert done.code == 0, done.err
    assert (
        "no such model"
        not in program("run", "hi", "--model", "openai:m", "--base-url", "http://127.0.0.1:1").err
    )
    assert not (project / "taken").exists()


@pytest.mark.campaign
@pytest.mark.system("strace")
def test_before_consent_a_plain_run_opens_one_file_of_the_folder_and_starts_and_reaches_nothing(
    project: Path,
) -> None:
    for name in (
        ".env",
        "ralph.toml",
        "dbos-config.yaml",
        "procrastinate.toml",
        "pyproject.toml",
        "typer.py",
    ):
        (project / name).write_text("")
    settings(project, 'model = "openai:m"\nbase_url = "http://127.0.0.1:1/v1"\n')
    log = project.parent / f"{project.name}.strace"
    calls = "trace=open,openat,execve,connect,sendto"
    command = [
        "strace",
        "-f",
        "-y",
        "-qq",
        "-o",
        str(log),
        "-e",
        calls,
        sys.executable,
        "-B",
        "-m",
        "orchestrator",
    ]
    done = subprocess.run(
        [*command, "run", "hello"], cwd=project, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "orchestrator.toml is not trusted" in done.stderr) == (2, True), done.stderr
    lines = [line.partition(" ")[2].strip() for line in log.read_text(errors="replace").splitlines()]
    (started, *more) = [line for line in lines if line.startswith("execve(") and " = 0" in line]
    assert more == [], started
    assert [
        line for line in lines if line.startswith(("connect(", "sendto(")) and "AF_UNIX" not in line
    ] == []
    opened = [line for line in lines if line.startswith("open") and " = -1 " not in line]
    resolved = os.path.realpath(project)
    names = (line.rpartition("<")[2].rstrip(">") for line in opened)
    # strace writes an umlaut as its bytes, in octal
    inside = {name.encode().decode("unicode_escape").encode("latin-1").decode() for name in names} & {
        str(file) for file in Path(resolved).rglob("*") if file.is_file()
    }
    assert inside == {f"{resolved}/orchestrator.toml"}
    log.unlink()


# ---- which file a consent is for ----


def test_a_link_to_a_trusted_file_of_another_folder_is_not_trusted(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, one_sentence: Callable[[Done], str]
) -> None:
    own = project / "own"
    own.mkdir()
    settings(own, 'model = "python:evil:m"\n')
    monkeypatch.chdir(own)
    assert cli("trust").code == 0
    monkeypatch.chdir(project)
    (project / "orchestrator.toml").symlink_to(own / "orchestrator.toml")
    assert "orchestrator.toml is not trusted" in one_sentence(cli("run", "hello"))
    assert not (project / "taken").exists()


def test_a_trusted_file_finds_code_only_in_the_working_directory_that_the_user_trusted(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, one_sentence: Callable[[Done], str]
) -> None:
    own = project / "own"
    own.mkdir()
    text = 'spec = "x"\n' + "".join(f'[stages.{one}]\npython = "evil:m"\n' for one in STAGES)
    (own / "pipe.toml").write_text(text)
    monkeypatch.chdir(own)
    assert cli("trust", "pipe.toml").code == 0
    monkeypatch.chdir(project)
    said = one_sentence(cli("pipeline", "run", "own/pipe.toml"))
    assert "own/pipe.toml is not trusted in this working directory; it would use python 'evil:m'" in said
    assert not (project / "taken").exists()


def test_a_folder_that_is_reached_through_a_link_is_the_same_folder(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(project, 'model = "python:models:answers"\n')
    assert cli("trust").code == 0
    (project / "link").symlink_to(project)
    monkeypatch.chdir(project / "link")
    assert cli("run", "hi", "--tool", "models:look").code == 0


def test_the_bytes_that_are_checked_are_the_bytes_that_are_used(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = settings(project, 'model = "python:mine:m"\n')
    TrustConsent.to(ProjectFile.read(file)).record()

    refuse = consent.refuse_untrusted_file

    def swapped(found: ProjectFile) -> None:
        file.write_text('model = "python:evil:m"\n')
        refuse(found)

    monkeypatch.setattr(consent, "refuse_untrusted_file", swapped)
    assert project_settings().model == "python:mine:m"
    with pytest.raises(ConfigError, match="has changed since you trusted it"):
        project_settings()


def test_a_change_of_any_byte_needs_a_new_consent(project: Path) -> None:
    file = settings(project, 'model = "python:mine:m"\nbase_url = "http://127.0.0.1/v1" # a comment\n')
    TrustConsent.to(ProjectFile.read(file)).record()
    whole = file.read_bytes()
    refused = 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = settings_file()
        except ConfigError:
            continue  # it is not TOML any more
        assert found is not None
        assert not is_trusted_file(found)
        refused += 1
    assert refused > 40
    file.write_bytes(whole)
    assert project_settings().model == "python:mine:m"


# ---- what is recorded ----


def test_consents_are_listed_and_revoked(
    cli: Cli, project: Path, one_sentence: Callable[[Done], str]
) -> None:
    assert cli("trust", "--list").out.startswith("nothing is trusted yet")
    file = settings(project, 'model = "python:models:answers"\n')
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (entry,) = [json.loads(line) for line in cli("trust", "--json").out.splitlines()]
    expected = {"file": os.path.realpath(file), "folder": os.path.realpath(project), "digest": digest}
    details = ["use model 'python:models:answers'"]
    assert entry == {"state": "trusted", **expected, "details": details}
    (entry,) = [json.loads(line) for line in cli("trust", "--list", "--json").out.splitlines()]
    assert {name: entry[name] for name in expected} == expected
    assert f"trusted: {file}, in {project}, sha256 {digest[:12]}" in cli("trust", "--list").out
    assert cli("trust", "--revoke").out == f"revoked: {file}\nnot trusted: {project}/ralph.toml\n"
    assert "is not trusted" in one_sentence(cli("run", "hi"))
    assert "--list takes no file" in one_sentence(cli("trust", "--list", "--revoke"))


def test_there_is_something_to_trust_or_the_command_says_so(
    cli: Cli, project: Path, one_sentence: Callable[[Done], str]
) -> None:
    assert "there is neither orchestrator.toml nor ralph.toml here: name a file" in one_sentence(cli("trust"))
    assert "none.toml" in one_sentence(cli("trust", "none.toml"))
    (project / "bad.toml").write_text("a = [")
    assert "bad.toml cannot be read: it is not TOML" in one_sentence(cli("trust", "bad.toml"))
    (project / "large.toml").write_text(f"# {'x' * (1 << 20)}\n")
    assert "large.toml cannot be read: it has more than 1,048,576 bytes" in one_sentence(
        cli("trust", "large.toml")
    )


@pytest.mark.parametrize(("mode", "believed"), [(0o600, True), (0o644, False), (0o660, False)])
def test_a_consent_that_a_checkout_may_have_left_is_not_believed(
    project: Path, mode: int, believed: bool
) -> None:
    consent = TrustConsent.to(ProjectFile.read(settings(project, 'model = "m"\n')))
    consent.record()
    folder = Path(os.environ["XDG_STATE_HOME"]) / "orchestrator"
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / consent.name).chmod(mode)
    assert consent.is_recorded == believed
    (folder / consent.name).chmod(0o600)
    folder.chmod(0o770)
    assert not consent.is_recorded


def test_consents_that_are_recorded_at_once_are_all_kept_and_nothing_else_is_left(project: Path) -> None:
    files = [project / f"{number}.toml" for number in range(16)]
    for file in files:
        file.write_text(f"n = {file.stem}\n")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: TrustConsent.to(ProjectFile.read(file)).record(), files * 4))
    assert {one.file for one in consents()} == {os.path.realpath(file) for file in files}
    kept = list((Path(os.environ["XDG_STATE_HOME"]) / "orchestrator").iterdir())
    assert len(kept) == 16


@pytest.mark.parametrize("home", ["absent", "a-file"])
def test_without_a_home_directory_a_consent_is_kept_among_the_temporary_files(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (project / "a-file").write_text("")
    (project / "temporary").mkdir()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(project / home))
    monkeypatch.setenv("TMPDIR", str(project / "temporary"))
    settings(project, 'model = "python:models:answers"\n')
    assert cli("trust").code == 0
    assert cli("run", "hi", "--tool", "models:look").code == 0


def test_where_nothing_can_be_written_one_sentence_says_what_to_do_and_trust_for_one_command_works(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, one_sentence: Callable[[Done], str]
) -> None:
    (project / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "file" / "state"))
    monkeypatch.setenv("TMPDIR", str(project / "file" / "temporary"))
    settings(project, 'model = "python:models:answers"\n')
    said = one_sentence(cli("trust"))
    assert f"cannot be recorded: no folder can be written of {project}/file/state/orchestrator, " in said
    assert "or allow it with --trust for each command, or with ORCHESTRATOR_TRUST" in said
    assert "is not trusted" in one_sentence(cli("run", "hi"))
    assert cli("run", "hi", "--trust", "--tool", "models:look").code == 0
    assert cli("trust", "--list").code == 0


# ---- ORCHESTRATOR_TRUST ----


@pytest.mark.parametrize(
    ("value", "trusted"),
    [
        ("{folder}/orchestrator.toml", True),
        ("{folder}", True),
        ("{folder}/", True),
        ("/nowhere:{folder}/orchestrator.toml", True),
        ("all", True),
        ("/", True),
        ("{folder}/ralph.toml", False),
        ("{folder}/orchestrator", False),
        ("{folder}x", False),
        ("", False),
    ],
)
def test_a_container_names_the_files_and_folders_that_it_trusts(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, value: str, trusted: bool
) -> None:
    settings(project, 'model = "python:models:answers"\n')
    monkeypatch.setenv("ORCHESTRATOR_TRUST", value.format(folder=project))
    assert cli("run", "hi", "--tool", "models:look").code == (0 if trusted else 2)


@pytest.mark.parametrize("value", ["orchestrator.toml", "yes", "/app:.", "ALL"])
def test_a_wrong_list_of_trust_is_one_sentence(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, one_sentence: Callable[[Done], str], value: str
) -> None:
    settings(project, 'model = "python:models:answers"\n')
    monkeypatch.setenv("ORCHESTRATOR_TRUST", value)
    said = one_sentence(cli("run", "hi"))
    assert "possible: absolute paths of files or folders, separated by ':', or 'all'" in said


def test_a_folder_that_is_trusted_does_not_make_its_files_trusted_in_another_one(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, one_sentence: Callable[[Done], str]
) -> None:
    own = project / "own"
    own.mkdir()
    (own / "pipe.toml").write_text(
        'spec = "x"\n' + "".join(f'[stages.{s}]\npython = "evil:m"\n' for s in STAGES)
    )
    monkeypatch.setenv("ORCHESTRATOR_TRUST", str(own))
    assert "is not trusted" in one_sentence(cli("pipeline", "run", "own/pipe.toml"))
    assert not (project / "taken").exists()


def test_no_file_can_say_that_it_is_trusted(
    cli: Cli, project: Path, one_sentence: Callable[[Done], str]
) -> None:
    settings(project, 'trust = "all"\nmodel = "python:evil:m"\n')
    assert "is not trusted; it would use model 'python:evil:m', set trust" in one_sentence(cli("run", "hi"))
    with command_trust(allowed=True), pytest.raises(ConfigError, match="setting trust"):
        project_settings()


def test_every_command_that_works_in_a_project_takes_trust() -> None:
    def lacking(command: Any, path: str) -> Iterator[str]:
        for name, one in getattr(command, "commands", {}).items():
            yield from lacking(one, f"{path} {name}")
        options = {name for one in command.params for name in one.opts}
        if options & {"--journal", "--project"} and "--trust" not in options:
            yield path

    assert list(lacking(whole_program(), "orchestrator")) == []
