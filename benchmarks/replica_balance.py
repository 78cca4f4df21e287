"""How evenly a batch is split among replicas of the pipeline: predicted time of the slowest one over the mean.

    python benchmarks/replica_balance.py --settings DIR [--policy NAME]

DIR is laid out as ``bench_settings.py`` says; its profiles are of one replica. docs/planner.md shows the table.
"""

import argparse
import dataclasses
import math
from pathlib import Path
from statistics import mean

from bench_settings import SETTINGS_HELP, read_settings
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

DP_SIZES = (1, 2, 4)


def main() -> None:
    """Plan every setting on every number of replicas and print the table."""
    parser = argparse.ArgumentParser(description="How evenly a batch is split among replicas of the pipeline.")
    parser.add_argument("--settings", type=Path, required=True, help=SETTINGS_HELP)
    parser.add_argument("--policy", default="search", help="policy by name")
    arguments = parser.parse_args()
    settings = read_settings(arguments.settings)
    print("slowest replica / mean of replicas, a column a setting; time / ideal time, geometric mean")
    for dp_size in DP_SIZES:
        figures = [_plan(profile, lengths, dp_size, arguments.policy) for profile, lengths, _ in settings]
        over_mean = "  ".join(f"{ratio:.3f}" for ratio, _ in figures)
        over_ideal = math.exp(mean(math.log(ratio) for _, ratio in figures))
        print(f"dp {dp_size}  {over_mean}  {over_ideal:.3f}", flush=True)


def _plan(profile: Profile, lengths: list[int], dp_size: int, policy: str) -> tuple[float, float]:
    """Plan on several replicas: the slowest one's time over the mean, and over the ideal time."""
    profile = dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, dp_size=dp_size))
    plan = solve_plan(lengths, profile, PlanOptions(policy=policy))
    done_s = [0.0] * dp_size
    for stage in simulate(plan.pipelines, profile).stages:
        if stage.spans:
            done_s[stage.replica_index] = max(done_s[stage.replica_index], stage.spans[-1].end_s)
    return max(done_s) / mean(done_s), plan.estimate.makespan_s / plan.estimate.ideal_s


if __name__ == "__main__":
    main()
