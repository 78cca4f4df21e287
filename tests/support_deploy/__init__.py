"""What the files in `deploy/` say: commands as our own parsers read them, and manifests as Kubernetes would."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from click import Context
from torch.distributed.run import get_args_parser

from infinipipe_executor.__main__ import build_parser
from infinipipe_planner.cli import build_app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def read_serve(words: list[str]) -> dict[str, Any]:
    """Parse `infinipipe serve ...` as the program itself would; fails where it would refuse.

    Returns:
        The options by their names.
    """
    return read_command(words, "serve")


def read_command(words: list[str], command: str) -> dict[str, Any]:
    """Parse a command of `infinipipe`; see ``read_serve``."""
    program, name, *arguments = words
    assert (Path(program).name, name) == ("infinipipe", command), words
    group: Any = typer.main.get_command(build_app())
    context: Context = group.commands[name].make_context(name, arguments)
    return context.params


def read_torchrun(words: list[str]) -> tuple[Any, Any]:
    """Parse `torchrun ... -m infinipipe_executor ...`; fails where torchrun or the executor would refuse.

    Returns:
        What torchrun, and what the executor reads.
    """
    program, *arguments = words
    assert program == "torchrun", words
    launch = get_args_parser().parse_args(arguments)
    assert launch.module
    assert launch.training_script == "infinipipe_executor"
    return launch, build_parser().parse_args(launch.training_script_args)


def script_commands(text: str, program: str) -> list[list[str]]:
    """Find the commands in a shell script that run a program; variables stand for themselves.

    Args:
        text: The script.
        program: The command's first word.

    Returns:
        The words of every such command, from the program on.
    """
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#"):
            continue
        words = shlex.split(line.replace("$(", "(").replace("<(", "").rstrip(")&; "), comments=True)
        if program in words:
            found.append(words[words.index(program) :])
    return found


def load_manifests(*folders: str) -> list[Any]:
    """Load all manifests of folders below `deploy/`, those of Kustomize itself left out."""
    return [
        manifest
        for folder in folders
        for path in sorted((DEPLOY / folder).glob("*.yaml"))
        for manifest in yaml.safe_load_all(path.read_text())
        if manifest["kind"] != "Kustomization"
    ]


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Go through all mappings inside a value."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def pod_specs(manifest: Any) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Find the pods that a manifest makes: labels and spec of each."""
    return [
        (part.get("metadata", {}).get("labels", {}), part["spec"])
        for part in walk(manifest)
        if isinstance(part.get("spec"), dict) and "containers" in part["spec"]
    ]
