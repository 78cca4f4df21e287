"""A worker with a planted fault: ``-m support_e2e.faulty_worker FAULT --config ... --planner ...``.

Faults: "raise" and "kill" strike rank 1 in the middle of step 2, "sleep" lets it never come to that step, "slow" lets
it read its data for long, and "seed" lets every rank draw batches by a seed of its own. "slow-disk" lets a rank's part
of a checkpoint take long to write, "very-slow-disk" longer than a test lasts.
"""

import os
import signal
import sys
import time
from typing import Any
from unittest.mock import patch

from torch.distributed.checkpoint.filesystem import FileSystemWriter

from infinipipe_executor import trainer
from infinipipe_executor.__main__ import main
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.planning import Planning

RANK = int(os.environ["RANK"])

SLOW_S = 7.0
SLOW_DISK_S = 1.5


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def strike(fault: str) -> None:
    write(f"strikes at {time.time()}")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("planted fault")


def plant(fault: str) -> None:
    if fault == "seed":

        class OwnSeed(BatchSampler):
            def __init__(self, sequence_count: int, sequences_per_batch: int, seed: int) -> None:
                super().__init__(sequence_count, sequences_per_batch, seed + RANK)

        patch.object(trainer, "BatchSampler", OwnSeed).start()
        return

    if fault == "slow":

        def read_slowly(*args: Any) -> Any:
            if RANK == 1:
                write("reads slowly")
                time.sleep(SLOW_S)
            return open_corpus(*args)

        patch("infinipipe_executor.run.open_corpus", read_slowly).start()
        return

    if fault in ("slow-disk", "very-slow-disk"):
        write_data = FileSystemWriter.write_data

        def write_slowly(self: FileSystemWriter, *args: Any) -> Any:
            write("writes a checkpoint")
            time.sleep(SLOW_DISK_S if fault == "slow-disk" else 3600.0)
            return write_data(self, *args)

        patch.object(FileSystemWriter, "write_data", write_slowly).start()
        return

    if fault == "sleep":
        fetch = Planning.fetch

        def never_fetch(self: Planning, step: int, batch: Any) -> Any:
            if RANK == 1 and step == 2:
                write(f"strikes at {time.time()}")
                time.sleep(3600)
            return fetch(self, step, batch)

        patch.object(Planning, "fetch", never_fetch).start()
        return

    backward = StepRunner._backward

    def faulty_backward(self: StepRunner, state: Any, instruction: Any) -> None:
        if RANK == 1 and state.plan.step == 2:
            strike(fault)
        backward(self, state, instruction)

    patch.object(StepRunner, "_backward", faulty_backward).start()


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    main()
