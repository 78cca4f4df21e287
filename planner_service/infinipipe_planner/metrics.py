"""What the planner measures of itself, for Prometheus: the names, their meaning, and the HTTP server that shows them.

Entry points: ``PlannerMetrics`` is told what happens; ``serve_metrics`` shows it. Names follow Prometheus' conventions:
base units, `_total` for what only grows. Labels are bounded: methods, statuses and outcomes are those of the code; a
job's series begin with the job and go with it.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server

from infinipipe_planner.config import InvalidAddressError, format_address, parse_address
from infinipipe_planner.job_records import JobId, PlanFigures
from infinipipe_planner.store_file import MEMORY

SOLVE_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600)
JOB_LABELS = ("owner", "job_name")  # Prometheus has a label job of its own


@dataclass(slots=True)
class _Progress:
    """How far a generation of a job is: newest planned and newest measured step."""

    planned: int
    measured: int
    is_measured: bool = False


class PlannerMetrics:
    """The figures of one service, in a registry of its own.

    Attributes:
        registry: What ``serve_metrics`` shows.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._progress: dict[JobId, _Progress] = {}
        self._solve_s = Histogram(
            "infinipipe_planner_solve_seconds",
            "Time from a batch's turn to its plan.",
            buckets=SOLVE_BUCKETS_S,
            registry=registry,
        )
        self._plans = Counter(
            "infinipipe_planner_plans_total",
            "Plans made for jobs, by how certain their recompute is; fallback recomputes more than would be needed.",
            ("outcome",),
            registry=registry,
        )
        self._failures = Counter(
            "infinipipe_planner_failures_total",
            "Steps that got no plan, by the status that their callers get.",
            ("code",),
            registry=registry,
        )
        self._queue_wait_s = Histogram(
            "infinipipe_planner_queue_wait_seconds",
            "Time from a batch's arrival to its turn at the solvers.",
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self._plan_wait_s = Histogram(
            "infinipipe_planner_plan_wait_seconds",
            "Time that callers of GetPlan waited for a plan they got; above zero, training may have stood still.",
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self._queued = Gauge(
            "infinipipe_planner_queued_batches", "Batches that wait for their turn at the solvers.", registry=registry
        )
        self._running = Gauge("infinipipe_planner_running_batches", "Batches that are being solved.", registry=registry)
        self._waiters = Gauge(
            "infinipipe_planner_waiting_callers", "Callers of GetPlan that wait right now.", registry=registry
        )
        self._jobs = Gauge("infinipipe_planner_jobs", "Jobs that the store holds.", registry=registry)
        self._store_bytes = Gauge(
            "infinipipe_planner_store_bytes", "Size of the store's files; 0 when it keeps nothing.", registry=registry
        )
        self._rpcs = Counter(
            "infinipipe_planner_rpcs_total",
            "Calls of the service's methods that ended, by status.",
            ("method", "code"),
            registry=registry,
        )
        self._solver_restarts = Counter(
            "infinipipe_planner_solver_restarts_total",
            "Solver processes that another one took the place of: lost, worn (replaced on schedule) or unwanted "
            "(killed because nobody waited any more); ray counts the losses of Ray as a whole.",
            ("reason",),
            registry=registry,
        )
        self._lead = Gauge(
            "infinipipe_planner_job_lead_steps",
            "Steps that are planned and not yet measured: how far plans are ahead of training.",
            JOB_LABELS,
            registry=registry,
        )
        self._predicted_s = Gauge(
            "infinipipe_planner_job_predicted_step_seconds",
            "Predicted time of the step that was measured last.",
            JOB_LABELS,
            registry=registry,
        )
        self._measured_s = Gauge(
            "infinipipe_planner_job_measured_step_seconds",
            "Time of the same step on the slowest rank that has reported.",
            JOB_LABELS,
            registry=registry,
        )

    def watch(
        self,
        *,
        queued_batches: Callable[[], int],
        running_batches: Callable[[], int],
        waiting_callers: Callable[[], int],
        store: str,
    ) -> None:
        """Show what is asked for anew whenever somebody looks; the functions are called in another thread.

        Args:
            queued_batches: Counts the batches that wait for their turn.
            running_batches: Counts the batches that are being solved.
            waiting_callers: Counts the callers that wait for a plan.
            store: Path of the store.
        """
        self._queued.set_function(queued_batches)
        self._running.set_function(running_batches)
        self._waiters.set_function(waiting_callers)
        self._store_bytes.set_function(lambda: _size_bytes(store))

    def count_rpc(self, method: str, code: str) -> None:
        """Count a call that ended."""
        self._rpcs.labels(method, code).inc()

    def count_solver_restart(self, reason: str) -> None:
        """Count a solver process that was replaced."""
        self._solver_restarts.labels(reason).inc()

    def count_jobs(self, count: int) -> None:
        """Take the number of jobs in the store."""
        self._jobs.set(count)

    def queue_waited(self, seconds: float) -> None:
        """Take how long a batch waited for its turn."""
        self._queue_wait_s.observe(seconds)

    def plan_waited(self, seconds: float) -> None:
        """Take how long a caller waited for a plan."""
        self._plan_wait_s.observe(seconds)

    def step_planned(self, job: JobId, step: int, figures: PlanFigures, seconds: float) -> None:
        """Take a plan that was made.

        Args:
            job: Whose step it is.
            step: The step.
            figures: The plan's.
            seconds: From its turn to the plan.
        """
        self._solve_s.observe(seconds)
        self._plans.labels(figures.outcome.value.replace(" ", "_")).inc()
        progress = self._progress.setdefault(job, _Progress(planned=step, measured=step - 1))
        progress.planned = max(progress.planned, step)
        if not progress.is_measured:  # a run that goes on from a checkpoint begins anywhere
            progress.measured = min(progress.measured, step - 1)
        self._show_lead(job, progress)

    def step_failed(self, code: str) -> None:
        """Count a step that got no plan."""
        self._failures.labels(code).inc()

    def step_measured(self, job: JobId, step: int, predicted_s: float, measured_s: float) -> None:
        """Take what a rank reported about a step.

        Args:
            job: Whose step it is.
            step: The step; reports about steps before the newest one are late and change nothing.
            predicted_s: By the plan.
            measured_s: Longest of the ranks that have reported.
        """
        progress = self._progress.setdefault(job, _Progress(planned=step, measured=step))
        if progress.is_measured and step < progress.measured:
            return
        progress.measured, progress.is_measured = step, True
        self._predicted_s.labels(*job).set(predicted_s)
        self._measured_s.labels(*job).set(measured_s)
        self._show_lead(job, progress)

    def forget_job(self, job: JobId) -> None:
        """Let go of a job that was deleted, or that begins a new generation."""
        self._progress.pop(job, None)
        for gauge in (self._lead, self._predicted_s, self._measured_s):
            with contextlib.suppress(KeyError):  # a job that was never planned has no series
                gauge.remove(*job)

    def _show_lead(self, job: JobId, progress: _Progress) -> None:
        self._lead.labels(*job).set(max(0, progress.planned - progress.measured))


@contextlib.contextmanager
def serve_metrics(metrics: PlannerMetrics, listen: str) -> Iterator[str]:
    """Show metrics over HTTP from threads of their own.

    Args:
        metrics: What to show.
        listen: HOST:PORT; port 0 takes a free one.

    Yields:
        The URL that Prometheus reads.

    Raises:
        InvalidAddressError: If the address cannot be listened on.
    """
    host, port = parse_address(listen)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise InvalidAddressError(f"cannot listen on {listen}: {error.strerror} (--metrics-listen)") from None
    assert isinstance(server, WSGIServer)
    try:
        yield f"http://{format_address(host, server.server_port)}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _size_bytes(store: str) -> int:
    """Add up the files of a store: the database and what was written and is not in it yet."""
    if store == MEMORY:
        return 0
    total = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            total += Path(store + suffix).stat().st_size
    return total
