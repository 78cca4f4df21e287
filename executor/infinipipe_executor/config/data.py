"""Section ``[data]``: what is trained on."""

import os
from pathlib import Path, PurePath
from typing import Annotated, Literal

from pydantic import Field, field_validator

from infinipipe_executor.config.section import MAX_COUNT, Positive, Section


class DataConfig(Section):
    """Section ``[data]``.

    Attributes:
        corpus: A folder (one file one document) or a ``.jsonl`` file (one ``{"text": ...}`` a line).
        pattern: Which files of the folder, at any depth; relative to it.
        exclude: Names of folders whose files are left out.
        tokenizer: A ``tokenizer.json``; absent: a byte-level BPE of ``model.vocab`` entries is trained on the corpus.
        cache: Folder for the trained tokenizer and the tokens.
        context_tokens: Longest sequence that is trained; of a single token nothing could be learnt.
        beyond_context: What happens to a longer document.
        sequences_per_batch: Sequences of one training step.
    """

    corpus: Path
    pattern: str = "*.py"
    exclude: tuple[str, ...] = ()
    tokenizer: Path | None = None
    cache: Path
    context_tokens: Annotated[int, Field(ge=2, le=MAX_COUNT)]
    beyond_context: Literal["truncate", "split", "drop", "error"]
    sequences_per_batch: Positive

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        """Refuse what would leave the folder, or what pathlib does not take."""
        path = PurePath(pattern)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError('it must name files below the corpus, for example "*.py" or "src/*.txt"')
        try:
            next(Path(os.devnull).glob(pattern), None)
        except (ValueError, NotImplementedError, IndexError) as error:
            raise ValueError(f'it is no pattern of file names ({error}); take for example "*.py"') from error
        return pattern
