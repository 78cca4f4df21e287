"""Predicted against measured over steps, and the table of the worst ones."""

from collections.abc import Collection, Sequence

from infinipipe_planner.report_page.markup import Markup, element, percent, scrolling, text
from infinipipe_planner.report_page.scale import ticks
from infinipipe_planner.report_page.view import JobView, StepView, main_cause, split_time, worst_first

HEIGHT_PX = 190
FOOT_PX = 22
WORST_COUNT = 8


def steps_chart(job: JobView) -> Markup:
    """Draw two marks a step, joined: a ring where it was predicted, a square where it was measured."""
    top_s = max(max(step.plan.estimate.makespan_s, step.measured_s) for step in job.steps) * 1.06 or 1.0
    body_px = HEIGHT_PX - FOOT_PX

    def y(seconds: float) -> float:
        return round(body_px * (1 - seconds / top_s), 1)

    grid = [
        part
        for second in ticks(top_s, 4)
        for part in (
            element("line", x1=0, x2="100%", y1=y(second), y2=y(second)),
            element("text", text(f"{second:g} s"), x=2, y=y(second) - 3, class_="tick"),
        )
    ]
    count = len(job.steps)
    every = max(1, -(-count // 10))
    marks = []
    for position, step in enumerate(job.steps):
        # A margin on the left keeps marks off the numbers of the axis.
        x = percent(6 + 92 * (position + 0.5) / count, 100)
        predicted_s = step.plan.estimate.makespan_s
        parts = [element("title", text(_sentence(step)))]
        parts.append(element("line", x1=x, x2=x, y1=0, y2=body_px, class_="hit"))
        if step.ranks:
            parts.append(element("line", x1=x, x2=x, y1=y(predicted_s), y2=y(step.measured_s), class_="gap"))
            square = element("rect", x=-4, y=-4, width=8, height=8, class_="measured")
            place = {"x": x, "y": y(step.measured_s), "width": 1, "height": 1}
            parts.append(element("svg", square, **place, overflow="visible"))
        parts.append(element("circle", cx=x, cy=y(predicted_s), r=4, class_="predicted"))
        if position % every == 0:
            parts.append(element("text", text(step.step), x=x, y=HEIGHT_PX - 6, class_="tick", text_anchor="middle"))
        marks.append(element("g", *parts, class_="mark", data_step=step.step))
    label = f"predicted and measured seconds of {count} steps; the table of steps below has the numbers"
    return element(
        "svg",
        element("g", *grid, class_="grid"),
        *marks,
        width="100%",
        height=HEIGHT_PX,
        role="img",
        aria_label=label,
        class_="chart",
    )


def chart_legend() -> Markup:
    """Explain the marks."""
    ring = element("circle", cx=17, cy=8, r=4, class_="predicted")
    square = element("rect", x=13, y=4, width=8, height=8, class_="measured")
    return element(
        "ul",
        *(
            element("li", element("svg", mark, width=34, height=16, aria_hidden="true"), text(f" {words}"))
            for mark, words in ((ring, "predicted"), (square, "measured"))
        ),
        class_="legend",
    )


def worst_table(steps: Sequence[StepView], drawn: Collection[int]) -> Markup:
    """List the steps that lost most time, where it went, and the main cause."""
    head = ("step", "total", "ideal", "fixed", "recompute", "bubble", "over plan", "plan wait")
    rows = []
    for step in worst_first(steps)[:WORST_COUNT]:
        split = split_time(step)
        parts = (
            split.total_s,
            split.ideal_s,
            split.fixed_s,
            split.recompute_s,
            split.bubble_s,
            split.drift_s,
            split.plan_wait_s,
        )
        rows.append(
            element(
                "tr",
                element("th", step_link(step.step, drawn), scope="row"),
                *(element("td", text(_signed(part)), class_="number") for part in parts),
                element("td", text(main_cause(step))),
            )
        )
    columns = [element("th", text(title), scope="col", class_="number" if title != "step" else None) for title in head]
    header = element("tr", *columns, element("th", text("mostly"), scope="col"))
    return scrolling(element("table", header, *rows), "worst steps")


def all_steps_table(steps: Sequence[StepView], drawn: Collection[int]) -> Markup:
    """List every step with its numbers, for those who cannot see the chart."""
    head = ("step", "tokens", "chunks", "pipelines", "predicted s", "measured s", "bubble", "recompute", "loss")
    rows = []
    for step in steps:
        losses = [rank.loss for rank in step.ranks if rank.loss is not None]
        estimate = step.plan.estimate
        cells = (
            str(sum(chunk.token_count for pipeline in step.plan.pipelines for chunk in pipeline.chunks)),
            str(step.plan.chunk_count),
            str(len(step.plan.pipelines)),
            f"{estimate.makespan_s:.3f}",
            f"{step.measured_s:.3f}" if step.ranks else "-",
            f"{estimate.bubble_ratio:.1%}",
            f"{estimate.recompute_ratio:.1%}",
            f"{losses[0]:.4f}" if losses else "-",
        )
        link = element("th", step_link(step.step, drawn), scope="row")
        rows.append(element("tr", link, *(element("td", text(cell), class_="number") for cell in cells)))
    header = element("tr", *(element("th", text(title), scope="col") for title in head))
    return scrolling(element("table", header, *rows), "all steps")


def step_link(step: int, drawn: Collection[int]) -> Markup:
    """Name a step; a link where it is drawn."""
    return element("a", text(step), href=f"#step-{step}") if step in drawn else text(step)


def _sentence(step: StepView) -> str:
    measured = f", measured {step.measured_s:.2f} s" if step.ranks else ", not measured"
    return f"step {step.step}: predicted {step.plan.estimate.makespan_s:.2f} s{measured}"


def _signed(seconds: float) -> str:
    return f"{seconds:.2f}" if abs(seconds) >= 0.005 else "0"
