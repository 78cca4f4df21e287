"""Encoder: contents of documents become tokens, and which of them are learnt.

A text is encoded with what the tokenizer itself adds (a token at the beginning, for some models), and ends with the end
token if there is one. A text of which parts are learnt is encoded as a whole, as it will be read; a token counts as
learnt if it begins in a learnt part.
"""

from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding, Tokenizer

from infinipipe_executor.data.documents import MarkedText, TokenIds
from infinipipe_executor.errors import DataError


class Encoder:
    """Turns documents of one format into tokens.

    Args:
        tokenizer: What makes tokens of texts.
        end_id: Token behind every document; None for none.
        is_chat: Whether texts were made by a chat template, which sets the first and the last token itself.
    """

    def __init__(self, tokenizer: Tokenizer, end_id: int | None, *, is_chat: bool) -> None:
        self._tokenizer = tokenizer
        self._adds_special = not is_chat
        self._end_id = None if is_chat else end_id

    def encode(self, contents: Sequence[str | MarkedText]) -> list[TokenIds]:
        """Encode documents, all of one kind."""
        texts = [content for content in contents if isinstance(content, str)]
        if texts:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=self._adds_special)
            return [TokenIds(self._ended(encoding.ids), None) for encoding in encodings]
        marked = [content for content in contents if isinstance(content, MarkedText)]
        encodings = self._tokenizer.encode_batch(
            [content.text for content in marked], add_special_tokens=self._adds_special
        )
        return [self._marked(content, encoding) for content, encoding in zip(marked, encodings, strict=True)]

    def _ended(self, ids: list[int]) -> list[int]:
        if self._end_id is not None and ids and ids[-1] != self._end_id:
            ids.append(self._end_id)
        return ids

    def _marked(self, content: MarkedText, encoding: Encoding) -> TokenIds:
        token_count = len(encoding.ids)
        first_characters = np.fromiter((first for first, _ in encoding.offsets), np.int64, token_count)
        bounds = np.array(content.learnt_spans, dtype=np.int64).ravel()
        learnt = np.searchsorted(bounds, first_characters, side="right") % 2 == 1
        ids = self._ended(encoding.ids)
        if self._end_id is not None and ids:  # the end is learnt, whoever set it
            learnt = np.append(learnt[: len(ids) - 1], True)
        return TokenIds(ids, learnt)


def end_token_id(tokenizer: Tokenizer, end_token: str | None) -> int | None:
    """Find the token that ends documents.

    Args:
        tokenizer: The tokenizer.
        end_token: Text of the token; None or empty for none.

    Raises:
        DataError: If the tokenizer has no such token.
    """
    if not end_token:
        return None
    end_id = tokenizer.token_to_id(end_token)
    if end_id is None:
        raise DataError(f"the tokenizer has no token {end_token!r} to end documents with ([data] end_token)")
    return end_id
