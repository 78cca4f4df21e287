"""Section ``[data]``: what is trained on."""

import os
from pathlib import Path, PurePath
from typing import Annotated, Literal

from pydantic import Field, field_validator

from infinipipe_executor.config.section import MAX_COUNT, Positive, Section


class DataConfig(Section):
    """Section ``[data]``.

    Attributes:
        corpus: A folder of texts (one file one document), of JSON lines or of Parquet files, one such file, a dataset
            on disk, or an index of Megatron; docs/data.md tells how each is known.
        pattern: Which files of the folder, at any depth; absent: those of a known kind, else Python sources.
        exclude: Names of folders whose files are left out.
        format: The column by which rows are known; absent: found by their columns.
        evaluation_corpus: Held-out data, never trained on; absent: none.
        tokenizer: A ``tokenizer.json``; absent: a byte-level BPE of ``model.vocab`` entries is trained on the corpus.
        end_token: Token behind every text; absent: the ``eos_token`` beside the tokenizer, if any; empty: none.
        cache: Folder for the trained tokenizer and the tokens.
        context_tokens: Longest sequence that is trained; of a single token nothing could be learnt.
        beyond_context: What happens to a longer document.
        sequences_per_batch: Sequences of one training step.
    """

    corpus: Path
    pattern: str | None = None
    exclude: tuple[str, ...] = ()
    format: Literal["text", "messages", "prompt", "input_ids"] | None = None
    evaluation_corpus: Path | None = None
    tokenizer: Path | None = None
    end_token: str | None = None
    cache: Path
    context_tokens: Annotated[int, Field(ge=2, le=MAX_COUNT)]
    beyond_context: Literal["truncate", "split", "drop", "error"]
    sequences_per_batch: Positive

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        """Refuse what would leave the folder, or what pathlib does not take."""
        if pattern is None:
            return None
        path = PurePath(pattern)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError('it must name files below the corpus, for example "*.py" or "src/*.txt"')
        try:
            next(Path(os.devnull).glob(pattern), None)
        except (ValueError, NotImplementedError, IndexError) as error:
            raise ValueError(f'it is no pattern of file names ({error}); take for example "*.py"') from error
        return pattern
