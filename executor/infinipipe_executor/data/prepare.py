"""Prepare: a corpus becomes token files, document by document. Entry point: ``write_tokens``."""

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
    Document,
    MarkedText,
    RowFormat,
    SkippedDocuments,
    Source,
    TokenIds,
    read_documents,
)
from infinipipe_executor.data.encoder import Encoder, end_token_id
from infinipipe_executor.data.row_formats import MessageRows, TextRows, TokenRows, choose_format, make_format
from infinipipe_executor.data.token_files import TokenWriter
from infinipipe_executor.data.tokenizer import read_tokenizer, train_tokenizer
from infinipipe_executor.data.tokenizer_files import TOKENIZER_FILE, TokenizerFiles, read_tokenizer_files

logger = logging.getLogger(__name__)

# Documents and characters encoded at a time: they bound the memory.
ROUND_DOCUMENTS, ROUND_CHARACTERS = 1000, 2**21

# Seconds between two lines of progress.
PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """How documents are read and encoded."""

    row_format: RowFormat
    description: str
    tokenizer: Tokenizer | None = None
    encoder: Encoder | None = None


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
        writer = TokenWriter(partial, may_mask=reading.row_format.name != TextRows.name)
        with writer.open():
            _write_all(_tokens(read_documents(source, reading.row_format, skipped), reading.encoder), writer, skipped)
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
    if name == TokenRows.name:
        return _Reading(make_format(name, None), f"{source.kind}, {name}")
    files = TokenizerFiles({}, None) if config.tokenizer is None else read_tokenizer_files(config.tokenizer)
    row_format = make_format(name, files.template)
    tokenizer = read_tokenizer(config.tokenizer) if config.tokenizer is not None else _train(source, row_format, vocab)
    is_chat = name == MessageRows.name
    end_token = files.special_tokens.get("eos_token") if config.end_token is None else config.end_token
    encoder = Encoder(tokenizer, end_token_id(tokenizer, end_token), is_chat=is_chat)
    marks = "marked by the chat template" if is_chat else _describe_marks(tokenizer, end_token)
    return _Reading(row_format, f"{source.kind}, {name}, {marks}", tokenizer, encoder)


def _describe_marks(tokenizer: Tokenizer, end_token: str | None) -> str:
    """Say which tokens stand around a document."""
    added = " ".join(tokenizer.encode("", add_special_tokens=True).tokens)
    end = f"each ends with {end_token}" if end_token else "no end token"
    return f"{end}, the tokenizer adds {added}" if added else end


def _train(source: Source, row_format: RowFormat, vocab: int) -> Tokenizer:
    logger.info("training a tokenizer of %d entries on the corpus", vocab)
    documents = read_documents(source, row_format, SkippedDocuments(told=False))
    texts = (content.text if isinstance(content, MarkedText) else str(content) for _, _, content in documents)
    return train_tokenizer(texts, vocab)


def _write_all(tokens: Iterable[tuple[int, int, TokenIds]], writer: TokenWriter, skipped: SkippedDocuments) -> None:
    told_s = time.monotonic()
    without_tokens = 0
    for file_index, number, document in tokens:
        if not document.ids:
            without_tokens += 1
            continue
        writer.add(file_index, number, document)
        if not writer.document_count % ROUND_DOCUMENTS and time.monotonic() - told_s > PROGRESS_S:
            told_s = time.monotonic()
            logger.info("tokenised %d documents so far, %d tokens", writer.document_count, writer.token_count)
    if without_tokens:
        skipped.count_by_reason["no token"] = without_tokens
    logger.info("tokenised %d documents, %d tokens", writer.document_count, writer.token_count)


def _tokens(documents: Iterator[Document], encoder: Encoder | None) -> Iterator[tuple[int, int, TokenIds]]:
    """Encode documents round by round; without an encoder they are tokens already."""
    if encoder is None:
        for file_index, number, content in documents:
            assert isinstance(content, TokenIds), "only tokens are read without a tokenizer"
            yield file_index, number, content
        return
    for round_ in _rounds(documents):
        encoded = encoder.encode([content for _, _, content in round_])
        for (file_index, number, _), tokens in zip(round_, encoded, strict=True):
            yield file_index, number, tokens


def _rounds(documents: Iterable[Document]) -> Iterator[list[tuple[int, int, str | MarkedText]]]:
    """Gather texts until they are many or long."""
    round_: list[tuple[int, int, str | MarkedText]] = []
    characters = 0
    for file_index, number, content in documents:
        assert not isinstance(content, TokenIds), "texts are not tokens yet"
        round_.append((file_index, number, content))
        characters += len(content if isinstance(content, str) else content.text)
        if len(round_) >= ROUND_DOCUMENTS or characters >= ROUND_CHARACTERS:
            yield round_
            round_, characters = [], 0
    if round_:
        yield round_
