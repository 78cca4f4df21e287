"""A worker that leaves its gradients of step 0 behind: ``-m support_e2e.recording_worker FOLDER --config ...``."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from infinipipe_executor import trainer
from infinipipe_executor.__main__ import main
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.parallel.grad_norm import clip_gradients


def record(folder: Path) -> None:
    """Save whole gradients, before they are clipped."""

    def clip_and_record(stage: Stage, mesh: Mesh, max_norm: float) -> float:
        path = folder / f"gradients-{os.environ['RANK']}.pt"
        if not path.exists():
            whole = {}
            for name, parameter in stage.named_parameters():
                assert isinstance(parameter.grad, DTensor)
                whole[name] = parameter.grad.full_tensor()
            torch.save(whole, path)
        return clip_gradients(stage, mesh, max_norm)

    patch.object(trainer, "clip_gradients", clip_and_record).start()


if __name__ == "__main__":
    record(Path(sys.argv.pop(1)))
    main()
