"""What is said of an error in one line, whatever raised it."""

import pytest
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from infinipipe_contract.errors import first_line
from infinipipe_executor.checkpoint_state import first_failure
from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.parallel.peers import peers_watched


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("\n the disk is full\nTraceback of 40 lines\n"), "the disk is full"),
        (MemoryError(), "MemoryError"),
        (AssertionError(" \n"), "AssertionError"),
    ],
)
def test_an_error_is_told_by_its_first_line_and_one_without_a_message_by_its_kind(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_a_rank_that_failed_to_save_without_a_message_is_told_by_the_kind_of_its_error() -> None:
    failures = {3: (MemoryError(), None), 5: (OSError(28, "No space left on device"), None)}

    assert first_failure(CheckpointException("save", failures)) == "rank 3: MemoryError"  # type: ignore[arg-type]


def test_a_lost_rank_without_a_message_is_told_by_the_kind_of_the_error() -> None:
    with (
        pytest.raises(PeerLostError, match=r"^rank 3 lost another rank during step 7: DistNetworkError$"),
        peers_watched(3, "step 7"),
    ):
        raise dist.DistNetworkError
