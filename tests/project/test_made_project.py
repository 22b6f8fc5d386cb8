"""A project of `orchestrator init` is used as its owner would: tests, runs, service, image, additions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.service_client import Client
from tests.project.conftest import PATHS, MadeProject, RunningService, Serve, clean_environment, environment

pytestmark = pytest.mark.system("make")


@pytest.mark.campaign
def test_its_tests_pass_at_once(made: MadeProject) -> None:
    said = made.run("make", "test")
    assert re.search(r"\d+ passed", said)
    assert re.search(r"answer_loop  (\d+)/\1 100 %  (\d+)/\2 100 % ", said)


@pytest.mark.campaign
def test_the_commands_at_the_top_of_its_readme_work_before_anything_is_set_up(
    pristine: Path, tmp_path: Path
) -> None:
    shutil.copytree(pristine, tmp_path / "shop")
    project = MadeProject(tmp_path / "shop")
    programs = environment(tmp_path / "environment")
    program = programs / "orchestrator"
    program.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m orchestrator "$@"\n')
    program.chmod(0o755)
    readme = (project.folder / "README.md").read_text()
    commands = readme.partition("```sh\n")[2].partition("```")[0].splitlines()
    said = [
        project.run("sh", "-c", f"PATH={programs}:$PATH; echo 'Where is order 8?' | {command}")
        for command in commands
    ]
    assert [command.split()[:2] for command in commands] == [
        ["python", "-m"],
        ["orchestrator", "graph"],
        ["orchestrator", "lint"],
        ["orchestrator", "eval"],
        ["orchestrator", "chat"],
        ["orchestrator", "runs"],
    ]
    run, graph, _, cases, chat, runs = said
    assert run.splitlines()[-1] == "completed: Order 7: one kettle, 40 EUR, on its way."
    assert "review" in graph
    assert "4 of 4 cases passed" in cases
    assert "Order 8: one kettle, 40 EUR, on its way." in chat
    assert re.search(r" shop +answer_loop +ended +completed ", runs)
    assert not (project.folder / ".venv").exists()


def test_a_model_has_the_name_that_it_has_everywhere_and_a_failed_run_shows_its_error(pristine: Path) -> None:
    named = {
        "SHOP_MODEL": "openai:gpt-5-mini",
        "OPENAI_API_KEY": "key",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    }
    path = {"PYTHONPATH": os.pathsep.join(PATHS[1:]), "PYTHONDONTWRITEBYTECODE": "1"}
    ask = "from shop.agent import make_agent; print(make_agent(observers=()).hosting.model)"
    said = [
        subprocess.run(
            [sys.executable, *arguments],
            cwd=pristine,
            env=clean_environment() | path | named,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        for arguments in (("-c", ask), ("-m", "shop"))
    ]
    assert said[0] == "gpt-5-mini"
    assert said[1].startswith("failed: ")
    assert "http://127.0.0.1:9/v1" in said[1]


@pytest.mark.campaign
def test_make_run_shows_the_states_and_make_graph_eval_and_chat_work(made: MadeProject) -> None:
    lines = made.run("make", "run").splitlines()
    assert lines[0].split() == ["init", "start_loop", "await_llm"]
    assert ["handle_completion", "completion_success", "review"] in [line.split() for line in lines]
    assert lines[-1] == "completed: Order 7: one kettle, 40 EUR, on its way."
    assert made.run("make", "graph").split() == ["build/answer_loop.svg"]
    assert "4 of 4 cases passed" in made.run("make", "eval")
    talk = made.run("sh", "-c", "printf 'Where is order 7?\\nAnd order 8?\\n' | make chat").splitlines()
    assert [line for line in talk if line.startswith("Order")] == [
        "Order 7: one kettle, 40 EUR, on its way.",
        "Order 8: one kettle, 40 EUR, on its way.",
    ]


@pytest.mark.campaign
def test_each_kind_of_addition_passes_the_tests_of_the_project(made: MadeProject) -> None:
    before = int(re.findall(r"(\d+) passed", made.run("make", "test"))[-1])
    for addition in (
        ("state", "translate"),
        ("state", "polish"),
        ("tool", "find_customer"),
        ("guard", "daily_refunds"),
        ("machine", "returns"),
        ("state", "pack", "--machine", "returns"),
    ):
        made.orchestrator("add", *addition)
        passed = int(re.findall(r"(\d+) passed", made.run("make", "test"))[-1])
        assert passed > before, addition
        before = passed
    path = [line.split() for line in made.run("make", "run").splitlines()]
    assert ["translate", "translate_done", "polish"] in path
    assert ["polish", "polish_done", "finalize"] in path
    rules = (made.folder / "ops" / "prometheus" / "rules.yml").read_text()
    assert 'machine="returns"' in rules
    assert made.run("make", "graph").split() == ["build/answer_loop.svg", "build/returns.svg"]


def a_killed_service_continues(service: RunningService) -> None:
    client = service.client
    client.post("/runs", prompt="Refund order 7.", run_id="refund")
    client.until(lambda: client.get("/runs/refund/questions"))
    names = [f"order-{number}" for number in range(10)]
    for number, name in enumerate(names):
        client.post("/runs", prompt=f"Where is order {number}?", run_id=name)
    service.kill()
    service.begin()
    for number, name in enumerate(names):
        client.until(lambda: client.get(f"/runs/{name}")["status"] == "ended")  # noqa: B023
        assert client.get(f"/runs/{name}/result")["output"].startswith(f"Order {number}: ")
    (question,) = client.get("/runs/refund/questions")
    client.post("/runs/refund/approve", digest=question["digest"])
    client.until(lambda: client.get("/runs/refund")["status"] == "ended")
    assert client.get("/runs/refund/result")["output"] == "40 EUR for order 7 are on their way."
    with client.http() as http:
        metrics = http.get("/metrics").text
    assert re.search(r'^orchestrator_transitions_total\{.*machine="answer_loop"', metrics, re.MULTILINE)


@pytest.mark.campaign
def test_its_service_continues_its_runs_after_kill_9(made: MadeProject, serve: Serve) -> None:
    command = [str(made.folder / ".venv" / "bin" / "python"), "-m", "shop.service", "--port", "8000"]
    a_killed_service_continues(serve(command, made.folder))


@pytest.mark.campaign
@pytest.mark.canary
def test_its_service_starts_with_the_token_of_init_and_only_with_it_for_other_machines(
    made: MadeProject, serve: Serve
) -> None:
    token = (made.folder / ".env").read_text().splitlines()[-1].partition("=")[2]
    service = serve(["make", "serve", "ARGS=--port 8000"], made.folder, SHOP_TOKEN="")
    service.client = Client(service.port, token)
    service.client.post("/runs", prompt="Refund order 7.", run_id="refund")
    service.client.until(lambda: service.client.get("/runs/refund/questions"))
    (question,) = service.client.get("/runs/refund/questions")
    with Client(service.port).http() as other:
        answer = {"digest": question["digest"]}
        assert other.post("/runs/refund/approve", json=answer, headers={"X-User": "ceo"}).status_code == 401
        assert other.get("/runs").status_code == 401
    service.client.post("/runs/refund/approve", digest=question["digest"])
    service.client.until(lambda: service.client.get("/runs/refund")["status"] == "ended")
    done = subprocess.run(
        [made.folder / ".venv" / "bin" / "python", "-m", "shop.service", "--host", "::", "--port", "0"],
        cwd=made.folder,
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("error: --host :: is not this machine only: set SHOP_TOKEN\n")


# ---- the image, without a container engine ----


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    found = [line.partition(" ") for line in lines]
    return [(word, rest) for word, _, rest in found]


def built(context: Path, root: Path, programs: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Carry out a Dockerfile in a folder: its files, its variables, and its commands, as the service gets them."""
    variables = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    commands: dict[str, list[str]] = {}
    for word, rest in instructions(context / "Dockerfile"):
        if word == "ENV":
            variables |= dict(pair.split("=", 1) for pair in rest.split())
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                into = root / target / source if target.endswith("/") else root / target
                copy = shutil.copytree if (context / source).is_dir() else shutil.copy
                copy(context / source, into)
        elif word == "RUN":
            offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", **variables}
            MadeProject(root).run(
                "env", *(f"{name}={value}" for name, value in offline.items()), "sh", "-ec", rest
            )
        elif word in {"CMD", "HEALTHCHECK"}:
            commands[word] = json.loads(rest.removeprefix("CMD "))
    return variables, commands


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [1, 2])
def test_its_dockerfile_gives_a_service_that_survives_kill_9(
    made: MadeProject, serve: Serve, tmp_path: Path, database: str, workers: int
) -> None:
    root, programs = tmp_path / "image", environment(tmp_path / "image-environment")
    root.mkdir()
    variables, commands = built(made.folder, root, programs)
    assert not (root / "tests").exists()
    assert oct((root / "data").stat().st_mode)[-4:] == "1777"
    if workers > 1:  # as compose.yaml
        variables["ORCHESTRATOR_JOURNAL"] = database
        commands["CMD"] += ["--workers", str(workers)]
    service = serve([str(programs / commands["CMD"][0]), *commands["CMD"][1:]], root, **variables)
    check = [part.replace("8000", str(service.port)) for part in commands["HEALTHCHECK"]]
    MadeProject(root).run(str(programs / check[0]), *check[1:])
    if workers == 1:
        a_killed_service_continues(service)
        assert (root / "data" / "journal.db").exists()
    else:
        service.client.post("/runs", prompt="Where is order 7?", run_id="one")
        service.client.until(lambda: service.client.get("/runs/one")["status"] == "ended")
