"""The Dockerfiles: what they copy is in the context, what they run is what `make wheel` tries, nobody is root."""

import fnmatch
import json
import re
import shlex
from pathlib import Path

import pytest

from support_deploy import DEPLOY, ROOT, read_command, read_serve

DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
EXTRAS = {"planner.Dockerfile": "planner", "executor.Dockerfile": "executor,cuda"}


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def of(path: Path, name: str) -> list[str]:
    return [argument for instruction, argument in instructions(path) if instruction == name]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_installs_by_the_script_that_make_wheel_runs_too(path: Path) -> None:
    (install, *_) = [run for run in of(path, "RUN") if "install.sh" in run]
    assert install.split(" && ")[0] == f"/src/deploy/docker/install.sh /src {EXTRAS[path.name]}"
    makefile = (ROOT / "Makefile").read_text()
    extra = EXTRAS[path.name].split(",")[0]
    assert re.search(rf"deploy/docker/install\.sh .* {extra}$", makefile, re.MULTILINE)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_nobody_and_its_base_has_a_version(path: Path) -> None:
    assert of(path, "USER")[-1] == "10001:10001"
    order = [name for name, _ in instructions(path)]
    assert order.index("USER") > max(index for index, name in enumerate(order) if name == "RUN")
    base = of(path, "ARG")[0].partition("=")[2] if of(path, "ARG") else of(path, "FROM")[0]
    assert re.search(r":\d+\.\d+", base)


def test_the_planners_command_and_health_check_are_ones_that_it_takes() -> None:
    path = DEPLOY / "docker" / "planner.Dockerfile"
    options = read_serve(json.loads(of(path, "CMD")[0]))
    (check,) = of(path, "HEALTHCHECK")
    health = read_command(json.loads(check.partition("CMD ")[2]), "health")
    assert health["planner"] == options["listen"]
    assert options["store"].startswith(of(path, "VOLUME")[0])
    assert options["listen"].rpartition(":")[2] in shlex.split(of(path, "EXPOSE")[0])


def test_the_executors_base_holds_the_torch_that_ci_runs() -> None:
    (base,) = of(DEPLOY / "docker" / "executor.Dockerfile", "ARG")
    pinned = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"pytorch:{pinned[1]}-cuda" in base


def test_the_context_holds_what_a_build_needs_and_no_tests() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in let_in)
    project = (ROOT / "pyproject.toml").read_text()
    packages = {entry.partition("/")[0] for entry in re.findall(r'^ {4}"(\w+/infinipipe\w*)",$', project, re.MULTILINE)}
    assert packages | {"pyproject.toml", "constraints.txt", "README.md", "deploy/docker"} == let_in
    assert not any(fnmatch.fnmatch("tests", pattern) for pattern in let_in)
