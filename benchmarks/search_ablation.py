"""What each idea of policy ``search`` brings: the policy with its ideas switched on one after the other.

    python benchmarks/search_ablation.py --settings DIR

DIR is laid out as ``bench_settings.py`` says. Prints makespan / ideal in geometric mean and for every setting; ``-``
where nothing fits in memory. Ideas are switched off by replacing parts of the policy's modules from outside: the policy
itself has no switches.
"""

import argparse
import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from bench_settings import SETTINGS_HELP, Setting, read_settings
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.chunking.balance import Ramp
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies import search
from infinipipe_planner.policies.candidate import Sweep
from infinipipe_planner.policies.trial import RAMPS, RULES, Order, Trial
from infinipipe_planner.scheduling.list_schedule import ListRules, ListSchedule
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline, order_pipeline
from infinipipe_planner.solve import solve_plan


@dataclasses.dataclass(frozen=True)
class Variant:
    """The policy with some of its ideas."""

    name: str
    has_list_schedule: bool = True
    ramps: tuple[Ramp, ...] = RAMPS
    orders: tuple[Order, ...] = tuple(Order)
    rules: tuple[ListRules, ...] = RULES
    has_neighbours: bool = True


PLAIN = Variant("", False, (Ramp(),), (Order.LONG_FIRST,), (ListRules(),), False)
VARIANTS = (
    dataclasses.replace(PLAIN, name="equal-work chunks, their number searched, window of Eq. 7"),
    dataclasses.replace(PLAIN, name="+ list schedule instead of the window", has_list_schedule=True),
    Variant("+ ramps at both ends", True, RAMPS, (Order.LONG_FIRST,), (ListRules(),), False),
    Variant("+ long sequences last", True, RAMPS, tuple(Order), (ListRules(),), False),
    Variant("+ feeding the next stage", has_neighbours=False),
    Variant("+ neighbours of the best trials (the policy)"),
)


def main() -> None:
    """Plan every setting with every variant and print the table."""
    parser = argparse.ArgumentParser(description="What each idea of policy search brings.")
    parser.add_argument("--settings", type=Path, required=True, help=SETTINGS_HELP)
    settings = read_settings(parser.parse_args().settings)
    print(_line("paper", [_ratio(setting, "paper") for setting in settings]))
    # The paper's candidates are a row of their own.
    with mock.patch.object(search, "sweep_paper", _sweep_nothing):
        for variant in VARIANTS:
            print(_line(variant.name, [_ratio_of_variant(setting, variant) for setting in settings]))


def _sweep_nothing(*_: object) -> Sweep:
    yield from ()
    return []


def _ratio(setting: Setting, policy: str) -> float | None:
    """Makespan / ideal; None where no candidate fits in memory."""
    profile, lengths, _ = setting
    try:
        plan = solve_plan(lengths, profile, PlanOptions(policy=policy))
    except InfeasibleBatchError:
        return None
    return plan.estimate.makespan_s / plan.estimate.ideal_s


def _ratio_of_variant(setting: Setting, variant: Variant) -> float | None:
    profile = setting.profile

    def first_round(lengths_tokens: Sequence[int], of_profile: Profile) -> list[Trial]:
        base = search._base_chunk_count(lengths_tokens, of_profile)
        return [
            Trial(max(1, round(base * ratio)), ramp, order, rules)
            for rules in variant.rules
            for ramp in reversed(variant.ramps)
            for order in variant.orders
            for ratio in search._CHUNK_COUNT_RATIOS
        ]

    def constant_window(chains: Sequence[ChunkChain], *_: object) -> ListSchedule:
        order = order_pipeline(chains, profile.cluster.pp_size)
        pipeline = build_pipeline(order, [0] * (len(order.chunks) + profile.cluster.pp_size - 1))
        timeline = simulate([pipeline], profile)
        fits = all(stage.peak_bytes <= profile.usable_memory_bytes for stage in timeline.stages)
        return ListSchedule(order, timeline.makespan_s, fits)

    with contextlib.ExitStack() as replaced:
        replaced.enter_context(mock.patch.object(search, "_first_round", first_round))
        if not variant.has_neighbours:
            replaced.enter_context(mock.patch.object(search, "_neighbours", lambda *_: []))
        if not variant.has_list_schedule:
            replaced.enter_context(mock.patch.object(search, "list_schedule", constant_window))
        return _ratio(setting, "search")


def _line(name: str, ratios: Sequence[float | None]) -> str:
    fitting = [ratio for ratio in ratios if ratio is not None]
    mean = math.exp(sum(map(math.log, fitting)) / len(fitting))
    cells = ["  -  " if ratio is None else f"{ratio:.3f}" for ratio in ratios]
    return f"{name:60s} {mean:.3f}  " + " ".join(cells)


if __name__ == "__main__":
    main()
