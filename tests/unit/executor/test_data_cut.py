"""Documents beyond the context: four policies, and exact counts of documents and tokens."""

import numpy as np
import pytest

from infinipipe_executor.data.cut import BeyondContext, cut_documents
from infinipipe_executor.errors import DataError

LENGTHS = [10, 200, 48, 49]
STARTS = np.cumsum(LENGTHS) - np.array(LENGTHS)
name_of = ["a.py", "b.py", "c.py", "d.py"].__getitem__


@pytest.mark.parametrize(
    ("policy", "sequences", "lost_tokens"),
    [
        ("truncate", [(0, 10), (10, 48), (210, 48), (258, 48)], 152 + 1),
        ("drop", [(0, 10), (210, 48)], 249),
        (
            "split",
            [(0, 10), (10, 48), (58, 48), (106, 48), (154, 48), (202, 8), (210, 48), (258, 48), (306, 1)],
            0,
        ),
    ],
)
def test_policy_makes_these_sequences_and_counts_what_is_lost(
    policy: BeyondContext, sequences: list[tuple[int, int]], lost_tokens: int
) -> None:
    starts, lengths, report = cut_documents(STARTS, np.array(LENGTHS), name_of, 48, policy)

    assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == sequences
    assert (report.document_count, report.longer_count, report.sequence_count) == (4, 2, len(sequences))
    assert report.kept_tokens == sum(length for _, length in sequences)
    assert report.lost_tokens == lost_tokens
    assert report.kept_tokens + report.lost_tokens == sum(LENGTHS)


@pytest.mark.parametrize("context_tokens", range(2, 17))
def test_no_cut_leaves_an_empty_sequence_wherever_it_falls(context_tokens: int) -> None:
    document_lengths = np.array([5, 3, 1, 8, 16, 2])
    starts = np.cumsum(document_lengths) - document_lengths

    first, lengths, _ = cut_documents(starts, document_lengths, name_of, context_tokens, "split")

    assert lengths.min() >= 1
    assert lengths.max() <= context_tokens
    assert (first[1:] == first[:-1] + lengths[:-1]).all()  # every token once, in order
    assert lengths.sum() == document_lengths.sum()


def test_policy_error_names_the_first_longer_document_its_length_and_the_knob() -> None:
    with pytest.raises(DataError, match=r"b\.py has 200 tokens, \[data\] context_tokens is 48 \(2 of 4 documents"):
        cut_documents(STARTS, np.array(LENGTHS), name_of, 48, "error")


def test_policy_error_lets_documents_up_to_the_context_pass() -> None:
    starts, lengths, report = cut_documents(STARTS, np.array(LENGTHS), name_of, 200, "error")

    assert (starts.tolist(), lengths.tolist()) == (STARTS.tolist(), LENGTHS)
    assert report.longer_count == report.lost_tokens == 0


def test_the_report_says_documents_and_tokens_in_one_line() -> None:
    _, _, report = cut_documents(STARTS, np.array(LENGTHS), name_of, 48, "truncate")

    assert str(report) == ("2 longer than 48 tokens, truncated; 4 sequences, 154 tokens kept, 153 lost (49.8%)")
