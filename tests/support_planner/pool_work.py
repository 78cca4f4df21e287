"""Work for a solver pool: a batch that is planned at once, and one that keeps the solver busy."""

from typing import NoReturn

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.options import MAX_NODE_LIMIT, PlanOptions
from infinipipe_planner.servicer import Solver
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.solver_pool import SolverPool
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile

QUICK = github_lengths(64, 65_536)
QUICK_OPTIONS = PlanOptions(policy="paper")
PROFILE = llama_profile()
# Equal long sequences in little memory: the hard case for the solver.
SLOW = [131_072] * 16
SLOW_PROFILE = llama_profile(device_memory_bytes=40e9)
# Long sequences of different lengths: with the largest limit on nodes the solver takes far longer than a test.
ENDLESS = [131_072 - 1_024 * index for index in range(48)]


async def solve_quick(pool: SolverPool, step: int = 0) -> ExecutionPlan:
    return await pool.solve(SolveRequest(QUICK, PROFILE, QUICK_OPTIONS, job="job", generation=1, step=step))


async def solve_slow(pool: SolverPool) -> ExecutionPlan:
    options = PlanOptions(policy="paper", gap_ratio=1e-9, node_limit=1000, max_slice_count=3)
    return await pool.solve(SolveRequest(SLOW, SLOW_PROFILE, options))


def time_out(*_: object, **__: object) -> NoReturn:
    """Fail in the place of a solve as a call of the system does that took too long."""
    raise TimeoutError("a call of the system took too long")


async def solve_endless(pool: Solver) -> ExecutionPlan:
    """Keep one solver process busy for ever; the candidate of one slice is done at once."""
    options = PlanOptions(policy="paper", gap_ratio=1e-9, node_limit=MAX_NODE_LIMIT, max_slice_count=2)
    return await pool.solve(SolveRequest(ENDLESS, SLOW_PROFILE, options))
