"""Where the sequences of a packed block begin and end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows of queries and keys that belong together.

    Attributes:
        query_offsets: First query row of every segment and the end of the last; starts at 0 and never falls.
        key_offsets: The same for keys; as long as ``query_offsets``.

    Raises:
        ValueError: If the offsets are not of that form.
    """

    query_offsets: tuple[int, ...]
    key_offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.query_offsets) != len(self.key_offsets):
            raise ValueError(f"{len(self.query_offsets)} query offsets, but {len(self.key_offsets)} key offsets")
        for name, offsets in (("query_offsets", self.query_offsets), ("key_offsets", self.key_offsets)):
            if not offsets or offsets[0] != 0 or any(after < before for before, after in pairwise(offsets)):
                raise ValueError(f"{name} {list(offsets)} must start at 0 and never fall")

    @classmethod
    def own(cls, lengths_tokens: Sequence[int]) -> "Segments":
        """Segments that attend to themselves, one after the other."""
        offsets = [0]
        for length in lengths_tokens:
            offsets.append(offsets[-1] + length)
        return cls(tuple(offsets), tuple(offsets))

    @classmethod
    def block(cls, query_tokens: int, key_tokens: int) -> "Segments":
        """One segment of queries that attends to other keys."""
        return cls((0, query_tokens), (0, key_tokens))

    @property
    def query_count(self) -> int:
        """Query rows of all segments."""
        return self.query_offsets[-1]

    @property
    def key_count(self) -> int:
        """Key rows of all segments."""
        return self.key_offsets[-1]

    @property
    def longest_query(self) -> int:
        """Query rows of the longest segment."""
        return max((end - start for start, end in pairwise(self.query_offsets)), default=0)

    @property
    def longest_key(self) -> int:
        """Key rows of the longest segment."""
        return max((end - start for start, end in pairwise(self.key_offsets)), default=0)

    def rows(self) -> list[tuple[slice, slice]]:
        """Query rows and key rows of every segment that has queries; empty ones are left out."""
        return [
            (slice(q0, q1), slice(k0, k1))
            for (q0, q1), (k0, k1) in zip(pairwise(self.query_offsets), pairwise(self.key_offsets), strict=True)
            if q1 > q0
        ]
