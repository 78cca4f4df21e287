"""Timelines: what every stage should do and what every rank did, lane below lane on one time axis."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infinipipe_contract.plan import Action, ActionKind, ChunkId, ChunkKind, chunk_kinds
from infinipipe_contract.simulate import Span
from infinipipe_contract.text import format_action, name_stage
from infinipipe_planner.measured import MeasuredRank, MeasuredSpan
from infinipipe_planner.report_page.markup import Markup, element, percent, text
from infinipipe_planner.report_page.scale import ticks
from infinipipe_planner.report_page.view import StepView

MIN_WIDTH_PX = 640
"""Width of a lane on the narrowest page, see page.css: labels that fit there fit everywhere."""

LETTER_PX = 7
MIN_EDGED_PX = 8
"""Narrower actions have a faint edge, so that a lane of hundreds is not all edges."""

LANE_HEIGHT_PX = 26
MAX_RANK_LANES = 16


class _ChunkFacts(NamedTuple):
    kind: ChunkKind
    token_count: int
    context_tokens: int


def timeline(step: StepView) -> Markup:
    """Draw the planned lanes, the measured ones below them, and the axis."""
    draw = _LaneArtist(step)
    lanes = [
        draw.lane(
            name_stage(stage.stage_index, stage.replica_index, step.plan.replica_count),
            stage.spans,
            stage.stage_index,
            "planned",
        )
        for stage in step.planned.stages
    ]
    parts = [element("h4", text("planned")), *lanes]
    if step.ranks:
        shown = _shown_ranks(step.ranks)
        note = "" if len(shown) == len(step.ranks) else f", of {len(step.ranks)} ranks the busiest of each stage"
        parts.append(element("h4", text(f"measured{note}")))
        parts += [draw.lane(_name_rank(rank, step), rank.spans, rank.stage_index, "measured") for rank in shown]
    else:
        parts.append(element("p", text("Not measured yet."), class_="note"))
    return element("div", *parts, time_axis(step.end_s), class_=lanes_class(step))


def lanes_class(step: StepView) -> str:
    """Leave more room for the names of lanes where there are replicas."""
    return "lanes replicated" if step.plan.replica_count > 1 else "lanes"


def time_axis(end_s: float) -> Markup:
    """Draw the seconds below lanes."""
    marks = [
        element("text", text(f"{second:g} s"), x=percent(second, end_s), y=14, class_="tick", text_anchor=anchor)
        for second in ticks(end_s)
        for anchor in ["start" if second == 0 else "end" if second > 0.97 * end_s else "middle"]
    ]
    drawing = element("svg", *marks, width="100%", height=20, aria_hidden="true")
    return element("div", element("span", class_="name"), drawing, class_="lane axis")


class _LaneArtist:
    """Draws lanes of one step on a common scale."""

    def __init__(self, step: StepView) -> None:
        self._end_s = step.end_s
        self._pipeline_count = len(step.plan.pipelines)
        self._facts: dict[ChunkId, _ChunkFacts] = {}
        self._layers: dict[tuple[int, ChunkId], int] = {}
        for pipeline_index, pipeline in enumerate(step.plan.pipelines):
            kinds = chunk_kinds(pipeline.chunks)
            for chunk_index, (chunk, kind) in enumerate(zip(pipeline.chunks, kinds, strict=True)):
                facts = _ChunkFacts(kind, chunk.token_count, chunk.context_tokens)
                self._facts[ChunkId(pipeline_index, chunk_index)] = facts
            for stage_index, actions in enumerate(pipeline.stages):
                for action in actions:
                    if action.kind is ActionKind.FORWARD:
                        chunk_id = ChunkId(pipeline_index, action.chunk_index)
                        self._layers[stage_index, chunk_id] = action.recompute_layer_count

    def lane(self, name: str, spans: Sequence[Span | MeasuredSpan], stage_index: int, what: str) -> Markup:
        grid = [
            element("line", x1=percent(second, self._end_s), x2=percent(second, self._end_s), y1=0, y2="100%")
            for second in ticks(self._end_s)
        ]
        busy_s = sum(span.end_s - span.start_s for span in spans)
        drawing = element(
            "svg",
            element("g", *grid, class_="grid"),
            *(part for span in spans for part in self._action(span, stage_index)),
            width="100%",
            height=LANE_HEIGHT_PX,
            role="img",
            aria_label=f"{name}, {what}: {len(spans)} actions, busy {busy_s:.2f} s",
        )
        return element("div", element("span", text(name), class_="name"), drawing, class_="lane")

    def _action(self, span: Span | MeasuredSpan, stage_index: int) -> Iterable[Markup]:
        facts = self._facts[span.chunk_id]
        is_backward = span.kind is ActionKind.BACKWARD
        layers = self._layers[stage_index, span.chunk_id] if is_backward else 0
        label = format_action(Action(span.kind, span.chunk_id.chunk_index, layers))
        place = {"x": percent(span.start_s, self._end_s), "y": 1, "height": LANE_HEIGHT_PX - 2}
        width_s = span.end_s - span.start_s
        width_px = width_s / self._end_s * MIN_WIDTH_PX
        direction = span.kind.value.lower()
        context = f" after {facts.context_tokens}" if facts.context_tokens else ""
        pipeline = f" of pipeline {span.chunk_id.pipeline_index}" if self._pipeline_count > 1 else ""
        title = (
            f"{label}{pipeline}: {facts.kind.value} chunk, {facts.token_count} tokens{context}; "
            f"{span.start_s:.3f} to {span.end_s:.3f} s"
        )
        yield element(
            "rect",
            element("title", text(title)),
            **place,
            width=percent(width_s, self._end_s),
            class_="a" if width_px >= MIN_EDGED_PX else "a thin",
            fill=f"url(#{facts.kind.value}-{direction})",
        )
        if isinstance(span, Span) and span.recompute_s:
            yield element(
                "rect",
                x=place["x"],
                y=LANE_HEIGHT_PX - 6,
                height=5,
                width=percent(span.recompute_s, self._end_s),
                class_="re",
            )
        if width_px >= LETTER_PX * len(label) + 4:
            yield element(
                "text",
                text(label),
                x=percent(span.start_s + width_s / 2, self._end_s),
                y=15,
                text_anchor="middle",
                class_="label",
            )


def _shown_ranks(ranks: Sequence[MeasuredRank]) -> list[MeasuredRank]:
    """Choose all ranks while they fit a page, else the busiest of every stage."""
    if len(ranks) <= MAX_RANK_LANES:
        return list(ranks)
    busiest: dict[tuple[int, int], MeasuredRank] = {}
    for rank in ranks:
        place = (rank.replica_index, rank.stage_index)
        if place not in busiest or rank.busy_s > busiest[place].busy_s:
            busiest[place] = rank
    return [busiest[place] for place in sorted(busiest)]


def _name_rank(rank: MeasuredRank, step: StepView) -> str:
    replica = f" of replica {rank.replica_index}" if step.plan.replica_count > 1 else ""
    return f"rank {rank.rank}{replica}"


def legend() -> Markup:
    """Explain the fills once for all timelines."""

    def sample(fill: str, words: str) -> Markup:
        swatch = element("rect", width="100%", height="100%", class_="a", fill=fill)
        return element("li", element("svg", swatch, width=34, height=16, aria_hidden="true"), text(f" {words}"))

    kinds = [
        sample(f"url(#{kind.value}-{direction})", f"{kind.value} {words}")
        for kind in ChunkKind
        for direction, words in (("f", "forward"), ("b", "backward"))
    ]
    bar = element("rect", y=9, width="100%", height=5, class_="re")
    recompute = element("li", element("svg", bar, width=34, height=16, aria_hidden="true"), text(" recompute in it"))
    return element("ul", *kinds, recompute, class_="legend")


def patterns() -> Markup:
    """Define the fills: a colour and a texture a kind, light forward and strong backward."""
    textures: dict[ChunkKind, tuple[Markup, ...]] = {
        ChunkKind.BATCHED: (),
        ChunkKind.SPLIT: (element("path", d="M0 8 L8 0 M-2 2 L2 -2 M6 10 L10 6", class_="texture"),),
        ChunkKind.HYBRID: tuple(element("circle", cx=place, cy=place, r=1, class_="dot") for place in (2, 6)),
    }
    made = [
        element(
            "pattern",
            element("rect", width=8, height=8, class_=f"{kind.value}-{direction}"),
            *textures[kind],
            id=f"{kind.value}-{direction}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for kind in ChunkKind
        for direction in "fb"
    ]
    return element("svg", element("defs", *made), width=0, height=0, aria_hidden="true", class_="defs")
