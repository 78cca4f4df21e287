"""Small but whole runs: files to train on, a configuration, torchrun, and what is left of it."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infinipipe_contract.codec import profile_to_json
from infinipipe_contract.model_memory import logits_bytes, model_state_bytes, token_bytes
from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_executor.model.config import ModelConfig

TESTS = Path(__file__).resolve().parents[1]

MODEL_KEYS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
TINY = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=300)

Sections = Mapping[str, Mapping[str, object]]


def write_texts(folder: Path) -> None:
    """Write documents of skewed lengths: many short ones, a few that are longer than the context."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    for index in range(24):
        word_count = 400 if index % 8 == 0 else rng.randint(3, 120)
        words = [rng.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(word_count)]
        (folder / f"{index:02}.txt").write_text(" ".join(words) + "\n")


def write_run(
    folder: Path,
    *,
    dp_size: int = 1,
    pp_size: int = 2,
    sp_size: int = 2,
    changes: Sections | None = None,
    model: Path | None = None,
) -> Path:
    """Write texts, a profile and a configuration of a tiny run.

    Args:
        folder: Where to write.
        dp_size: Replicas of the pipeline.
        pp_size: Stages.
        sp_size: Ranks of a stage.
        changes: Keys to set or replace, by section.
        model: Folder with a model that takes the place of the tiny one.

    Returns:
        The configuration.
    """
    write_texts(folder / "texts")
    (folder / "profile.json").write_text(profile_to_json(tiny_profile(pp_size, sp_size, dp_size=dp_size)))
    sections: dict[str, dict[str, object]] = {
        "job": {"name": "tiny", "steps": 4, "seed": 3},
        "model": {"path": str(model)} if model else {key: getattr(TINY, key) for key in MODEL_KEYS},
        "data": {
            "corpus": "texts",
            "pattern": "*.txt",
            "cache": "cache",
            "context_tokens": 128,
            "beyond_context": "truncate",
            "sequences_per_batch": 6,
        },
        "cluster": {
            "dp_size": dp_size,
            "pp_size": pp_size,
            "sp_size": sp_size,
            "device_memory_mib": 1.0,
            "usable_memory_ratio": 1.0,
            "collective_timeout_s": 20.0,
        },
        "optimizer": {"learning_rate": 1e-2},
        "planner": {"profile": "profile.json", "connect_timeout_s": 30.0, "wait_timeout_s": 60.0},
    }
    for section, keys in (changes or {}).items():
        sections.setdefault(section, {}).update(keys)
    lines = []
    for section, keys in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
    path = folder / "run.toml"
    path.write_text("\n".join(lines))
    return path


def tiny_profile(pp_size: int, sp_size: int, device_memory_bytes: float = 2**20, *, dp_size: int = 1) -> Profile:
    """A cost model under which cutting sequences pays."""
    return Profile(
        name="tiny",
        model=ModelShape(TINY.layers, TINY.hidden, TINY.kv_dim, TINY.ffn, TINY.vocab, dtype_bytes=4),
        cluster=Cluster(pp_size, sp_size, device_memory_bytes, usable_memory_ratio=1.0, dp_size=dp_size),
        forward=ComputeCost(alpha1=1e-7, alpha2=1e-5, beta1=1e-4),
        backward=ComputeCost(alpha1=2e-7, alpha2=2e-5, beta1=2e-4),
        all2all=LinkCost(bandwidth_bytes_per_s=1e9, latency_s=1e-6),
        p2p=LinkCost(bandwidth_bytes_per_s=1e9, latency_s=1e-6),
        param_gather_s=(0.0,) * pp_size,
        memory=MemoryCost(
            token_bytes=token_bytes(TINY.shape, 4, sp_size),
            logits_bytes=logits_bytes(TINY.shape, 4),
            model_state_bytes=tuple(model_state_bytes(TINY.shape, pp_size, sp_size, stage) for stage in range(pp_size)),
        ),
    )


@dataclass(frozen=True)
class Ended:
    """A run that is over: everything it printed, its exit code, how long it took."""

    output: str
    code: int
    seconds: float


def torchrun(
    config: Path,
    planner: str,
    *,
    ranks: int,
    module: tuple[str, ...] = ("infinipipe_executor",),
    timeout_s: float = 90.0,
    options: tuple[str, ...] = (),
) -> Ended:
    """Run workers to their end; whatever is left of them is killed, and then the test fails.

    Args:
        config: Configuration of the run.
        planner: Address of the planner.
        ranks: Workers.
        module: Module that the workers run, and arguments in front of the ordinary ones.
        timeout_s: Longest time of the run.
        options: More of torchrun's.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [*options, "-m", *module, "--config", str(config), "--planner", planner]
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))  # workers run what the test runs
    environment = os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started_s = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        killed = kill_all(str(config))
        output, _ = process.communicate(timeout=10)
        raise AssertionError(f"the run did not end within {timeout_s} s; killed {killed}:\n{output}") from None
    seconds = time.monotonic() - started_s
    left = kill_all(str(config))
    assert not left, f"processes {left} were left behind:\n{output}"
    return Ended(output, process.returncode, seconds)


def processes_with(argument: str) -> list[int]:
    """List the processes that have a text among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
    return found


def kill_all(argument: str) -> list[int]:
    """Kill the processes that have a text among their arguments, and list them."""
    found = processes_with(argument)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


@contextlib.contextmanager
def planner_process() -> Iterator[str]:
    """Run ``infinipipe serve`` as a process of its own and give its address."""
    command = [str(Path(sys.executable).with_name("infinipipe")), "serve", "--listen", "127.0.0.1:0", "--workers", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("planner listening on "), line
        yield line.split()[3]
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
