"""Memory of every stage over the predicted time of a step: as lines of text, and as plain data.

A curve has one digit a slice of time: the largest share of usable memory in it, in tenths. Digits say more than bars
where a terminal knows neither colours nor block characters, and they can be searched. A curve is what is held between
passes; what a pass needs only while it runs is in the peak alone.
"""

from typing import Any

from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import StageTimeline, Timeline
from infinipipe_contract.text import format_bytes, name_stage

MAX_CURVE_WIDTH = 60
MIN_CURVE_WIDTH = 10
FULL = "*"
"""All that a plan may fill, or more."""


def memory_lines(planned: Timeline, profile: Profile, *, width: int = 80) -> list[str]:
    """Draw the memory of every stage below one time axis.

    Args:
        planned: Replay of a plan.
        profile: What it was planned with.
        width: Characters of the longest line.

    Returns:
        What the digits mean, the axis, and a line a stage with its peak behind it.
    """
    usable_bytes, dp_size = profile.usable_memory_bytes, profile.cluster.dp_size
    names = [name_stage(stage.stage_index, stage.replica_index, dp_size) for stage in planned.stages]
    ends = [f"{format_bytes(stage.peak_bytes)}  {stage.peak_bytes / usable_bytes:.0%}" for stage in planned.stages]
    label_width, end_width = max(map(len, names)), max(len("peak"), *map(len, ends))
    curve_width = max(MIN_CURVE_WIDTH, min(MAX_CURVE_WIDTH, width - label_width - end_width - 4))
    axis_end = f"{planned.makespan_s:.3f} s"
    lines = [
        f"memory over the predicted time, in tenths of the {format_bytes(usable_bytes)} usable on a device:",
        f"{'':{label_width}}  0{axis_end:>{curve_width - 1}}  peak",
    ]
    for name, stage, end in zip(names, planned.stages, ends, strict=True):
        state_bytes = profile.memory.model_state_bytes[stage.stage_index]
        most_bytes = largest_in_slots(stage, state_bytes, planned.makespan_s, curve_width)
        curve = "".join(_digit(bytes_in_use / usable_bytes) for bytes_in_use in most_bytes)
        lines.append(f"{name:{label_width}}  {curve}  {end}")
    return lines


def memory_tree(planned: Timeline, profile: Profile) -> list[dict[str, Any]]:
    """Write the memory of every stage as plain data: the peak, and bytes in use after each action."""
    return [
        {
            "replica_index": stage.replica_index,
            "stage_index": stage.stage_index,
            "usable_bytes": profile.usable_memory_bytes,
            "peak_bytes": stage.peak_bytes,
            "points": [
                {"time_s": span.end_s, "bytes": used_bytes}
                for span, used_bytes in zip(stage.spans, stage.memory_bytes, strict=True)
            ],
        }
        for stage in planned.stages
    ]


def largest_in_slots(stage: StageTimeline, state_bytes: float, makespan_s: float, slot_count: int) -> list[float]:
    """Find the most bytes in use in every slice of time.

    Args:
        stage: What the stage does.
        state_bytes: Bytes in use before its first action.
        makespan_s: Length of the step.
        slot_count: Slices of equal length.
    """
    most_bytes = [0.0] * slot_count
    slot, level_bytes = 0, state_bytes
    for span, after_bytes in zip(stage.spans, stage.memory_bytes, strict=True):
        own_slot = min(slot_count - 1, int(span.end_s / makespan_s * slot_count)) if makespan_s else 0
        for index in range(slot, own_slot + 1):
            most_bytes[index] = max(most_bytes[index], level_bytes)
        slot, level_bytes = own_slot, after_bytes
        most_bytes[slot] = max(most_bytes[slot], level_bytes)
    for index in range(slot, slot_count):
        most_bytes[index] = max(most_bytes[index], level_bytes)
    return most_bytes


def _digit(share: float) -> str:
    return FULL if share >= 1 else str(int(share * 10))
