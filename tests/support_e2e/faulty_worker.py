"""A worker with a planted fault: ``-m support_e2e.faulty_worker FAULT --config ... --planner ...``.

Faults: "raise" and "kill" strike rank 1 in the middle of step 2, "seed" lets every rank draw batches by a seed of its
own.
"""

import os
import signal
import sys
import time
from typing import Any
from unittest.mock import patch

from infinipipe_executor import trainer
from infinipipe_executor.__main__ import main
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.pipeline.runner import StepRunner

RANK = int(os.environ["RANK"])


def strike(fault: str) -> None:
    sys.stdout.write(f"strikes at {time.time()}\n")
    sys.stdout.flush()
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

    backward = StepRunner._backward

    def faulty_backward(self: StepRunner, state: Any, instruction: Any) -> None:
        if RANK == 1 and state.plan.step == 2:
            strike(fault)
        backward(self, state, instruction)

    patch.object(StepRunner, "_backward", faulty_backward).start()


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    main()
