"""How much memory a process of this machine has had at most, as far as the system tells (Linux)."""

from pathlib import Path

from infinipipe_contract.text import format_bytes


def peak_bytes(pid: int) -> int:
    """Return the largest resident memory of a process so far; 0 where it cannot be told."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def describe_peak(count: int) -> str:
    """Say what was seen of a process that is gone; it may have had more in its last moments."""
    return f"{format_bytes(count)} of memory when last seen" if count else "its memory is not known"
