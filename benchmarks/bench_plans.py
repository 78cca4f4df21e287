"""Compare policies on a folder of profiles and batches.

    python benchmarks/bench_plans.py --settings DIR [--policy paper] [--output DIR]

DIR is laid out as ``bench_settings.py`` says. Prints one line a setting; every number is what the cost model expects.
With ``--output`` the plans are written as JSON for whoever wants to judge them.
"""

import argparse
import math
from pathlib import Path

from bench_settings import SETTINGS_HELP, read_settings
from infinipipe_contract.codec import plan_to_json
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

HEADER = (
    "profile",
    "batch",
    "policy",
    "ratio",
    "bubble",
    "recompute",
    "K",
    "chunks",
    "pipelines",
    "outcome",
    "solve s",
)


def main() -> None:
    """Plan every setting and print the table."""
    parser = argparse.ArgumentParser(description="Compare policies on a folder of profiles and batches.")
    parser.add_argument("--settings", type=Path, required=True, help=SETTINGS_HELP)
    parser.add_argument("--policy", action="append", help="policy to compare; may be given several times")
    parser.add_argument("--output", type=Path, help="folder for the plans as JSON")
    arguments = parser.parse_args()
    settings = read_settings(arguments.settings)
    print(_line(HEADER))
    for policy in arguments.policy or ["paper"]:
        ratios = []
        for number, (profile, lengths, batch_name) in enumerate(settings):
            plan = solve_plan(lengths, profile, PlanOptions(policy=policy))
            ratios.append(plan.estimate.makespan_s / plan.estimate.ideal_s)
            print(_line((profile.name, batch_name, policy, *_figures(plan))))
            if arguments.output:
                arguments.output.mkdir(parents=True, exist_ok=True)
                (arguments.output / f"{policy}-{number}.json").write_text(plan_to_json(plan))
        print(f"{policy}: geometric mean of the ratios {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")


def _figures(plan: ExecutionPlan) -> tuple[str, ...]:
    return (
        f"{plan.estimate.makespan_s / plan.estimate.ideal_s:.3f}",
        f"{plan.estimate.bubble_ratio:.3f}",
        f"{plan.estimate.recompute_ratio:.3f}",
        f"{plan.report.slice_count}",
        f"{plan.chunk_count}",
        f"{len(plan.pipelines)}",
        plan.report.outcome.value,
        f"{plan.report.solve_s:.2f}",
    )


def _line(cells: tuple[str, ...]) -> str:
    widths = (16, 17, 8, 7, 7, 9, 4, 7, 9, 11, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


if __name__ == "__main__":
    main()
