"""Section ``[evaluation]``: when and how much the held-out data are evaluated."""

from infinipipe_executor.config.section import Positive, Section


class EvaluationConfig(Section):
    """Section ``[evaluation]``; goes with ``[data] evaluation_corpus``.

    Attributes:
        every_steps: Steps between two evaluations; the last step has one, too.
        sequences: First sequences of the held-out corpus, in its order; absent: all.
    """

    every_steps: Positive
    sequences: Positive | None = None
