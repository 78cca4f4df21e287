"""A rank that is gone before the first step costs the others one sentence, no traceback."""

import os
import signal
from pathlib import Path

import torch.distributed as dist

from infinipipe_executor.config import load_config
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.resume import describe_run
from infinipipe_executor.run import _open_cpu_group
from support_e2e.resumed_ranks import file_group
from support_e2e.runs import TINY, write_run
from support_executor.groups import ProcessGroup
from support_executor.ranks import mesh_of


def describe_while_rank_0_dies(config_path: Path) -> str:
    config, mesh, group = load_config(config_path), mesh_of(2, 1), file_group()
    dist.barrier()
    if mesh.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        describe_run(config, TINY, open_corpus(config.data, TINY.vocab), mesh, group)
    except PeerLostError as error:
        return str(error)
    return "noticed nothing"


def open_group_while_rank_0_is_silent() -> str:
    if dist.get_rank() == 0:
        return ""
    try:
        _open_cpu_group(2.0)
    except PeerLostError as error:
        return str(error)
    return "noticed nothing"


def test_a_rank_that_is_gone_before_the_run_is_described_is_named_as_lost(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1)
    with ProcessGroup(2) as group:
        (error,) = group.run(describe_while_rank_0_dies, config, lost_rank=0)

    assert error.startswith("rank 1 lost another rank during the start of the job: ")


def test_a_rank_that_opens_no_group_is_named_as_lost() -> None:
    with ProcessGroup(2) as group:
        error = group.run(open_group_while_rank_0_is_silent)[1]

    assert error.startswith("rank 1 lost another rank during the start of the job: ")
