"""One rank of a training run.

    torchrun --nproc-per-node 4 -m infinipipe_executor --config run.toml --planner HOST:PORT

Reads and checks everything that can be wrong before ranks wait for each other, then trains. Exit codes: 0 all steps are
done, 1 the run failed, 2 the configuration was wrong, 75 the run was told to end by SIGTERM.
"""

import argparse
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path

from infinipipe_executor.config import RunConfig, check_address, check_world, load_config
from infinipipe_executor.failure import exit_ended, exit_failed
from infinipipe_executor.launcher import end_with_launcher
from infinipipe_executor.log_prefix import PrefixFormatter, note
from infinipipe_executor.metrics_sinks import check_sinks
from infinipipe_executor.stop import StopSignal


def main() -> None:
    """Run one rank; any failure ends the process with a non-zero exit code."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    arguments = build_parser().parse_args()
    stop = StopSignal()
    stop.install()
    end_with_launcher()
    try:
        _set_up_logging()
        check_address(arguments.planner)
        config = load_config(arguments.config)
        note(job=config.job.name)
        check_world(config.cluster)
        check_sinks(config.metrics)
        is_done = _train(config, arguments.planner, stop)
    except Exception as error:  # the last place that can say what happened
        exit_failed(error, stop)
    exit_ended(is_done=is_done)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m infinipipe_executor", description="One rank of a training run.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration of the run (TOML)")
    parser.add_argument("--planner", required=True, metavar="HOST:PORT", help="address of the planning service")
    return parser


def _set_up_logging() -> None:
    """Rank 0 tells about the run; the others speak up when something is wrong, or when they make the shared tokens."""
    rank = int(os.environ.get("RANK", "0"))
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(PrefixFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO if rank == 0 else logging.WARNING)
    logging.getLogger("infinipipe_executor.data").setLevel(logging.INFO)


def _train(config: RunConfig, planner_address: str, stop: StopSignal) -> bool:
    from infinipipe_executor.run import run_training  # noqa: PLC0415  # torch takes seconds: configuration comes first

    return run_training(config, planner_address, stop)


if __name__ == "__main__":
    main()
