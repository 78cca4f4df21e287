"""A planner in a thread of the test: the real service over a solver of the test's own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.config import ServerConfig
from infinipipe_planner.server import start_server
from infinipipe_planner.servicer import Solver
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest


class ThreadSolver:
    """Solves in a thread of this process, and then does to the plan what the test wants.

    Args:
        change: What is answered instead of the plan.
        delay_s: Seconds to wait before a step is solved.
    """

    def __init__(
        self,
        change: Callable[[ExecutionPlan], ExecutionPlan] = lambda plan: plan,
        delay_s: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self._change = change
        self._delay_s = delay_s

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        await asyncio.sleep(self._delay_s(request.step))
        plan = await asyncio.to_thread(
            solve_request,
            request,
        )
        return self._change(plan)


@contextmanager
def planner_thread(solver: Solver) -> Iterator[str]:
    """Serve on a port of loopback and give the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(start_server(solver, ServerConfig(listen="127.0.0.1:0")), loop).result(30)
    try:
        yield server.address
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0.0), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
