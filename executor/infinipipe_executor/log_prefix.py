"""What warnings of a rank are about: every one begins with job, generation, step and rank, as far as they are known.

Entry points: ``note`` is told what is known, ``PrefixFormatter`` writes it in front of warnings and errors.
"""

import logging
import os

_known: dict[str, object] = {}


def note(**facts: object) -> None:
    """Remember what is known from now on: ``job``, ``generation`` and ``step``, in this order."""
    _known.update(facts)


class PrefixFormatter(logging.Formatter):
    """Writes progress as it is, and warnings with what they are about in front."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        text = super().format(record)
        if record.levelno < logging.WARNING:
            return text
        known = {**_known, "rank": os.environ.get("RANK", "0")}
        return f"{', '.join(f'{name} {value}' for name, value in known.items())}: {text}"
