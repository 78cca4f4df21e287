"""Tokenizer: a byte-level BPE, given as a file or trained on the corpus.

Byte-level, so every text has tokens and none is unknown. The same texts train the same tokenizer.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from infinipipe_executor.errors import DataError

# One entry a byte value: the smallest vocabulary that can spell every text.
MIN_VOCAB = 256


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train a byte-level BPE.

    Args:
        texts: What it is trained on.
        vocab: Entries of the vocabulary, at least ``MIN_VOCAB``; fewer come out when the texts run out of pairs.

    Raises:
        DataError: If the vocabulary cannot even hold the byte values.
    """
    if vocab < MIN_VOCAB:
        raise DataError(f"a byte-level tokenizer needs at least {MIN_VOCAB} entries, [model] vocab is {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``, but for its truncation and padding: how long a document may be is for training to say.

    Raises:
        DataError: If there is none or it cannot be read.
    """
    if not path.is_file():
        raise DataError(f"tokenizer {path} does not exist ([data] tokenizer)")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"tokenizer {path} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
