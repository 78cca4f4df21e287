"""Which errors mean a lost peer."""

import pytest

from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.parallel.peers import peers_watched


@pytest.mark.parametrize(
    "message",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:31337",
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 20000ms for recv operation",
        "Socket Timeout",
        "writev: Broken pipe",
    ],
)
def test_transport_errors_name_the_rank_and_what_it_did(message: str) -> None:
    with (
        pytest.raises(PeerLostError, match="rank 3 lost another rank during step 7, forward: ") as raised,
        peers_watched(3, "step 7, forward"),
    ):
        raise RuntimeError(message)

    assert str(raised.value.__cause__) == message


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, AssertionError])
def test_other_errors_pass_with_a_note_of_what_was_going_on(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="shapes cannot be multiplied") as raised, peers_watched(0, "step 7, forward"):
        raise kind("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)")

    assert raised.value.__notes__ == ["during step 7, forward"]
