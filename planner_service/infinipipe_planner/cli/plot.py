"""Pictures of comparisons, drawn by matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from infinipipe_planner.baselines.breakdown import Breakdown

PARTS = (
    ("work_s", "work", "#4c78a8"),
    ("fixed_s", "fixed", "#9ecae9"),
    ("recompute_s", "recompute", "#f58518"),
    ("exchange_s", "all-to-all, tensor, ring", "#e45756"),
    ("zero_s", "ZeRO, not hidden", "#b279a2"),
    ("idle_s", "bubble, imbalance", "#bab0ac"),
)
"""Parts of a step's time: attribute of ``Breakdown``, name and colour."""


def picture_endings() -> list[str]:
    """List the file endings that can be drawn, without the dot."""
    return sorted(Figure().canvas.get_supported_filetypes())


def draw_breakdowns(breakdowns: Sequence[tuple[str, Breakdown]], title: str, path: Path) -> None:
    """Draw one bar a method, divided into the parts of its time, the first on top.

    Raises:
        OSError: If the file cannot be written.
    """
    figure = Figure(figsize=(8, 1.6 + 0.3 * len(breakdowns)), layout="constrained")
    axes = figure.add_subplot()
    names = [name for name, _ in breakdowns]
    left_s = [0.0] * len(breakdowns)
    for attribute, label, color in PARTS:
        widths_s = [getattr(parts, attribute) for _, parts in breakdowns]
        axes.barh(names, widths_s, left=left_s, label=label, color=color)
        left_s = [start + width for start, width in zip(left_s, widths_s, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds a step, predicted")
    axes.set_title(title, fontsize="medium")
    figure.legend(fontsize="small", ncols=3, loc="outside lower center")
    figure.savefig(path, dpi=100)
