"""The batch of one training step: whole sequences, with targets that are already shifted.

Targets are shifted once, here, on the whole sequence. Whoever cuts a sequence later cuts ids and targets alike, so no
target is lost at a cut, and the last token of a document never learns the first one of the next.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE_TARGET = -100
"""Target id of a token without a target."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One document.

    Attributes:
        token_ids: int64 ``[tokens]``, at least one.
        target_ids: int64 ``[tokens]``: the next token, or ``IGNORE_TARGET``; the last is always ``IGNORE_TARGET``.
    """

    token_ids: Tensor
    target_ids: Tensor


def make_sequence(token_ids: Tensor, target_mask: Tensor | None = None) -> TokenSequence:
    """Shift the tokens of a document to its targets.

    Args:
        token_ids: int64 ``[tokens]``, at least one.
        target_mask: bool ``[tokens]``: which tokens are learnt, that is, may be a target; None for all.

    Raises:
        ValueError: If the tokens are empty, not int64 of one dimension, or the mask has another shape.
    """
    if token_ids.ndim != 1 or token_ids.dtype != torch.int64 or not len(token_ids):
        raise ValueError(f"token_ids must be int64 [tokens] with tokens >= 1, not {token_ids.dtype} {token_ids.shape}")
    if target_mask is not None and target_mask.shape != token_ids.shape:
        raise ValueError(f"target_mask has shape {tuple(target_mask.shape)}, token_ids {tuple(token_ids.shape)}")
    learnt = token_ids if target_mask is None else torch.where(target_mask, token_ids, IGNORE_TARGET)
    return TokenSequence(token_ids, torch.cat([learnt[1:], learnt.new_full((1,), IGNORE_TARGET)]))


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one training step, in the order of their index in the plan."""

    sequences: tuple[TokenSequence, ...]

    @property
    def lengths_tokens(self) -> tuple[int, ...]:
        """Length of every sequence."""
        return tuple(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def target_token_count(self) -> int:
        """Tokens that have a target, over all sequences."""
        return sum(int((sequence.target_ids != IGNORE_TARGET).sum()) for sequence in self.sequences)

    def digest(self) -> str:
        """Hash ids and targets, so that ranks can tell whether they hold the same batch.

        Returns:
            SHA-256 in hexadecimal.
        """
        digest = hashlib.sha256()
        for sequence in self.sequences:
            digest.update(len(sequence.token_ids).to_bytes(8, "little"))
            for ids in (sequence.token_ids, sequence.target_ids):
                digest.update(ids.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
