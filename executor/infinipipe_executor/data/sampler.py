"""Sampler: which sequences make the batch of which step.

A pure function of the seed and the step: every rank draws the same batch without a word, and a run that is started
again draws the same batches.
"""

import functools

import numpy as np


class BatchSampler:
    """Draws batches without replacement; an epoch's order is a permutation by seed and epoch.

    A batch that does not fill up at the end of an epoch goes on with the next one, so all batches are of one size.
    """

    def __init__(self, sequence_count: int, sequences_per_batch: int, seed: int) -> None:
        """Set up.

        Args:
            sequence_count: Sequences to draw from, at least 1.
            sequences_per_batch: Sequences of a batch.
            seed: Decides every order.
        """
        if sequence_count < 1:
            raise ValueError(f"cannot draw from {sequence_count} sequences")
        self._sequence_count = sequence_count
        self._sequences_per_batch = sequences_per_batch
        self._seed = seed
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    def indices(self, step: int) -> list[int]:
        """Return the sequences of one step's batch, in the order of the batch."""
        first = step * self._sequences_per_batch
        drawn = []
        for position in range(first, first + self._sequences_per_batch):
            epoch, offset = divmod(position, self._sequence_count)
            drawn.append(int(self._order(epoch)[offset]))
        return drawn

    def _shuffle(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.random.default_rng([self._seed, epoch]).permutation(self._sequence_count)
