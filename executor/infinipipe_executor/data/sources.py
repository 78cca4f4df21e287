"""Sources: which kind of files a corpus is. One file of this folder holds each kind; here is the list of them.

A kind is known by names alone. Entry point: ``find_source``.
"""

from collections import Counter
from pathlib import Path

from infinipipe_executor.data.dataset_folder import is_dataset, open_dataset
from infinipipe_executor.data.documents import Source
from infinipipe_executor.data.jsonl import JsonLines
from infinipipe_executor.data.megatron import INDEX_SUFFIX, TOKENS_SUFFIX, MegatronSource
from infinipipe_executor.data.parquet import ParquetFiles
from infinipipe_executor.data.row_formats import COLUMNS
from infinipipe_executor.data.text_files import TextFiles
from infinipipe_executor.errors import DataError

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")
PARQUET_SUFFIXES = (".parquet",)
# Texts are named by [data] pattern; without one, by this.
TEXT_PATTERN = "*.py"

_KINDS = f"{', '.join((*JSONL_SUFFIXES, *PARQUET_SUFFIXES, INDEX_SUFFIX))} with {TOKENS_SUFFIX}"


def find_source(corpus: Path, pattern: str | None, exclude: tuple[str, ...]) -> Source | MegatronSource:
    """Tell what a corpus is and list its files, without a look into them.

    Args:
        corpus: A folder, or a file.
        pattern: Which files of a folder, at any depth; None for those of a known kind, else Python sources.
        exclude: Names of folders whose files are left out.

    Raises:
        DataError: If the corpus does not exist, or is of no kind or of several.
    """
    if corpus.is_dir():
        if is_dataset(corpus):
            return open_dataset(corpus)
        return _folder_source(corpus, pattern, exclude)
    if corpus.suffix in (INDEX_SUFFIX, TOKENS_SUFFIX):
        return MegatronSource(corpus.with_suffix(""))
    if corpus.with_name(corpus.name + INDEX_SUFFIX).is_file():
        return MegatronSource(corpus)
    if not corpus.exists():
        raise DataError(f"corpus {corpus} does not exist ([data] corpus)")
    source = _row_source(corpus.parent, [corpus.name], _suffix(corpus.name))
    if source is None:
        raise DataError(f"corpus {corpus} is neither a folder nor a file of a known kind: {_KINDS} ([data] corpus)")
    return source


def _folder_source(corpus: Path, pattern: str | None, exclude: tuple[str, ...]) -> Source:
    root = corpus.resolve()  # a symbolic link to a folder is a folder
    files = _list_files(root, pattern or "*", exclude)
    if pattern is None:
        files = [file for file in files if _suffix(file) or Path(file).match(TEXT_PATTERN)]
        if not files and (pairs := sorted(root.glob(f"*{INDEX_SUFFIX}"))):
            raise DataError(
                f"corpus {corpus} holds {len(pairs)} {INDEX_SUFFIX} files: name one, for example corpus = "
                f'"{pairs[0]}" ([data] corpus)'
            )
    counts = Counter(_suffix(file) for file in files)
    kinds = {_kind(suffix) for suffix in counts}
    if len(kinds) > 1:
        found = ", ".join(f"{count} {suffix or 'other'}" for suffix, count in sorted(counts.items()))
        raise DataError(
            f'corpus {corpus} holds files of several kinds ({found}): say which are meant, for example "*.jsonl" '
            "([data] pattern)"
        )
    return _row_source(root, files, next(iter(counts), "")) or TextFiles(root, files)


def _list_files(root: Path, pattern: str, exclude: tuple[str, ...]) -> list[str]:
    """List names below a folder in the order of their parts; millions of them are kept as texts, not as paths."""
    left_out = set(exclude)
    names = []
    for path in root.rglob(pattern):
        relative = path.relative_to(root)
        if not left_out.intersection(relative.parts[:-1]) and path.is_file():
            names.append(str(relative))
    return sorted(names, key=lambda name: name.replace("/", "\0"))


def _suffix(name: str) -> str:
    """Return the suffix by which rows are known; empty for any other file."""
    return next((suffix for suffix in (*JSONL_SUFFIXES, *PARQUET_SUFFIXES) if name.endswith(suffix)), "")


def _kind(suffix: str) -> str:
    return "JSON lines" if suffix in JSONL_SUFFIXES else suffix


def _row_source(root: Path, files: list[str], suffix: str) -> Source | None:
    if suffix in JSONL_SUFFIXES:
        return JsonLines(root, files, frozenset(column for columns in COLUMNS.values() for column in columns))
    if suffix in PARQUET_SUFFIXES:
        return ParquetFiles(root, files)
    return None
