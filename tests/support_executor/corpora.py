"""Corpora for tests: files of every format, a tokenizer with special tokens, a configuration."""

import gzip
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, processors

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.batch import IGNORE_TARGET
from infinipipe_executor.data.corpus import Corpus
from infinipipe_executor.data.tokenizer import train_tokenizer

BEGIN, END, TURN, TURN_END = "<s>", "</s>", "<|im_start|>", "<|im_end|>"
VOCAB = 300

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def data_config(folder: Path, corpus: Path, **changes: object) -> DataConfig:
    """Configure a corpus with its cache in a folder."""
    values: dict[str, object] = {
        "corpus": corpus,
        "cache": folder / "cache",
        "context_tokens": 4096,
        "beyond_context": "truncate",
        "sequences_per_batch": 2,
    }
    return DataConfig.model_validate(values | changes)


def write_tokenizer(folder: Path, *, template: str | None = CHAT_TEMPLATE, adds_begin: bool = False) -> Path:
    """Write a tokenizer of single bytes and special tokens, and what lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(["a"], 256)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (BEGIN, END, TURN, TURN_END)])
    if adds_begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
        )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "bos_token": {"__type": "AddedToken", "content": BEGIN},
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    """Write rows as lines; packed if the name ends so."""
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_megatron(
    prefix: Path,
    documents: Sequence[Sequence[Sequence[int]]],
    dtype: npt.DTypeLike = np.uint16,
    *,
    code: int = 8,
    magic: bytes = b"MMIDIDX\x00\x00",
    version: int = 1,
) -> Path:
    """Write documents, each of some sequences, as Megatron does; returns the index."""
    sequences = [np.array(sequence, dtype=dtype) for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * np.dtype(dtype).itemsize
    bounds = np.cumsum([0, *(len(document) for document in documents)], dtype=np.int64)
    header = magic + struct.pack("<QBQQ", version, code, len(sequences), len(bounds))
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    index = prefix.with_name(prefix.name + ".idx")
    index.write_bytes(header + lengths.tobytes() + pointers.astype(np.int64).tobytes() + bounds.tobytes())
    return index


def token_lists(corpus: Corpus) -> list[list[int]]:
    """List the tokens of all sequences."""
    return [corpus.sequence(index).token_ids.tolist() for index in range(len(corpus))]


def target_lists(corpus: Corpus) -> list[list[int]]:
    """List the targets of all sequences."""
    return [corpus.sequence(index).target_ids.tolist() for index in range(len(corpus))]


def learnt_texts(corpus: Corpus, tokenizer: Path) -> list[str]:
    """Spell the targets of all sequences."""
    decoder: Any = Tokenizer.from_file(str(tokenizer))
    return [
        decoder.decode([target for target in targets if target != IGNORE_TARGET], skip_special_tokens=False)
        for targets in target_lists(corpus)
    ]


def texts(corpus: Corpus, tokenizer: Path) -> list[str]:
    """Spell all sequences."""
    decoder: Any = Tokenizer.from_file(str(tokenizer))
    return [decoder.decode(ids, skip_special_tokens=False) for ids in token_lists(corpus)]
