"""Time and memory of planning over sequences, stages and solver processes.

    python benchmarks/planner_scaling.py [--policy paper] [--most-sequences 4096]

Prints Markdown tables: plans made without Ray, each in a fresh process so that its peak memory is its own; then batches
on one and two Ray actors. Predicted step times are the cost model's, for a 7B Llama on A800 devices, eight to a stage,
lengths as on GitHub (log-normal) cut at 98,304 tokens. Seconds without Ray are those of the processor, so that a busy
machine does not count; those on actors are of the clock.
"""

import argparse
import asyncio
import concurrent.futures
import dataclasses
import multiprocessing
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.analytic.lengths import synthetic_lengths
from infinipipe_planner.analytic.profile import Hardware, build_profile
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult, solve_candidate
from infinipipe_planner.solve import solve_plan
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.solver_pool import SolverPool

LLAMA_7B = DecoderShape(layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=32_000)
CONTEXT_TOKENS = 98_304
SP_SIZE = 8
REPEATS = 2

ROOMY_BYTES = 80e9
TIGHT_BYTES = 14e9
"""So little that most chunks are recomputed: the hard case for the solver."""


class Case(NamedTuple):
    """One cell of the tables."""

    sequence_count: int
    pp_size: int
    device_memory_bytes: float = ROOMY_BYTES

    @property
    def cells(self) -> str:
        """The case as the first cells of a row."""
        return f"| {self.sequence_count:,} | {self.pp_size} | {self.device_memory_bytes / 1e9:.0f} |"


CASES = (
    Case(512, 4),
    Case(512, 8),
    Case(512, 16),
    Case(512, 8, TIGHT_BYTES),
    Case(4_096, 4),
    Case(4_096, 8),
    Case(4_096, 16),
    Case(4_096, 16, TIGHT_BYTES),
    Case(65_536, 4),
    Case(65_536, 16),
)
ACTOR_CASES = (Case(512, 4), Case(512, 8, TIGHT_BYTES), Case(4_096, 16))
ACTOR_COUNTS = (1, 2)


@dataclass(frozen=True, slots=True)
class Measured:
    """One plan: what it promises and what it took."""

    chunk_count: int
    candidate_count: int
    longest_candidate_s: float
    makespan_s: float
    outcome: str
    solve_s: float
    peak_bytes: int


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description="Time and memory of planning.")
    parser.add_argument("--policy", default="paper")
    parser.add_argument("--most-sequences", type=int, default=65_536)
    arguments = parser.parse_args()
    policy, most = arguments.policy, arguments.most_sequences
    print(f"Policy `{policy}`, one process:\n")
    print("| sequences | pp | GB | step s | chunks | tried | plan s | of the step | longest s | peak MiB | outcome |")
    print("|" + "---|" * 11)
    for case in [case for case in CASES if case.sequence_count <= most]:
        one = _measure_alone(policy, case)
        print(
            f"{case.cells} {one.makespan_s:.1f} | {one.chunk_count:,} | {one.candidate_count} | {one.solve_s:.2f} "
            f"| {one.solve_s / one.makespan_s:.1%} | {one.longest_candidate_s:.2f} | {one.peak_bytes / 2**20:,.0f} "
            f"| {one.outcome} |",
            flush=True,
        )
    print(f"\nPolicy `{policy}`, on Ray actors, best of {REPEATS}:\n")
    print("| sequences | pp | GB | " + " | ".join(f"{count} actors, s" for count in ACTOR_COUNTS) + " | speed-up |")
    print("|" + "---|" * 6)
    for case in [case for case in ACTOR_CASES if case.sequence_count <= most]:
        times_s = [_measure_actors(policy, case, count) for count in ACTOR_COUNTS]
        shown = " | ".join(f"{seconds:.2f}" for seconds in times_s)
        print(f"{case.cells} {shown} | {times_s[0] / times_s[-1]:.2f} |", flush=True)


def _profile(case: Case) -> Profile:
    hardware = Hardware("a800", case.pp_size, SP_SIZE)
    profile = build_profile(LLAMA_7B, hardware, case.pp_size, SP_SIZE, model_name="llama-7b")
    cluster = dataclasses.replace(profile.cluster, device_memory_bytes=case.device_memory_bytes)
    return dataclasses.replace(profile, cluster=cluster)


def _measure_alone(policy: str, case: Case) -> Measured:
    """Plan in a process of its own: peak memory never shrinks."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_plan_once, policy, case).result()


def _plan_once(policy: str, case: Case) -> Measured:
    lengths = synthetic_lengths(CONTEXT_TOKENS, case.sequence_count)
    seconds: list[float] = []

    def run_timed(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
        results = []
        for request in requests:
            began_s = time.process_time()
            results.append(solve_candidate(request))
            seconds.append(time.process_time() - began_s)
        return results

    started_s = time.process_time()
    plan = solve_plan(lengths, _profile(case), PlanOptions(policy=policy), run_candidates=run_timed)
    solve_s = time.process_time() - started_s
    return Measured(
        chunk_count=plan.chunk_count,
        candidate_count=len(seconds),
        longest_candidate_s=max(seconds),
        makespan_s=plan.estimate.makespan_s,
        outcome=plan.report.outcome.value,
        solve_s=solve_s,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _measure_actors(policy: str, case: Case, actor_count: int) -> float:
    """Seconds of the fastest of some solves; the first, which loads code, does not count."""
    lengths, profile = synthetic_lengths(CONTEXT_TOKENS, case.sequence_count), _profile(case)
    pool = SolverPool.start(actor_count)

    async def solve_all() -> float:
        async def solve() -> ExecutionPlan:
            return await pool.solve(SolveRequest(lengths, profile, PlanOptions(policy=policy)))

        await solve()
        seconds = []
        for _ in range(REPEATS):
            started_s = time.perf_counter()
            await solve()
            seconds.append(time.perf_counter() - started_s)
        return min(seconds)

    try:
        return asyncio.run(solve_all())
    finally:
        pool.close()


if __name__ == "__main__":
    main()
