"""Preparing a corpus takes memory for a moment's work, not for the corpus."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT_COUNT = 2_000_000
LIMIT_BYTES = 2**30

# Runs in a process of its own: the limit counts what is added to an interpreter that has imported everything.
PREPARE = """
import re, resource, sys
from pathlib import Path
from infinipipe_executor.data.corpus import open_corpus
from support_executor.corpora import data_config

folder, file, limit_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
status = Path("/proc/self/status").read_text()
used_bytes = int(re.search(r"VmSize:\\s+(\\d+) kB", status)[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + limit_bytes,) * 2)
corpus = open_corpus(data_config(folder, folder / file), vocab=300)
print(corpus.report)
print(corpus.sequence(len(corpus) - 1).token_ids.tolist())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
@pytest.mark.timeout(400)
def test_two_million_documents_of_one_token_are_prepared_within_a_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"input_ids": [7]}\n' * (DOCUMENT_COUNT - 1) + b'{"input_ids": [9]}\n')

    ended = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path), "d.jsonl", str(LIMIT_BYTES)],
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    assert ended.returncode == 0, ended.stderr
    assert f"{DOCUMENT_COUNT} documents, 0 skipped" in ended.stdout
    assert f"{DOCUMENT_COUNT} tokens kept" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[9]"
