"""A soak in miniature: jobs train against one planner while it, its solvers and its clients are killed at random.

    python benchmarks/soak.py --steps 10000
    python benchmarks/soak.py --steps 1000 --workers 2      # solvers on Ray

Every job is a process that trains nothing: it submits lengths one step ahead, takes the plan, checks it against the
batch and reports, as rank 0 of a run does. A job that is killed starts again where it was and opens a new generation.
At the end: every step done once, in order, and none lost, equal requests with equal plans, and memory, handles and
store after the first quarter beside the end. Ends with 1 when any of it does not hold.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_contract.validate import validate
from infinipipe_executor.plan_client import PlanClient, RankReport

SEQUENCES = 8
CONTEXT_TOKENS = 4_096
BATCH_KINDS = 50
"""Batches come round, so that the same request is made again and again and its plan can be compared."""

CALL_TIMEOUT_S = 120.0
PROGRESS_INTERVAL_S = 15.0
PROFILE = Profile(
    name="soak",
    model=ModelShape(layers=4, hidden=64, kv_dim=32, ffn=128, vocab=512, dtype_bytes=4),
    cluster=Cluster(pp_size=2, sp_size=1, device_memory_bytes=2.0**33, usable_memory_ratio=1.0),
    forward=ComputeCost(alpha1=1e-12, alpha2=1e-6, beta1=1e-4),
    backward=ComputeCost(alpha1=2e-12, alpha2=2e-6, beta1=1e-4),
    all2all=LinkCost(bandwidth_bytes_per_s=1e10, latency_s=1e-6),
    p2p=LinkCost(bandwidth_bytes_per_s=1e10, latency_s=1e-6),
    param_gather_s=(0.0, 0.0),
    memory=MemoryCost(token_bytes=1024.0, logits_bytes=64.0, model_state_bytes=(1e6, 1e6)),
)


def lengths_of(step: int) -> tuple[int, ...]:
    """Lengths of a step's batch: skewed, and equal every ``BATCH_KINDS`` steps."""
    draw = random.Random(step % BATCH_KINDS)
    return tuple(max(1, min(CONTEXT_TOKENS, round(draw.lognormvariate(5.0, 1.5)))) for _ in range(SEQUENCES))


def train(address: str, job: str, first_step: int, steps: int, record: Path, policy: str) -> None:
    """Body of a job: one line a step into a file, written after the step is done."""
    with PlanClient(address, call_timeout_s=CALL_TIMEOUT_S) as client, record.open("a", buffering=1) as done:
        generation = client.create_job(job, PROFILE, context_tokens=CONTEXT_TOKENS, policy=policy)
        client.submit_batch(first_step, lengths_of(first_step), timeout_s=CALL_TIMEOUT_S)
        for step in range(first_step, steps):
            if step + 1 < steps:
                client.submit_batch(step + 1, lengths_of(step + 1), timeout_s=CALL_TIMEOUT_S)
            started_s = time.monotonic()
            plan = client.fetch_plan(step, timeout_s=CALL_TIMEOUT_S)
            waited_s = time.monotonic() - started_s
            validate(plan, lengths_of(step), PROFILE)
            client.report_step(step, RankReport(rank=0, stage_index=0, step_s=1e-3, busy_s=1e-3, plan_wait_s=waited_s))
            layout = hashlib.sha256(repr((plan.pipelines, plan.target_token_count)).encode()).hexdigest()[:16]
            outcome = plan.report.outcome.value
            done.write(json.dumps([step, generation, layout, outcome, round(waited_s, 3)]) + "\n")


@dataclasses.dataclass(slots=True)
class Sample:
    """What the planner held at one moment."""

    resident_mib: float
    handle_count: int
    thread_count: int
    store_mib: float


def free_port() -> int:
    """A port that the system gives to nobody else while its planner is dead."""
    for port in range(20_000, 32_768):  # below those that it hands out by itself
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


class Planner:
    """`infinipipe serve` on one port with one store, however often it is killed."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.store = folder / "planner.sqlite"
        self._log = (folder / "planner.log").open("a")
        self._workers = workers
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = "from infinipipe_planner.cli import main; main()"
        options = ["--listen", self.address, "--store", str(self.store), "--workers", str(self._workers)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "planner listening" not in line:
            last = Path(self._log.name).read_text().splitlines()[-1:]
            raise RuntimeError(f"the planner did not start: {' '.join(last)}")

    @property
    def pid(self) -> int:
        """Its process id; 0 before the start."""
        return 0 if self.process is None else self.process.pid

    def kill(self) -> None:
        """Kill it and what is below it, as the loss of its machine would."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """End it as a supervisor does, if it was started."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
            self._reap()
        self._log.close()

    def solver_pids(self) -> list[int]:
        """Processes below the planner that build plans."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                pid, parent = int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
                command = (stat.parent / "cmdline").read_bytes()
                is_child = parent == self.pid and b"spawn_main" in command
                if is_child or (b"ray::_CandidateSolver" in command and os.getpgid(pid) == self.pid):
                    found.append(pid)
        return found

    def sample(self) -> Sample | None:
        """Look at it from outside; None while it is gone."""
        proc = Path(f"/proc/{self.pid}")
        try:
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            handle_count = len(list((proc / "fd").iterdir()))
        except (OSError, ValueError):
            return None
        store_bytes = sum(path.stat().st_size for path in self.store.parent.glob("planner.sqlite*"))
        return Sample(int(status["VmRSS"].split()[0]) / 1024, handle_count, int(status["Threads"]), store_bytes / 2**20)

    def _reap(self) -> None:
        assert self.process is not None
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Job:
    """A job, started again where it was whenever it is killed."""

    def __init__(self, name: str, address: str, steps: int, folder: Path, policy: str) -> None:
        self.record = folder / f"{name}.jsonl"
        self.record.touch()
        self._arguments = (name, steps, policy)
        self.address = address
        self.restarts = -1
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["infinipipe_executor.plan_client"])  # a start costs a fork, no imports
        self.start()

    def start(self) -> None:
        """Start a process that goes on where the last one ended."""
        name, steps, policy = self._arguments
        self.restarts += 1
        first_step = self.done_count
        self.process = self._context.Process(
            target=train, args=(self.address, name, first_step, steps, self.record, policy)
        )
        self.process.start()

    @property
    def done_count(self) -> int:
        """Steps that are done; a last line that a kill cut off does not count, and is taken away."""
        lines = self.record.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines) and not self.is_running:
            self.record.write_text("".join(whole))
        return len(whole)

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return hasattr(self, "process") and self.process.is_alive()


def disturb(planner: Planner, jobs: Sequence[Job], draw: random.Random, killed: dict[str, int]) -> None:
    """Kill one of them, and start it again."""
    what = draw.choices(("planner", "solver", "client"), (1, 2, 2))[0]
    if what == "planner":
        planner.kill()
        killed[what] += 1
        planner.start()
    elif what == "solver":
        for pid in draw.sample(planner.solver_pids(), min(1, len(planner.solver_pids()))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed[what] += 1
    else:
        running = [job for job in jobs if job.is_running]
        if running:
            job = draw.choice(running)
            job.process.kill()
            job.process.join()
            killed[what] += 1
            job.start()


def run(arguments: argparse.Namespace, folder: Path) -> bool:
    """Run the soak and print what was found; returns whether all of it holds."""
    draw = random.Random(arguments.seed)
    planner = Planner(folder, arguments.workers)
    steps = -(-arguments.steps // arguments.jobs)
    jobs: list[Job] = []
    killed: dict[str, int] = defaultdict(int)
    samples: list[tuple[float, Sample]] = []
    stopped_early = False
    next_kill_s, next_progress_s = arguments.kill_every_s, PROGRESS_INTERVAL_S
    started_s = time.monotonic()
    try:
        planner.start()
        for index in range(arguments.jobs):  # one by one: what ends the loop finds those that were started
            jobs.append(Job(f"job-{index}", planner.address, steps, folder, arguments.policy))  # noqa: PERF401
        while any(job.done_count < steps for job in jobs):
            time.sleep(0.5)
            passed_s = time.monotonic() - started_s
            done_ratio = sum(job.done_count for job in jobs) / (steps * len(jobs))
            sample = planner.sample()
            if sample is not None:
                samples.append((done_ratio, sample))
            for job in jobs:
                if not job.is_running and job.done_count < steps:
                    print(f"{job.record.stem} ended by itself with {job.process.exitcode} and is started again")
                    job.start()
            if passed_s > next_progress_s:
                print(f"{passed_s:.0f} s: {done_ratio:.0%} of the steps, killed {dict(killed)}", file=sys.stderr)
                next_progress_s += PROGRESS_INTERVAL_S
            if passed_s > next_kill_s:
                disturb(planner, jobs, draw, killed)
                next_kill_s = passed_s + draw.uniform(0.5, 1.5) * arguments.kill_every_s
            if passed_s > arguments.limit_s:
                stopped_early = True
                break
        passed_s = time.monotonic() - started_s
    finally:
        for job in jobs:
            job.process.kill()
            job.process.join()
        planner.stop()
    return report(jobs, steps, killed, samples, passed_s, planner.store, stopped_early=stopped_early)


def report(
    jobs: Sequence[Job],
    steps: int,
    killed: dict[str, int],
    samples: Sequence[tuple[float, Sample]],
    passed_s: float,
    store: Path,
    *,
    stopped_early: bool,
) -> bool:
    """Print the table; returns whether every check holds."""
    layouts: dict[int, set[str]] = defaultdict(set)
    waits, outcomes = [], defaultdict[str, int](int)
    in_order, done_total = True, 0
    for job in jobs:
        rows = [json.loads(line) for line in job.record.read_text().splitlines()]
        done_total += len(rows)
        in_order &= [row[0] for row in rows] == list(range(len(rows)))
        for step, _, layout, outcome, waited_s in rows:
            outcomes[outcome] += 1
            waits.append(waited_s)
            if outcome != "fallback":  # what was planned without a solver is another plan, and says so
                layouts[step % BATCH_KINDS].add(layout)
    waits.sort()
    connection = sqlite3.connect(store)
    integrity = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    early = [sample for ratio, sample in samples if 0.2 <= ratio < 0.4]
    late = [sample for ratio, sample in samples if ratio >= 0.8]
    print(f"{'steps done':32}{done_total} of {steps * len(jobs)} in {passed_s:.0f} s, {len(jobs)} jobs")
    print(f"{'killed':32}{', '.join(f'{count} {what}s' for what, count in sorted(killed.items())) or 'nothing'}")
    print(f"{'generations':32}{sum(job.restarts + 1 for job in jobs)}")
    print(f"{'outcomes':32}{', '.join(f'{count} {name}' for name, count in outcomes.items())}")
    if waits:
        percentiles = ", ".join(f"{waits[int(q * (len(waits) - 1))]:.3f}" for q in (0.5, 0.99, 1.0))
        print(f"{'wait for a plan, s':32}{percentiles} (median, 99 %, longest)")
    for title, field in (
        ("planner's memory, MiB", "resident_mib"),
        ("planner's handles", "handle_count"),
        ("planner's threads", "thread_count"),
        ("store, MiB", "store_mib"),
    ):
        if early and late:
            first, last = (max(getattr(one, field) for one in part) for part in (early, late))
            print(f"{title:32}{first:.1f} at 20 to 40 % of the steps, {last:.1f} at 80 to 100 %")
    checks = {
        "all steps done": not stopped_early and done_total == steps * len(jobs),
        "no step lost or doubled": in_order,
        "equal requests, equal plans": all(len(found) == 1 for found in layouts.values()),
        "store intact": integrity == "ok",
    }
    if early and late:
        checks["memory flat (within 10 %)"] = max(one.resident_mib for one in late) <= 1.1 * max(
            one.resident_mib for one in early
        )
        checks["handles flat (within 10)"] = (
            max(one.handle_count for one in late) <= max(one.handle_count for one in early) + 10
        )
    for title, holds in checks.items():
        print(f"{title:32}{'yes' if holds else 'NO'}")
    return all(checks.values())


def main() -> None:
    """Read the arguments, run, leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of all jobs together")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0, help="solver processes; 0 is one without Ray")
    parser.add_argument("--policy", default="paper")
    parser.add_argument("--kill-every-s", type=float, default=6.0, help="mean seconds between two kills")
    parser.add_argument("--limit-s", type=float, default=900.0, help="seconds after which it is given up")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="infinipipe-soak-") as folder:
        holds = run(arguments, Path(folder))
    sys.exit(0 if holds else 1)


def _leave(number: int, _: object) -> None:
    """End as an interrupt from the keyboard does, with what was started; a second signal does not disturb that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
