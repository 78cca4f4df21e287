"""Row formats: what the columns of a row say, and which format a corpus is in. Entry point: ``choose_format``."""

from array import array
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from infinipipe_executor.data.batch import IGNORE_TARGET
from infinipipe_executor.data.chat_template import ChatTemplate
from infinipipe_executor.data.documents import (
    BoolArray,
    Content,
    MarkedText,
    Record,
    RowFormat,
    Source,
    TokenIds,
    UnusableRowError,
)
from infinipipe_executor.errors import DataError

MAX_TOKEN_ID = 2**31 - 1


class TextRows:
    """``text``: all of it is learnt."""

    name = "text"
    columns = ("text",)
    optional: tuple[str, ...] = ()

    def content(self, record: Record) -> Content:
        """Take the text; see ``RowFormat``."""
        text = _text(record, "text")
        if not text or text.isspace():
            raise UnusableRowError("empty")
        return text


class PromptRows:
    """``prompt`` and ``completion``, one right after the other: the completion is learnt."""

    name = "prompt"
    columns = ("prompt", "completion")
    optional: tuple[str, ...] = ()

    def content(self, record: Record) -> Content:
        """Join both; see ``RowFormat``."""
        prompt, completion = _text(record, "prompt"), _text(record, "completion")
        if not completion or completion.isspace():
            raise UnusableRowError('"completion" is empty')
        return MarkedText(prompt + completion, ((len(prompt), len(prompt) + len(completion)),))


class MessageRows:
    """``messages``, a list of ``{"role": ..., "content": ...}``: what the assistant says is learnt."""

    name = "messages"
    columns = ("messages",)
    optional: tuple[str, ...] = ()

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def content(self, record: Record) -> Content:
        """Render the conversation; see ``RowFormat``."""
        messages = _column(record, "messages")
        if not isinstance(messages, list) or not all(
            isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages
        ):
            raise UnusableRowError('"messages" is not a list of objects with a "role"')
        if not any(message["role"] == "assistant" for message in messages):
            raise UnusableRowError("no turn of the assistant")
        rendered = self._template.render(messages)
        _check_unicode(rendered.text)
        return rendered


class TokenRows:
    """``input_ids``: tokens; those with a ``labels`` of -100 or a ``loss_mask`` of 0 are not learnt."""

    name = "input_ids"
    columns = ("input_ids",)
    optional = ("labels", "loss_mask")

    def content(self, record: Record) -> Content:
        """Take the tokens; see ``RowFormat``."""
        ids = _token_ids(_column(record, "input_ids"))
        labels, loss_mask = record.get("labels"), record.get("loss_mask")
        if labels is None and loss_mask is None:
            return TokenIds(ids, None)
        learnt = np.ones(len(ids), dtype=np.bool_)
        if labels is not None:
            learnt &= _learnt_by_labels(ids, _integers("labels", labels, len(ids)))
        if loss_mask is not None:
            mask = _integers("loss_mask", loss_mask, len(ids))
            if not np.isin(mask, (0, 1)).all():
                raise UnusableRowError('"loss_mask" holds more than 0 and 1')
            learnt &= mask == 1
        return TokenIds(ids, learnt)


COLUMNS: dict[str, tuple[str, ...]] = {
    rows.name: rows.columns for rows in (TextRows, MessageRows, PromptRows, TokenRows)
}
"""Columns by which a format is known, by the name of the format."""


def choose_format(source: Source, asked: str | None) -> str:
    """Tell the format of a corpus: what ``[data] format`` says, else what its columns say.

    Returns:
        Name of the format; "text" where no row tells.

    Raises:
        DataError: If the columns fit several formats, or files are of several.
    """
    if asked is not None:
        return asked
    first_of: dict[str, str] = {}
    for index, file in enumerate(source.files):
        present = source.columns_of(index)
        fitting = [name for name, columns in COLUMNS.items() if present.issuperset(columns)]
        if len(fitting) > 1:
            raise DataError(
                f"corpus {source.root / file} has columns of several formats: {', '.join(fitting)}; "
                "say which one is meant ([data] format)"
            )
        for name in fitting:
            first_of.setdefault(name, file)
    if len(first_of) > 1:
        examples = ", ".join(f"{name} in {file}" for name, file in first_of.items())
        raise DataError(f"corpus {source.root} holds files of several formats: {examples} ([data] format, pattern)")
    return next(iter(first_of), TextRows.name)


def make_format(name: str, template: ChatTemplate | None) -> RowFormat:
    """Make a format by its name.

    Raises:
        DataError: If conversations have no template to render them with.
    """
    if name == MessageRows.name:
        if template is None:
            raise DataError(
                "conversations need a chat template: a tokenizer.json with a chat_template.jinja, or a "
                "tokenizer_config.json that holds one, beside it ([data] tokenizer)"
            )
        return MessageRows(template)
    formats: tuple[RowFormat, ...] = (TextRows(), PromptRows(), TokenRows())
    return next(rows for rows in formats if rows.name == name)


def _column(record: Record, name: str) -> object:
    value = record.get(name)
    if value is None:
        raise UnusableRowError(f'"{name}" is null' if name in record else f'no "{name}"')
    return value


def _text(record: Record, name: str) -> str:
    value = _column(record, name)
    if not isinstance(value, str):
        raise UnusableRowError(f'"{name}" is a {type(value).__name__}')
    _check_unicode(value)
    return value


def _check_unicode(text: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell and no encoding can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UnusableRowError("not valid Unicode") from None


def _token_ids(value: object) -> "array[int]":
    ids = _as_array(value)
    if ids is None:
        raise UnusableRowError('"input_ids" is not a list of token ids')
    if not ids:
        raise UnusableRowError("empty")
    if min(ids) < 0:
        raise UnusableRowError('"input_ids" holds a negative id')
    return ids


def _as_array(value: object) -> "array[int] | None":
    """Take integers of 32 bits; None for anything else."""
    if isinstance(value, list):
        try:
            return array("i", value)
        except (TypeError, OverflowError):
            return None
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.max(initial=0) > MAX_TOKEN_ID:
        return None
    return array("i", value.clip(min=-1).astype(np.int32).tobytes())


def _integers(name: str, value: object, count: int) -> npt.NDArray[np.int64]:
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        numbers = np.empty((0, 0))
    if numbers.dtype.kind not in "iub" or numbers.ndim != 1:
        raise UnusableRowError(f'"{name}" is not a list of integers')
    if len(numbers) != count:
        raise UnusableRowError(f'"{name}" and "input_ids" differ in length')
    return numbers.astype(np.int64)


def _learnt_by_labels(ids: "array[int]", labels: npt.NDArray[np.int64]) -> BoolArray:
    learnt = labels != IGNORE_TARGET
    wrong = np.flatnonzero(learnt & (labels != np.asarray(ids)))
    if len(wrong):
        place = int(wrong[0])
        raise DataError(
            f'"labels" must repeat the tokens of "input_ids" or be {IGNORE_TARGET}, at token {place} it is '
            f"{labels[place]} where the token is {ids[place]}; labels are shifted by training, not before"
        )
    return np.asarray(learnt, dtype=np.bool_)
