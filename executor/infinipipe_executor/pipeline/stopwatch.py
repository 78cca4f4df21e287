"""When each pass of a step started and ended on the device."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch

from infinipipe_contract.plan import ActionKind, ChunkId


class MeasuredSpan(NamedTuple):
    """One pass in time: what it was, start and end in seconds from the start of the step; recompute is part of it."""

    kind: ActionKind
    chunk_id: ChunkId
    start_s: float
    end_s: float


class Stopwatch:
    """Measures passes without stopping the device: on CUDA by events, which are read when the step is over.

    Args:
        device: Device of this rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._now = clock_of(device)
        self._start = self._now()
        self._marks: list[tuple[ActionKind, ChunkId, Callable[[], float], Callable[[], float]]] = []

    @contextmanager
    def span(self, kind: ActionKind, chunk_id: ChunkId) -> Iterator[None]:
        """Measure the block."""
        start = self._now()
        yield
        self._marks.append((kind, chunk_id, start, self._now()))

    def read(self) -> list[MeasuredSpan]:
        """Return every span in the order they ran; waits for the device."""
        zero_s = self._start()
        return [MeasuredSpan(kind, chunk_id, a() - zero_s, b() - zero_s) for kind, chunk_id, a, b in self._marks]


def clock_of(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Give the clock of a device: each call marks a moment, which tells its seconds when asked later."""
    return _cuda_event if device.type == "cuda" else _clock


_cuda_origins: dict[int, torch.cuda.Event] = {}
"""Per device: the event that all others are measured from; events only tell differences."""


def _clock() -> Callable[[], float]:
    now_s = time.perf_counter()
    return lambda: now_s


def _cuda_event() -> Callable[[], float]:
    make_event = cast("Callable[..., torch.cuda.Event]", torch.cuda.Event)
    event = make_event(enable_timing=True)
    event.record()
    origin = _cuda_origins.setdefault(torch.cuda.current_device(), event)

    def read() -> float:
        event.synchronize()
        return float(origin.elapsed_time(event)) / 1e3

    return read
