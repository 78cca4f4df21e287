"""Prepare: a corpus becomes token files, document by document. Entry point: ``write_tokens``."""

import itertools
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.documents import (
    Content,
    Document,
    MarkedText,
    RowFormat,
    SkippedDocuments,
    Source,
    read_documents,
)
from infinipipe_executor.data.encoder import Encoder, end_token_id
from infinipipe_executor.data.row_formats import choose_format, make_format
from infinipipe_executor.data.token_files import TokenWriter
from infinipipe_executor.data.tokenizer import read_tokenizer, train_tokenizer
from infinipipe_executor.data.tokenizer_files import TokenizerFiles, read_tokenizer_files

logger = logging.getLogger(__name__)

# Documents and characters encoded at a time: they bound the memory.
ROUND_DOCUMENTS, ROUND_CHARACTERS = 1000, 2**21

# Seconds between two lines of progress.
PROGRESS_S = 10.0

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class _Reading:
    """How documents are read and encoded."""

    row_format: RowFormat
    tokenizer: Tokenizer | None
    encoder: Encoder
    description: str


def write_tokens(folder: Path, source: Source, config: DataConfig, vocab: int, check: Callable[[], None]) -> None:
    """Read and encode a corpus into a folder that appears whole or not at all.

    Args:
        folder: Where the token files will lie.
        source: The files of the corpus.
        config: Section ``[data]``.
        vocab: Entries of a tokenizer that is trained.
        check: Called before the folder appears; what it raises keeps the folder from appearing.

    Raises:
        DataError: If the corpus or the tokenizer cannot be read, or do not fit each other.
    """
    reading = _open_reading(source, config, vocab)
    skipped = SkippedDocuments()
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        writer = TokenWriter(partial, may_mask=reading.row_format.name != "text")
        with writer.open():
            _encode_all(read_documents(source, reading.row_format, skipped), reading.encoder, writer, skipped)
        writer.write_index(reading.description, source.files, skipped.count_by_reason)
        if reading.tokenizer is not None:
            reading.tokenizer.save(str(partial / TOKENIZER_FILE))
        check()
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _open_reading(source: Source, config: DataConfig, vocab: int) -> _Reading:
    name = choose_format(source, config.format)
    if name == "input_ids":
        return _Reading(make_format(name, None), None, Encoder(None, None), f"{source.kind}, {name}")
    files = TokenizerFiles({}, None) if config.tokenizer is None else read_tokenizer_files(config.tokenizer)
    row_format = make_format(name, files.template)
    tokenizer = read_tokenizer(config.tokenizer) if config.tokenizer is not None else _train(source, row_format, vocab)
    is_chat = name == "messages"
    end_token = files.special_tokens.get("eos_token") if config.end_token is None else config.end_token
    encoder = Encoder(tokenizer, end_token_id(tokenizer, end_token), is_chat=is_chat)
    marks = "marked by the chat template" if is_chat else _describe_marks(tokenizer, end_token)
    return _Reading(row_format, tokenizer, encoder, f"{source.kind}, {name}, {marks}")


def _describe_marks(tokenizer: Tokenizer, end_token: str | None) -> str:
    """Say which tokens stand around a document."""
    added = " ".join(tokenizer.encode("", add_special_tokens=True).tokens)
    end = f"each ends with {end_token}" if end_token else "no end token"
    return f"{end}, the tokenizer adds {added}" if added else end


def _train(source: Source, row_format: RowFormat, vocab: int) -> Tokenizer:
    logger.info("training a tokenizer of %d entries on the corpus", vocab)
    documents = read_documents(source, row_format, SkippedDocuments(told=False))
    return train_tokenizer((_text(document.content) for document in documents), vocab)


def _text(content: Content) -> str:
    return content.text if isinstance(content, MarkedText) else str(content)


def _encode_all(
    documents: Iterator[Document], encoder: Encoder, writer: TokenWriter, skipped: SkippedDocuments
) -> None:
    told_s = time.monotonic()
    without_tokens = 0
    for round_ in _rounds(documents):
        encoded = encoder.encode([document.content for document in round_])
        for document, tokens in zip(round_, encoded, strict=True):
            if len(tokens.ids):
                writer.add(document.file_index, document.number, tokens)
            else:
                without_tokens += 1
        if time.monotonic() - told_s > PROGRESS_S:
            told_s = time.monotonic()
            logger.info("tokenised %d documents so far, %d tokens", writer.document_count, writer.token_count)
    if without_tokens:
        skipped.count_by_reason["no token"] = without_tokens
    logger.info("tokenised %d documents, %d tokens", writer.document_count, writer.token_count)


def _rounds(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Gather documents until they are many or long."""
    documents = iter(documents)
    for first in documents:
        round_, characters = [first], _characters(first.content)
        if characters < ROUND_CHARACTERS:
            for document in itertools.islice(documents, ROUND_DOCUMENTS - 1):
                round_.append(document)
                characters += _characters(document.content)
                if characters >= ROUND_CHARACTERS:
                    break
        yield round_


def _characters(content: Content) -> int:
    if isinstance(content, str):
        return len(content)
    return len(content.text) if isinstance(content, MarkedText) else len(content.ids)
