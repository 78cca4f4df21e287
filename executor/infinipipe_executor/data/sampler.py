"""Sampler: which sequences make the batch of which step.

A pure function of the seed and the step, and of nothing else, above all not of the number of ranks: every rank draws
the same batch without a word, and a run that is started again, on however many ranks, goes on with the same batches.
"""

import functools
from typing import NamedTuple

import numpy as np


class DataPosition(NamedTuple):
    """How far the data are consumed: an epoch, and how many of its sequences were drawn."""

    epoch: int
    offset: int


class BatchSampler:
    """Draws batches without replacement; an epoch's order is a permutation by seed and epoch.

    No batch straddles two epochs: the last one of an epoch holds what is left, which may be fewer sequences.
    """

    def __init__(self, sequence_count: int, sequences_per_batch: int, seed: int) -> None:
        """Set up.

        Args:
            sequence_count: Sequences to draw from, at least 1.
            sequences_per_batch: Sequences of a batch, but for the last one of an epoch.
            seed: Decides every order.
        """
        if sequence_count < 1:
            raise ValueError(f"cannot draw from {sequence_count} sequences")
        self._sequence_count = sequence_count
        self._sequences_per_batch = sequences_per_batch
        self._seed = seed
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that draw every sequence once."""
        return -(-self._sequence_count // self._sequences_per_batch)

    def position(self, step: int) -> DataPosition:
        """Tell what is consumed when a step begins, that is, after all steps before it."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        return DataPosition(epoch, batch * self._sequences_per_batch)

    def indices(self, step: int) -> list[int]:
        """Return the sequences of one step's batch, in the order of the batch."""
        epoch, offset = self.position(step)
        drawn: list[int] = self._order(epoch)[offset : offset + self._sequences_per_batch].tolist()
        return drawn

    def _shuffle(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.random.default_rng([self._seed, epoch]).permutation(self._sequence_count)
