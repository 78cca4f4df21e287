"""Action lists as text, so that a test can draw the expected order."""

from collections.abc import Iterable

from infinipipe_contract.plan import ActionKind


def draw(passes: Iterable[tuple[ActionKind, int]]) -> str:
    """Write passes as ``F0 F1 B1 B0``."""
    return " ".join(f"{kind.value}{chunk_index}" for kind, chunk_index in passes)
