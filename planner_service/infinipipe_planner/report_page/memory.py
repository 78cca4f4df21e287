"""Memory: what the plan holds on every stage over time, against what it may fill.

Curves are of what is held between passes; the peak in the caption counts what a pass needs while it runs, too.
"""

from infinipipe_contract.simulate import StageTimeline
from infinipipe_contract.text import format_bytes, name_stage
from infinipipe_planner.report_page.markup import Markup, element, percent, text
from infinipipe_planner.report_page.timeline import lanes_class, time_axis
from infinipipe_planner.report_page.view import JobView, StepView

HEIGHT_PX = 64
# The top of a drawing: the limit and a little room above it.
HEADROOM_RATIO = 1.12


def memory_curves(job: JobView, step: StepView) -> Markup:
    """Draw a curve a stage, on the scale of the limit, with the measured peak where there is one."""
    lanes = [_lane(job, step, stage) for stage in step.planned.stages]
    return element("div", *lanes, time_axis(step.end_s), class_=lanes_class(step))


def _lane(job: JobView, step: StepView, stage: StageTimeline) -> Markup:
    limit_bytes = job.profile.usable_memory_bytes
    name = name_stage(stage.stage_index, stage.replica_index, step.plan.replica_count)
    state_bytes = job.profile.memory.model_state_bytes[stage.stage_index]
    place = (stage.replica_index, stage.stage_index)
    peaks = (rank.peak_bytes for rank in step.ranks if (rank.replica_index, rank.stage_index) == place)
    measured_bytes = max(peaks, default=0.0)
    top_bytes = max(limit_bytes, stage.peak_bytes, measured_bytes) * HEADROOM_RATIO

    def height(value_bytes: float) -> str:
        return percent(top_bytes - value_bytes, top_bytes)

    # Percent places lines in a drawing of any width; a path needs units of its own, stretched to fit.
    points = [f"M0 {_unit(state_bytes, top_bytes)}"]
    for span, after_bytes in zip(stage.spans, stage.memory_bytes, strict=True):
        points.append(f"H{1000 * span.end_s / step.end_s:.1f} V{_unit(after_bytes, top_bytes)}")
    outline = " ".join(points) + " H1000"
    curve = element(
        "svg",
        element("path", d=f"{outline} V1000 H0 Z", class_="area"),
        element("path", d=outline, class_="curve", vector_effect="non-scaling-stroke"),
        viewBox="0 0 1000 1000",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
    lines = [("limit", limit_bytes, "limit"), ("model states", state_bytes, "states")]
    if measured_bytes:
        lines.append(("measured peak", measured_bytes, "peak"))
    marks = [
        element("line", x1=0, x2="100%", y1=height(value), y2=height(value), class_=class_)
        for _, value, class_ in lines
    ]
    peak = f"{format_bytes(stage.peak_bytes)} of {format_bytes(limit_bytes)}"
    measured = f", measured {format_bytes(measured_bytes)}" if measured_bytes else ""
    caption = f"peak {peak}, {stage.peak_bytes / limit_bytes:.0%}{measured}"
    drawing = element("svg", curve, *marks, width="100%", height=HEIGHT_PX, role="img", aria_label=f"{name}: {caption}")
    label = element("span", text(name), class_="name")
    return element("div", label, element("div", element("p", text(caption), class_="caption"), drawing), class_="lane")


def memory_legend() -> Markup:
    """Explain the lines once for all curves."""
    entries = []
    for class_, words in (
        ("curve", "planned between passes, model states included"),
        ("limit", "limit"),
        ("states", "model states"),
        ("peak", "measured peak"),
    ):
        line = element("line", x1=0, x2="100%", y1=8, y2=8, class_=class_)
        entries.append(element("li", element("svg", line, width=34, height=16, aria_hidden="true"), text(f" {words}")))
    return element("ul", *entries, class_="legend")


def _unit(value_bytes: float, top_bytes: float) -> str:
    return f"{1000 * (1 - value_bytes / top_bytes):.1f}"
