"""The whole page: what the job is, how its steps went, and one step in detail."""

import importlib.resources
import statistics
from collections.abc import Sequence

from infinipipe_contract.plan import chunk_kinds
from infinipipe_contract.text import count_of, format_bytes, format_kinds, recompute_layer_total
from infinipipe_planner.measured import measured_bubble_ratio
from infinipipe_planner.planned_lengths import planned_lengths
from infinipipe_planner.report_page.lengths import histogram
from infinipipe_planner.report_page.markup import Markup, element, scrolling, text
from infinipipe_planner.report_page.memory import memory_curves, memory_legend
from infinipipe_planner.report_page.steps_chart import all_steps_table, chart_legend, steps_chart, worst_table
from infinipipe_planner.report_page.timeline import legend, patterns, timeline
from infinipipe_planner.report_page.view import JobView, StepView, drawn_steps

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page loads nothing, from nowhere: browsers enforce it."""


def render_page(job: JobView) -> str:
    """Write the report of a job that has at least one step with a plan."""
    drawn = drawn_steps(job.steps)
    indices = [step.step for step in drawn]
    files = importlib.resources.files("infinipipe_planner.report_page")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=CONTENT_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", text(f"InfiniPipe: {job.name}")),
        element("style", Markup(files.joinpath("page.css").read_text(encoding="utf-8"))),
    )
    body = element(
        "body",
        patterns(),
        element("header", element("h1", text(job.name)), element("p", text(_subtitle(job)))),
        element(
            "main",
            _overview(job, indices),
            element(
                "section",
                element("h2", text("One step")),
                _navigation(drawn, len(job.steps)),
                element("div", legend(), memory_legend(), class_="legends"),
                *(_step(job, step) for step in drawn),
                id="steps",
            ),
        ),
        element("script", Markup(files.joinpath("page.js").read_text(encoding="utf-8"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}"


def _subtitle(job: JobView) -> str:
    cluster = job.profile.cluster
    replicas = f"{cluster.dp_size} replicas of " if cluster.dp_size > 1 else ""
    return (
        f"generation {job.generation}, {replicas}{cluster.pp_size} stages of {cluster.sp_size} ranks, "
        f"{job.profile.model.layers} layers, context {job.context_tokens:,} tokens, "
        f"{format_bytes(job.profile.usable_memory_bytes)} usable per device"
    )


def _overview(job: JobView, drawn: Sequence[int]) -> Markup:
    parts = [
        element("h2", text("All steps")),
        _tiles(job),
        element("h3", text("Predicted against measured")),
        chart_legend(),
        steps_chart(job),
        element("h3", text("Which steps lost most time, and why")),
        element(
            "p",
            text(
                "Seconds. Ideal is the work alone, spread evenly; fixed is what passes cost beside it; recompute "
                "and bubble are the plan's, mean over stages; over plan is measured minus predicted."
            ),
            class_="note",
        ),
        worst_table(job.steps, drawn),
    ]
    if job.failures:
        entries = [element("li", text(f"step {step}: {why}")) for step, why in job.failures]
        parts += [element("h3", text("Steps without a plan")), element("ul", *entries)]
    summary = element("summary", text(f"All {len(job.steps)} steps as a table"))
    parts.append(element("details", summary, all_steps_table(job.steps, drawn)))
    return element("section", *parts)


def _tiles(job: JobView) -> Markup:
    measured = [step for step in job.steps if step.ranks]
    tiles = [("steps planned", str(len(job.steps))), ("steps measured", str(len(measured)))]
    if measured:
        ratios = [step.measured_s / step.plan.estimate.makespan_s for step in measured]
        bubbles = [ratio for step in measured if (ratio := measured_bubble_ratio(step.ranks)) is not None]
        waits = [rank.plan_wait_s for step in measured for rank in step.ranks]
        tiles.append(("measured / predicted, median", f"{statistics.median(ratios):.2f}"))
        tiles.append(("bubble measured, mean", f"{statistics.mean(bubbles):.1%}"))
        tiles.append(("longest plan wait", f"{max(waits):.1f} s"))
    tiles.append(("bubble planned, mean", f"{statistics.mean(s.plan.estimate.bubble_ratio for s in job.steps):.1%}"))
    entries = [element("div", element("dt", text(name)), element("dd", text(value))) for name, value in tiles]
    return element("dl", *entries, class_="tiles")


def _navigation(drawn: Sequence[StepView], step_count: int) -> Markup:
    options = [element("option", text(f"step {step.step}"), value=step.step) for step in drawn]
    note = "left and right arrow keys change the step"
    if len(drawn) < step_count:
        note += f"; drawn are the worst and the newest, {len(drawn)} of {step_count}"
    return element(
        "nav",
        element("button", text("previous"), type="button", id="previous"),
        element("label", text("show "), element("select", *options, id="choice")),
        element("button", text("next"), type="button", id="next"),
        element("span", text(note), class_="note"),
        aria_label="steps",
    )


def _step(job: JobView, step: StepView) -> Markup:
    """Draw one step."""
    plan, estimate = step.plan, step.plan.estimate
    replicas = f" on {plan.replica_count} replicas" if plan.replica_count > 1 else ""
    measured = f", measured {step.measured_s:.2f} s" if step.ranks else ""
    facts = (
        f"{count_of(plan.chunk_count, 'chunk')} ({format_kinds(plan)}), {count_of(len(plan.pipelines), 'pipeline')}"
        f"{replicas}, "
        f"longest sequence in {count_of(plan.report.slice_count, 'slice')}, "
        f"{recompute_layer_total(plan)} layer passes recomputed. "
        f"Predicted {estimate.makespan_s:.2f} s{measured}; bubble {estimate.bubble_ratio:.1%}. "
        f"Policy {plan.policy}, {plan.report.outcome.value}, solved in {plan.report.solve_s:.2f} s."
    )
    lengths = planned_lengths(plan)
    return element(
        "article",
        element("h3", text(f"Step {step.step}"), tabindex=-1),
        element("p", text(facts)),
        element("h4", text("Timeline"), class_="sub"),
        scrolling(timeline(step), f"timeline of step {step.step}"),
        element("h4", text("Memory of one device"), class_="sub"),
        scrolling(memory_curves(job, step), f"memory of step {step.step}"),
        element(
            "div",
            element(
                "div",
                element("h4", text(f"Lengths of {count_of(len(lengths), 'sequence')}"), class_="sub"),
                histogram(lengths),
            ),
            element("div", element("h4", text("Chunks"), class_="sub"), _chunk_table(step)),
            class_="columns",
        ),
        id=f"step-{step.step}",
        data_step=step.step,
    )


def _chunk_table(step: StepView) -> Markup:
    rows = []
    for pipeline_index, pipeline in enumerate(step.plan.pipelines):
        kinds = chunk_kinds(pipeline.chunks)
        for chunk_index, (chunk, kind) in enumerate(zip(pipeline.chunks, kinds, strict=True)):
            layers = [
                max(action.recompute_layer_count for action in actions if action.chunk_index == chunk_index)
                for actions in pipeline.stages
            ]
            numbers = (chunk.token_count, chunk.context_tokens, len(chunk.slices), " ".join(map(str, layers)))
            rows.append(
                element(
                    "tr",
                    element("th", text(f"{pipeline_index}.{chunk_index}"), scope="row"),
                    element("td", text(kind.value)),
                    *(element("td", text(number), class_="number") for number in numbers),
                )
            )
    head = ("chunk", "kind", "tokens", "context", "slices", "recompute per stage")
    header = element("tr", *(element("th", text(title), scope="col") for title in head))
    return scrolling(element("table", header, *rows), f"chunks of step {step.step}")
