"""What the job store forgets, so that it stays small whoever fills it.

A job keeps its newest steps. All jobs together keep so many bytes; beyond it the owner who has the most of them loses
the steps that were submitted first: one owner cannot push out what another one has.
"""

import sqlite3
from collections.abc import Callable

KEPT_STEPS = 1_000
"""Steps kept per job: a plan of 512 sequences takes about 0.1 MB, so a job stays in the order of 100 MB."""

KEPT_BYTES = 4 * 2**30
"""Bytes kept of all jobs together."""

FORGOTTEN_SHARE = 64
"""Beyond ``KEPT_BYTES`` this part of them is forgotten at once: to find the owner costs a look at every step."""


def count_bytes(connection: sqlite3.Connection, serial: int, step_id: int, byte_count: int) -> None:
    """Note that so many more bytes are kept of a step."""
    connection.execute(
        "INSERT INTO kept VALUES (?, ?, ?) ON CONFLICT (step_id) DO UPDATE SET byte_count = byte_count + ?",
        (step_id, serial, byte_count, byte_count),
    )


def forget_old_steps(connection: sqlite3.Connection, serial: int) -> None:
    """Keep the newest steps of a job only."""
    oldest_kept = connection.execute(
        "SELECT step FROM steps WHERE job_serial = ? ORDER BY step DESC LIMIT 1 OFFSET ?", (serial, KEPT_STEPS)
    ).fetchone()
    if oldest_kept is not None:
        _forget_through(connection, serial, oldest_kept[0])


def forget_bytes(connection: sqlite3.Connection, used_bytes: Callable[[], int]) -> None:
    """Forget finished steps until what is kept is small enough; see the module's docstring for whose."""
    if used_bytes() <= KEPT_BYTES:
        return
    enough = KEPT_BYTES - KEPT_BYTES // FORGOTTEN_SHARE
    owners = connection.execute(
        "SELECT owner FROM kept JOIN jobs ON serial = job_serial GROUP BY owner ORDER BY sum(byte_count) DESC"
    ).fetchall()
    for owner in owners:
        finished = connection.execute(
            """SELECT kept.job_serial, step FROM kept JOIN steps ON id = kept.step_id
            WHERE kept.job_serial IN (SELECT serial FROM jobs WHERE owner = ?)
            AND (EXISTS (SELECT 1 FROM plans WHERE step_id = id) OR EXISTS (SELECT 1 FROM failures WHERE step_id = id))
            ORDER BY kept.step_id""",
            owner,
        ).fetchall()
        for serial, step in finished:
            _forget_through(connection, serial, step)
            if used_bytes() <= enough:
                return


def _forget_through(connection: sqlite3.Connection, serial: int, step: int) -> None:
    connection.execute("DELETE FROM steps WHERE job_serial = ? AND step <= ?", (serial, step))
    connection.execute("UPDATE jobs SET forgotten_through = max(forgotten_through, ?) WHERE serial = ?", (step, serial))
