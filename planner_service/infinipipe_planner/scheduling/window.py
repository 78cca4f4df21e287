"""The window of a stage: how many chunks are in flight (paper, III-A3)."""


def window_size(pp_size: int, stage_index: int, split_count: int) -> int:
    """Count the chunks in flight on a stage in the steady phase (Eq. 7; the paper's p is ``stage_index + 1``).

    ::

        three stages, sequences of two chunks (F and B of one time unit, messages free)

        stage 0  F0 F1 F2 F3 .. B1 F4 B0 ..      window 4: its own 2 and one for each stage behind it
        stage 1     F0 F1 F2 B1 F3 B0 ..         window 3
        stage 2        F0 F1 B1 F2 B0 ..         window 2: the last stage turns round when the sequence is complete

    Args:
        pp_size: Stages.
        stage_index: 0-based stage.
        split_count: Chunks of the longest sequence in the pipeline (paper: N_split).

    Returns:
        Forwards that run before the first backward; from then on one backward and one forward alternate.
    """
    return pp_size - 1 - stage_index + split_count
