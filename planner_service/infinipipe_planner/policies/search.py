"""Policy ``search``: chunks of equal work, list schedules, and a search over how many chunks, in which order.

Each trial cuts and packs for a number of chunks (``chunking.balance``), orders the sequences, and lets the stages
choose their actions by replay (``scheduling.list_schedule``). Where that needs more memory than there is, the recompute
problem of the paper makes the room. A first round covers the field, later ones try the neighbours of the best trials.
The candidates of policy ``paper`` run too, so a plan is never worse than the paper's.

How many trials run follows from the batch alone; a wall-clock budget, where one is asked for, stops earlier or goes on
longer, and then the same request may give another plan. docs/planner.md has the figures behind the choices.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.chunking.balance import balance_chunks
from infinipipe_planner.cost_model.slice_work import SliceWork
from infinipipe_planner.cost_model.token_threshold import token_capacity
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.policies.candidate import Candidate, CandidateRequest, CandidateResult, Sweep
from infinipipe_planner.policies.paper import sweep_paper
from infinipipe_planner.policies.trial import RAMPS, RULES, Order, Trial
from infinipipe_planner.scheduling.chunk_prices import ChunkPrices, price_chunks
from infinipipe_planner.scheduling.list_schedule import ListSchedule, list_schedule
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_floor import least_cost
from infinipipe_planner.scheduling.recompute_problem import (
    IlpLimits,
    build_recompute_problem,
    describe_shortage,
    slowest_layer_weights,
)

if TYPE_CHECKING:
    from infinipipe_planner.options import PlanOptions

_EFFORT_RATIO, _LEAST_EFFORT_S = 0.03, 0.1
"""Share of the ideal iteration time that trials may take, and the seconds they always may."""

_ACTION_S, _SEQUENCE_S, _SOLVE_S = 6e-6, 4e-6, 0.05
"""Seconds to schedule an action, to place a sequence and to solve a recompute problem, measured on a slow core: they
turn a share of time into numbers of trials, which do not depend on how loaded the machine is."""

_LEAST_TRIALS, _MOST_TRIALS = 8, 600

_CHUNK_COUNT_RATIOS = (1.0, 0.75, 1.3, 0.9, 1.6, 0.6, 1.15, 2.1)
"""Numbers of chunks tried first, relative to the best number for equal chunks."""

_PARENTS = 3
"""Best trials whose neighbours are tried next."""


@dataclass(frozen=True, slots=True)
class SearchCandidate(Candidate):
    """A candidate and the trial that gave it."""

    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """Trials that one worker runs; the fastest becomes the candidate.

    Attributes:
        trials: At least one, all with the same number of chunks.
        max_slice_count: Most slices of a sequence; 0 means no limit.
        solve_limit: Recompute problems that may be solved; trials beyond it that lack memory are given up.
        time_limit_s: Seconds after which no further trial is begun; None means no limit.
    """

    trials: tuple[Trial, ...]
    max_slice_count: int
    solve_limit: int
    time_limit_s: float | None = None

    @property
    def name(self) -> str:
        """How reports call the candidate."""
        return f"{self.trials[0].chunk_count} chunks, {len(self.trials)} trials"

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> SearchCandidate:
        """Run the trials; see ``CandidateSpec``."""
        started_s = time.perf_counter()
        trials = _Trials(lengths_tokens, profile, limits, self)
        for trial in self.trials:
            trials.try_out(trial)
            if self.time_limit_s is not None and time.perf_counter() - started_s > self.time_limit_s:
                break
        return trials.best()


class _Trials:
    """Runs one trial after another on a batch and keeps the best."""

    def __init__(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits, spec: SearchSpec) -> None:
        self._lengths_tokens = lengths_tokens
        self._costs = CostModel(profile)
        self._work = SliceWork(profile, tuple(ActionKind))
        self._total_work_s = sum(map(self._work.prefix_work_s, lengths_tokens))
        self._limits = limits
        self._max_slice_count = spec.max_slice_count
        self._solves_left = spec.solve_limit
        self._best: SearchCandidate | None = None
        self._best_s = math.inf
        self._shortage: InfeasibleBatchError | None = None

    def try_out(self, trial: Trial) -> None:
        """Plan by one trial; keep it if it is the fastest so far."""
        chunks = balance_chunks(
            self._lengths_tokens,
            self._work,
            self._total_work_s / trial.chunk_count,
            trial.ramp,
            max_slice_count=self._max_slice_count,
        )
        chains = trial.order.arrange(chunks)
        prices = price_chunks(chains, self._costs)
        schedule = list_schedule(chains, prices, trial.rules)
        if schedule.makespan_s >= self._best_s:
            return  # recompute would only make it longer
        if schedule.fits:
            no_recompute = (0,) * (len(schedule.order.chunks) + len(schedule.order.stages) - 1)
            pipelines = (build_pipeline(schedule.order, no_recompute, self._costs.stage_layers),)
            self._best, self._best_s = SearchCandidate(pipelines, trial=trial), schedule.makespan_s
        else:
            self._make_room(trial, schedule, prices)

    def _make_room(self, trial: Trial, schedule: ListSchedule, prices: ChunkPrices) -> None:
        """Choose recompute for a schedule that needs more memory than there is."""
        profile = self._costs.profile
        weights = slowest_layer_weights(schedule.order, prices.layers_s)
        problem = build_recompute_problem(schedule.order, self._costs, weights)
        if problem.find_shortage() is not None:
            self._shortage = describe_shortage(problem, profile)
            return
        mean_layer_s = max(map(mean, prices.layers_s)) * profile.cluster.pp_size / profile.model.layers
        least_s = schedule.makespan_s + least_cost(problem) * mean_layer_s
        if self._best is not None and (self._solves_left <= 0 or least_s >= self._best_s):
            return  # the solver would find no cheaper recompute than this
        self._solves_left -= 1
        recompute = solve_recompute(problem, self._limits)
        if recompute is None:
            self._shortage = describe_shortage(problem, profile)
            return
        pipelines = (build_pipeline(schedule.order, recompute.layer_counts, self._costs.stage_layers),)
        makespan_s = simulate(pipelines, profile).makespan_s
        if makespan_s < self._best_s:
            self._best_s = makespan_s
            self._best = SearchCandidate(pipelines, recompute.outcome, recompute.gap_ratio, trial)

    def best(self) -> SearchCandidate:
        """Return the fastest plan.

        Raises:
            InfeasibleBatchError: If no trial fits in memory.
        """
        if self._best is None:
            assert self._shortage is not None, "a trial gives a plan or lacks memory"
            raise self._shortage
        return self._best


def sweep_search(lengths_tokens: tuple[int, ...], profile: Profile, options: "PlanOptions") -> Sweep:
    """Try trials round by round, then the paper's candidates; see ``Policy``.

    A wall-clock budget that is spent by then leaves the paper's candidates out, unless nothing else fits.
    """
    started_s = time.perf_counter()
    results: list[CandidateResult] = []
    effort = _effort(lengths_tokens, profile) if options.budget_s == 0 else _Effort(math.inf, math.inf)
    seen: set[Trial] = set()
    upcoming = _first_round(lengths_tokens, profile)
    best_s = math.inf
    while upcoming and effort.trials > 0:
        time_limit_s = None
        if options.budget_s > 0:
            time_limit_s = options.budget_s - (time.perf_counter() - started_s)
            if time_limit_s <= 0 and seen:
                break
        upcoming = upcoming[: int(min(effort.trials, len(upcoming)))]
        seen.update(upcoming)
        effort.trials -= len(upcoming)
        specs = _bundle(upcoming, options.max_slice_count, effort.solves, time_limit_s)
        results += yield [CandidateRequest(lengths_tokens, profile, options.limits, spec) for spec in specs]
        parents = _best_trials(results)
        if parents and parents[0][0] >= best_s and options.budget_s == 0:
            break  # a whole round of neighbours was no better
        best_s = parents[0][0] if parents else best_s
        upcoming = _neighbours([trial for _, trial in parents], seen)
    is_planned = any(result.candidate is not None for result in results)
    is_spent = options.budget_s > 0 and time.perf_counter() - started_s > options.budget_s
    if is_planned and is_spent:
        return results
    try:
        return results + (yield from sweep_paper(lengths_tokens, profile, options))
    except InfeasibleBatchError:
        if is_planned:
            return results
        raise


def _first_round(lengths_tokens: Sequence[int], profile: Profile) -> list[Trial]:
    """Cover the field: numbers of chunks, orders, ramps and rules, the most promising first."""
    base = _base_chunk_count(lengths_tokens, profile)
    counts = list(dict.fromkeys(max(1, round(base * ratio)) for ratio in _CHUNK_COUNT_RATIOS))
    return [
        Trial(count, ramp, order, rules)
        for rules in RULES
        for ramp in reversed(RAMPS)
        for order in Order
        for count in counts
    ]


def _base_chunk_count(lengths_tokens: Sequence[int], profile: Profile) -> float:
    """Number of equal chunks that a pipeline without memory limit likes best, or that memory asks for.

    Filling and draining cost ``(pp_size - 1) * ideal / n``, fixed seconds cost ``n * fixed``: the sum is least at the
    square root of ``(pp_size - 1) * ideal / fixed``. Memory holds about two chunks a stage without recompute.
    """
    costs, pp_size = CostModel(profile), profile.cluster.pp_size
    total_tokens = sum(lengths_tokens)
    ideal_s = costs.ideal_s(sum(n * n for n in lengths_tokens), total_tokens)
    fixed_s = costs.work_s(profile.forward, 0, 0) + costs.work_s(profile.backward, 0, 0) + 2 * costs.all2all_s(0)
    by_time = math.sqrt((pp_size - 1) * ideal_s / fixed_s) if fixed_s > 0 else math.inf
    by_time = min(by_time, _MOST_CHUNKS_A_STAGE * pp_size)
    by_memory = 2 * pp_size * total_tokens / max(token_capacity(profile), 1)
    return min(max(by_time, by_memory, 1.0), total_tokens)


_MOST_CHUNKS_A_STAGE = 64
"""Where chunks cost nothing by themselves, more of them gain nothing that could be measured."""


@dataclass(slots=True)
class _Effort:
    """What is left to spend: trials over all rounds, and recompute problems a round."""

    trials: float
    solves: float


def _effort(lengths_tokens: Sequence[int], profile: Profile) -> _Effort:
    """Turn a share of the ideal time into numbers, so that equal requests try equally much."""
    ideal_s = CostModel(profile).ideal_s(sum(n * n for n in lengths_tokens), sum(lengths_tokens))
    effort_s = max(_EFFORT_RATIO * ideal_s, _LEAST_EFFORT_S)
    actions = 2 * profile.cluster.pp_size * _base_chunk_count(lengths_tokens, profile)
    trial_s = actions * _ACTION_S + len(lengths_tokens) * _SEQUENCE_S
    trials = min(max(effort_s / trial_s, _LEAST_TRIALS), _MOST_TRIALS)
    return _Effort(round(trials), effort_s / _SOLVE_S)


def _bundle(
    trials: Sequence[Trial], max_slice_count: int, solves: float, time_limit_s: float | None
) -> list[SearchSpec]:
    """Group trials by their number of chunks, one bundle a worker's task; bundles share the solves evenly."""
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        by_count.setdefault(trial.chunk_count, []).append(trial)
    solve_limit = int(min(max(solves / len(by_count), 1), len(trials)))
    return [SearchSpec(tuple(group), max_slice_count, solve_limit, time_limit_s) for group in by_count.values()]


def _best_trials(results: Sequence[CandidateResult]) -> list[tuple[float, Trial]]:
    """Find the trials behind the fastest candidates, fastest first."""
    found = [
        (result.report.makespan_s, result.candidate.trial)
        for result in results
        if isinstance(result.candidate, SearchCandidate) and result.candidate.trial is not None
    ]
    return sorted(found, key=lambda entry: entry[0])[:_PARENTS]


def _neighbours(parents: Sequence[Trial], seen: set[Trial]) -> list[Trial]:
    """List the untried neighbours of the best trials."""
    nearby = dict.fromkeys(trial for parent in parents for trial in parent.neighbours())
    return [trial for trial in nearby if trial not in seen]
