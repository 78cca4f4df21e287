"""How a rank ends: one line, once, the right exit code, and the cause where torchrun looks for it."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent(
    """
    import sys
    from infinipipe_executor.errors import ConfigError, DataError, LayoutError, PeerLostError
    from infinipipe_executor.failure import exit_failed
    from infinipipe_executor.stop import StopSignal
    try:
        {statement}
    except Exception as error:
        exit_failed(error, StopSignal())
    """
)


def fail(statement: str, error_file: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TORCHELASTIC_ERROR_FILE"}
    if error_file is not None:
        environment["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    script = SCRIPT.format(statement=statement)
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("name", "code"), [("ConfigError", 2), ("LayoutError", 2), ("DataError", 1)])
def test_a_users_mistake_is_one_line_and_an_exit_code(name: str, code: int) -> None:
    ended = fail(f"raise {name}('value 3, limit 2')")

    assert ended.stderr == "error: value 3, limit 2\n"
    assert ended.stdout == ""
    assert ended.returncode == code


def test_ranks_of_a_machine_that_meet_the_same_mistake_say_it_once(tmp_path: Path) -> None:
    outputs = [fail("raise DataError('no text')", tmp_path / str(rank) / "error.json").stderr for rank in range(3)]

    assert outputs == ["error: no text\n", "", ""]


def test_the_cause_is_left_where_torchrun_looks_for_it(tmp_path: Path) -> None:
    before_s = int(time.time())

    fail("raise DataError('no text')", tmp_path / "0" / "error.json")

    message = json.loads((tmp_path / "0" / "error.json").read_text())["message"]
    assert message["message"] == message["extraInfo"]["py_callstack"] == "error: no text"
    assert before_s <= int(message["extraInfo"]["timestamp"]) <= time.time()


def test_a_mistake_of_the_program_shows_its_traceback_and_ends_with_one_sentence(tmp_path: Path) -> None:
    ended = fail("[].pop()", tmp_path / "0" / "error.json")

    assert "Traceback" in ended.stderr
    assert ended.stderr.endswith("error: rank 0 failed: IndexError: pop from empty list\n")
    assert ended.returncode == 1
    assert "IndexError" in json.loads((tmp_path / "0" / "error.json").read_text())["message"]["message"]


def test_a_rank_that_only_lost_a_peer_waits_for_a_better_cause_before_it_speaks(tmp_path: Path) -> None:
    started_s, started_at_s = time.monotonic(), int(time.time())

    ended = fail("raise PeerLostError('rank 1 lost rank 0')", tmp_path / "0" / "error.json")

    assert time.monotonic() - started_s >= 2.0
    assert ended.stderr == "error: rank 1 lost rank 0\n"
    assert ended.returncode == 1
    left = (tmp_path / "0" / "error.json").read_text()
    assert json.loads(left)["message"]["message"] == "error: rank 1 lost rank 0"
    assert int(json.loads(left)["message"]["extraInfo"]["timestamp"]) >= started_at_s + 2


def test_a_mistake_of_the_program_tells_what_was_going_on_wherever_it_is_read(tmp_path: Path) -> None:
    statement = (
        "from infinipipe_executor.parallel.peers import peers_watched\n    with peers_watched(0, 'step 3'): [].pop()"
    )

    ended = fail(statement, tmp_path / "0" / "error.json")

    sentence = "error: rank 0 failed: IndexError: pop from empty list, during step 3"
    assert ended.stderr.endswith(sentence + "\n")
    assert json.loads((tmp_path / "0" / "error.json").read_text())["message"]["message"] == sentence


def test_a_rank_that_waited_for_a_silent_peer_in_vain_shows_where_it_waited() -> None:
    ended = fail("raise PeerLostError('rank 1 lost rank 0') from RuntimeError('Timed out waiting 5000ms')")

    assert "Traceback" in ended.stderr
    assert ended.stderr.endswith("error: rank 1 lost rank 0\n")
