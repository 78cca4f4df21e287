"""Measures what the last stage does behind its layers, within ordinary passes, so that layers can be fitted alone."""

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from infinipipe_contract.plan import ActionKind
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.pipeline.stopwatch import clock_of

_Moment = Callable[[], float]


class _Marks(NamedTuple):
    """When one pass of the head began and ended."""

    start: _Moment
    end: _Moment


class HeadTimer:
    """While it is entered, measures the head in every pass of a stage; a stage without a head takes no time.

    Forward, the head is everything from the input of the final norm to the loss. Backward, it is everything until the
    gradient of that input is there; gathering the head's parameters comes before and is not counted.

    Args:
        stage: This rank's stage.
        device: Device of this rank.
    """

    def __init__(self, stage: Stage, device: torch.device) -> None:
        self._stage = stage
        self._now = clock_of(device)
        self._started: list[_Moment] = []
        self._marks: dict[tuple[ActionKind, int], _Marks] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> "HeadTimer":
        """Begin to measure; chunks count from 0."""
        self._started, self._marks = [], {}
        if self._stage.norm is not None:
            self._hooks = [
                self._stage.norm.register_forward_pre_hook(self._begin),
                self._stage.register_forward_hook(self._end),
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the stage as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def seconds(self, kind: ActionKind, chunk_index: int) -> float:
        """Tell the time of the head in a pass of the chunk that ran forward as that one; waits for the device."""
        marks = self._marks.get((kind, chunk_index))
        return 0.0 if marks is None else marks.end() - marks.start()

    def _begin(self, _: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        # A view has a gradient hook that runs before those of the last layer, which gathers parameters in one.
        x, chunk_index = args[0].view_as(args[0]), len(self._started)
        self._started.append(self._now())
        x.register_hook(lambda _: self._end_backward(chunk_index))  # type: ignore[no-untyped-call]  # torch's own
        return (x,)

    def _end(self, _: nn.Module, __: tuple[object, ...], loss: Tensor) -> None:
        chunk_index = len(self._started) - 1
        self._marks[ActionKind.FORWARD, chunk_index] = _Marks(self._started[chunk_index], self._now())
        loss.register_hook(lambda _: self._begin_backward(chunk_index))  # type: ignore[no-untyped-call]  # torch's own

    def _begin_backward(self, chunk_index: int) -> None:
        self._started[chunk_index] = self._now()

    def _end_backward(self, chunk_index: int) -> None:
        self._marks[ActionKind.BACKWARD, chunk_index] = _Marks(self._started[chunk_index], self._now())
