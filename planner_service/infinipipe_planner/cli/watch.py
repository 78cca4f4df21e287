"""`infinipipe watch`: a job as it trains, until Ctrl-C."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.cli.client import PlannerOption
from infinipipe_planner.cli.json_records import Record, watched_job_record, watched_step_record
from infinipipe_planner.cli.lookup import fetch_job, fetch_step, fetch_summaries, job_profile
from infinipipe_planner.cli.output import JsonOption
from infinipipe_planner.config import DEFAULT_ADDRESS
from infinipipe_planner.measured import MeasuredRank

REFRESH_S = 1.0
SHOWN_STEPS = 12
HEADER = ("step", "state", "plan s", "real s", "ratio", "bubble", "measured", "wait s", "loss")


class StepLine(NamedTuple):
    """One step in words, a cell a column of ``HEADER``, and as data; ``note`` is why it has no plan."""

    cells: tuple[str, ...]
    note: str
    record: Record


class Snapshot(NamedTuple):
    """What a job looks like at one moment: one line about it, its newest steps, and the line as data."""

    title: str
    lines: dict[int, StepLine]
    record: Record


def watch(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    writes_json: JsonOption = False,
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """Watch a job: how far plans are ahead of training, predicted beside measured. Ends with Ctrl-C."""
    console = Console(highlight=False, markup=False)
    snapshots = watch_job(planner, job)
    try:
        if writes_json:
            _follow_json(snapshots)
        elif console.is_terminal:
            _draw(console, snapshots)
        else:
            _follow(snapshots)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def watch_job(planner: str, job_name: str) -> Iterator[Snapshot]:
    """Ask the planner about a job again and again, for ever."""
    ranks_by_step: dict[tuple[int, int], tuple[MeasuredRank, ...]] = {}
    while True:
        job = fetch_job(planner, job_name)
        summaries = fetch_summaries(planner, job_name)
        profile = job_profile(job)
        rank_count = profile.device_count * profile.cluster.dp_size
        newest_measured = max((summary.step for summary in summaries if summary.measured_s), default=-1)
        lines = {}
        for summary in summaries[-SHOWN_STEPS:]:
            key = (job.generation, summary.step)
            if summary.measured_s and len(ranks_by_step.get(key, ())) < rank_count:
                ranks_by_step[key] = fetch_step(planner, job, summary.step).ranks
            # Ranks report one after the other: a step is shown as measured when all have, or the next one has begun to.
            ranks = ranks_by_step.get(key, ())
            is_measured = len(ranks) == rank_count or (bool(ranks) and summary.step < newest_measured)
            lines[summary.step] = _line(summary, ranks if is_measured else ())
        ranks_by_step = {
            (generation, step): ranks for (generation, step), ranks in ranks_by_step.items() if step in lines
        }
        lead = sum(one.state == pb.PLAN_STATE_READY and one.step > newest_measured for one in summaries)
        trained_to_step = newest_measured if newest_measured >= 0 else None
        title = _title(job, trained_to_step, lead) if summaries else f"{_head(job)}, no steps yet"
        yield Snapshot(title, lines, watched_job_record(job, trained_to_step, lead))
        time.sleep(REFRESH_S)


def _draw(console: Console, snapshots: Iterator[Snapshot]) -> None:
    """Redraw a table in place."""
    with Live(console=console, auto_refresh=False) as live:
        for snapshot in snapshots:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for title in HEADER:
                table.add_column(title, justify="left" if title == "state" else "right")
            for line in snapshot.lines.values():
                table.add_row(*line.cells)
            notes = [Text(line.note) for line in snapshot.lines.values() if line.note]
            live.update(Group(Text(snapshot.title), table, *notes, Text("Ctrl-C ends")), refresh=True)


def _follow(snapshots: Iterator[Snapshot]) -> None:
    """Print a line whenever a step or the job changes: for logs and pipes."""
    known: dict[int, StepLine] = {}
    title = ""
    for snapshot in snapshots:
        if not title:
            typer.echo(_columns(HEADER))
        for step, line in snapshot.lines.items():
            if known.get(step) != line:
                typer.echo(_columns(line.cells) + (f"  {line.note}" if line.note else ""))
        if snapshot.title != title:
            typer.echo(snapshot.title)
        known, title = snapshot.lines, snapshot.title


def _follow_json(snapshots: Iterator[Snapshot]) -> None:
    """Print an object a line whenever a step or the job changes."""
    known: dict[int, Record] = {}
    of_job: Record = {}
    for snapshot in snapshots:
        records = {step: line.record for step, line in snapshot.lines.items()}
        for step, record in records.items():
            if known.get(step) != record:
                typer.echo(json.dumps(record))
        if snapshot.record != of_job:
            typer.echo(json.dumps(snapshot.record))
        known, of_job = records, snapshot.record


def _line(summary: pb.PlanSummary, ranks: Sequence[MeasuredRank]) -> StepLine:
    """Write one step; without ranks it is not measured yet."""
    record = watched_step_record(summary, ranks)
    step = str(summary.step)
    if summary.state != pb.PLAN_STATE_READY:
        is_failed = summary.state == pb.PLAN_STATE_FAILED
        note = f"step {step} failed: {summary.failure}" if is_failed else ""
        return StepLine((step, "failed" if is_failed else "planning", *["-"] * 7), note, record)
    predicted = (f"{summary.makespan_s:.3f}", f"{summary.bubble_ratio:.1%}")
    if not ranks:
        return StepLine((step, "planned", predicted[0], "-", "-", predicted[1], "-", "-", "-"), "", record)
    measured_s, bubble_ratio, loss = record["measured_s"], record["measured_bubble_ratio"], record["loss"]
    return StepLine(
        (
            step,
            "measured",
            predicted[0],
            f"{measured_s:.3f}",
            f"{measured_s / summary.makespan_s:.2f}" if summary.makespan_s else "-",
            predicted[1],
            "-" if bubble_ratio is None else f"{bubble_ratio:.1%}",
            f"{record['plan_wait_s']:.1f}",
            "-" if loss is None else f"{loss:.4f}",
        ),
        "",
        record,
    )


def _head(job: pb.Job) -> str:
    planned = f"{job.planned_step_count} of {job.submitted_step_count} planned"
    return f"job {job.name}, generation {job.generation}: {planned}"


def _title(job: pb.Job, trained_to_step: int | None, lead: int) -> str:
    """Say how far plans are ahead of training, in steps that are ready and not measured yet."""
    reached = "nothing measured yet" if trained_to_step is None else f"trained to step {trained_to_step}"
    return f"{_head(job)}, {reached}, plans lead by {lead}"


def _columns(cells: Sequence[str]) -> str:
    widths = (6, 8, 8, 8, 6, 7, 8, 7, 9)
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
