"""The demo: a planning service and four workers train a small Llama on this interpreter's standard library.

Starts the two programs as a user would, on loopback, shows what they print, and then one of the plans. Run it with
``make demo``; everything it makes is in ``.demo/``.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from processes import nothing_left_behind, running

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / ".demo"
INFINIPIPE = Path(sys.executable).with_name("infinipipe")

PLANNER_LINE = re.compile(r"planner listening on (\S+)")
STEP_LINE = re.compile(
    r"step +(?P<step>\d+) of \d+  loss (?P<loss>\S+) .*  chunks (?P<batched>\d+)b/(?P<split>\d+)s/(?P<hybrid>\d+)h"
    r"  K (?P<slices>\d+)  pipelines (?P<pipelines>\d+)  recompute (?P<recompute>\d+) layers .*"
    r"  plan wait (?P<wait>\S+) s"
)


@dataclass
class Step:
    """What the line of one step says."""

    index: int
    loss: float
    chunks: dict[str, int]
    slices: int
    pipelines: int
    recompute: int
    wait_s: float


@dataclass
class Run:
    """What the workers printed: their steps, and the last line that names an error."""

    steps: list[Step] = field(default_factory=list)
    error: str = ""

    def read(self, line: str) -> None:
        """Take notice of one line."""
        if line.startswith("error: "):
            self.error = line.strip()
        found = STEP_LINE.match(line)
        if found:
            self.steps.append(
                Step(
                    index=int(found["step"]),
                    loss=float(found["loss"]),
                    chunks={kind: int(found[kind]) for kind in ("batched", "split", "hybrid")},
                    slices=int(found["slices"]),
                    pipelines=int(found["pipelines"]),
                    recompute=int(found["recompute"]),
                    wait_s=float(found["wait"]),
                )
            )


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description="Train a small Llama with a planning service and four workers.")
    parser.add_argument("--config", type=Path, default=HERE / "demo.toml", help="configuration of the run")
    config = parser.parse_args().config
    started_s = time.monotonic()
    WORK.mkdir(exist_ok=True)
    _link_standard_library()
    with nothing_left_behind(), (WORK / "planner.log").open("wb") as log:
        say("starting the planning service: Ray takes some seconds (its log: .demo/planner.log)")
        serve = [str(INFINIPIPE), "serve", "--listen", "127.0.0.1:0", "--workers", "1"]
        with running(serve, {}, log) as planner:
            address = _read_address(planner)
            if not address:
                say((WORK / "planner.log").read_text(errors="replace")[-2000:])
                say("error: the planning service did not start")
                return 1
            say(f"planner at {address}; starting four workers: importing torch takes some seconds")
            run, code = _train(config, address)
            if code:
                say(f"{run.error or 'error: see above'} (workers ended with exit code {code})")
                return code
            job = tomllib.loads(config.read_text())["job"]["name"]
            _show(run, job, address)
    say(f"done in {time.monotonic() - started_s:.0f} s; everything that was started is gone")
    return 0


def say(text: str) -> None:
    """Write to the terminal at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _link_standard_library() -> None:
    """Make .demo/stdlib lead to the sources of this interpreter, so that the configuration can name them."""
    link = WORK / "stdlib"
    link.unlink(missing_ok=True)
    link.symlink_to(sysconfig.get_paths()["stdlib"])


def _read_address(planner: subprocess.Popen[str]) -> str:
    """Wait until the planner says where it listens; empty if it ends instead."""
    assert planner.stdout is not None
    for line in planner.stdout:
        found = PLANNER_LINE.match(line)
        if found:
            return found[1]
    return ""


def _train(config: Path, address: str) -> tuple[Run, int]:
    """Run the workers to their end and return what they printed and their exit code."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    worker = ["-m", "infinipipe_executor", "--config", str(config), "--planner", address]
    # Loopback, and one thread a worker: four workers share the cores.
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run = Run()
    with running([*torchrun, *worker], environment, subprocess.STDOUT) as workers:
        assert workers.stdout is not None
        for line in workers.stdout:
            say(line.rstrip())
            run.read(line)
        return run, workers.wait()


def _show(run: Run, job: str, address: str) -> None:
    """Show one plan through the command line, sum up, and say what to try next."""
    # The plan with most kinds of chunks, then with recompute, then the shortest one.
    best = max(
        run.steps,
        key=lambda step: (
            sum(count > 0 for count in step.chunks.values()),
            step.recompute > 0,
            -sum(step.chunks.values()),
        ),
    )
    command = ["infinipipe", "show", job, str(best.index), "--planner", address]
    say(f"\n$ {' '.join(command)}")
    subprocess.run([str(INFINIPIPE), *command[1:]], check=True)

    waits = [step.wait_s for step in run.steps if step.index > 0]
    kinds = {kind: sum(step.chunks[kind] for step in run.steps) for kind in ("batched", "split", "hybrid")}
    recomputing = sum(step.recompute > 0 for step in run.steps)
    say(
        f"""
summary
  loss                        {run.steps[0].loss:.3f} -> {run.steps[-1].loss:.3f} in {len(run.steps)} steps
  chunks                      {", ".join(f"{count} {kind}" for kind, count in kinds.items())}
  slices of the longest (K)   {", ".join(map(str, sorted({step.slices for step in run.steps})))}
  pipelines in a step         {", ".join(map(str, sorted({step.pipelines for step in run.steps})))}
  steps with recompute        {recomputing} of {len(run.steps)}
  longest wait for a plan     {max(waits, default=0.0):.1f} s after the first step

what to try next
  change device_memory_mib in examples/demo/demo.toml and watch recompute come and go
  point [data] corpus at a folder or a .jsonl file of yours
  infinipipe plan --profile P.json --lengths L.json        plan without training
  docs/architecture.md                                     the life of a step
"""
    )


if __name__ == "__main__":
    sys.exit(main())
