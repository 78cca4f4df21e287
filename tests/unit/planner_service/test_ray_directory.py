"""Temporary folders of Ray: gone with their owner, swept when it was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from infinipipe_planner.ray_directory import PREFIX, RayDirectory, sweep_directories

OWNER = """
import sys
from pathlib import Path
from infinipipe_planner.ray_directory import RayDirectory
directory = RayDirectory(Path(sys.argv[1]))
(directory.path / "logs").mkdir()
print(directory.path, flush=True)
sys.stdin.read()
"""


def start_owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def end(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate(timeout=20)


def test_a_removed_folder_leaves_nothing(tmp_path: Path) -> None:
    directory = RayDirectory(tmp_path)
    (directory.path / "logs").mkdir()

    directory.remove()
    directory.remove()

    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_owner_is_swept_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    killed, orphan = start_owner(tmp_path)
    living, kept = start_owner(tmp_path)
    try:
        assert sweep_directories(tmp_path) == []

        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(20)

        assert sweep_directories(tmp_path) == [orphan]
        assert sorted(tmp_path.iterdir()) == [kept]
        assert (kept / "logs").is_dir()
    finally:
        end(killed)
        end(living)


def test_folders_of_this_process_are_safe_from_its_own_sweep(tmp_path: Path) -> None:
    directory = RayDirectory(tmp_path)

    assert sweep_directories(tmp_path) == []
    directory.remove()


def test_a_folder_without_a_lock_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}foreign").mkdir()

    assert sweep_directories(tmp_path) == []
    assert (tmp_path / f"{PREFIX}foreign").is_dir()
