"""The report page as text: well-formed, self-contained, and true to the plans."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infinipipe_contract.plan import Slice
from infinipipe_contract.simulate import simulate
from infinipipe_executor.plan_client import PlanClient, RankReport
from infinipipe_planner.cli import build_app
from infinipipe_planner.report_page import view
from infinipipe_planner.report_page.lengths import histogram
from infinipipe_planner.report_page.page import render_page
from infinipipe_planner.report_page.scale import ticks
from infinipipe_planner.report_page.view import StepView, drawn_steps, main_cause, split_time, worst_first
from support_contract import build_plan, picture_pipeline, small_profile
from support_service import CONTEXT_TOKENS, PROFILE, background_service
from support_views import job_view, step_view

VOID = {"meta"}


class Page(HTMLParser):
    """Reads a page; fails where a tag is closed that is not open."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(attribute)) is not None]


def page_of_three_steps() -> Page:
    steps = step_view(0), step_view(1, slowdown=1.5), step_view(2, slowdown=None)
    return Page(render_page(job_view(*steps)))


def test_the_page_is_well_formed_and_its_ids_are_unique() -> None:
    ids = page_of_three_steps().values("id")

    assert len(ids) == len(set(ids))
    assert {"step-0", "step-1", "step-2"} <= set(ids)


def test_the_page_loads_nothing() -> None:
    page = page_of_three_steps()
    source = render_page(job_view(step_view()))

    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"^ *//.*$", "", source, flags=re.MULTILINE))
    assert page.values("src") == []
    assert all(link.startswith("#") for link in page.values("href"))
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert any(content.startswith("default-src 'none'") for content in page.values("content"))


def test_every_reference_of_the_page_leads_somewhere() -> None:
    page = page_of_three_steps()

    ids = set(page.values("id"))
    fills = {fill[5:-1] for fill in page.values("fill") if fill.startswith("url(#")}
    assert fills
    assert fills <= ids
    assert {link[1:] for link in page.values("href")} <= ids


def test_names_and_reasons_are_text_whatever_they_hold() -> None:
    source = render_page(job_view(step_view(), failures=((7, "<script>alert(1)</script> & more"),), name='a"><b>'))

    assert "<script>alert" not in source
    assert "<b>" not in source
    assert "step 7: <script>alert(1)</script> & more" in "".join(Page(source).words)


def test_every_stage_and_every_rank_has_a_lane_with_its_actions() -> None:
    labels = Page(render_page(job_view(step_view()))).values("aria-label")

    lanes = [label.split(":")[0] for label in labels if "actions" in label]
    assert lanes == ["stage 0, planned", "stage 1, planned", *(f"rank {rank}, measured" for rank in range(4))]


def test_an_action_says_its_chunk_kind_tokens_and_context() -> None:
    words = page_of_three_steps().words

    assert any(word.startswith("F1: hybrid chunk, 7 tokens after 8; ") for word in words)
    assert any(word.startswith("B1r2: hybrid chunk") for word in words)


def test_an_action_names_its_pipeline_where_there_are_several() -> None:
    profile = small_profile()
    first = picture_pipeline([[Slice(0, 0, 4)]], "F0 B0", "F0 B0")
    second = picture_pipeline([[Slice(1, 0, 4)]], "F0 B0", "F0 B0")
    plan = build_plan(profile, [4, 4], first, second)
    step = StepView(plan, simulate(plan.pipelines, profile), ())

    words = Page(render_page(job_view(step))).words

    assert any(word.startswith("F0 of pipeline 1: batched chunk, 4 tokens") for word in words)


def test_kinds_and_recompute_differ_in_texture_and_not_in_colour_alone() -> None:
    source = render_page(job_view(step_view()))

    textures = dict(re.findall(r'<pattern id="(\w+)-f"[^>]*><rect[^>]*/>(.*?)</pattern>', source))
    assert set(textures) == {"batched", "split", "hybrid"}
    assert len(set(textures.values())) == 3
    assert 'class="re"' in source


def test_wide_content_can_be_reached_and_scrolled_by_keyboard() -> None:
    regions = [attrs for _, attrs in page_of_three_steps().tags if attrs.get("class") == "scroll"]

    assert regions
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


def test_the_memory_caption_names_planned_peak_limit_and_measured_peak() -> None:
    view_of_step = step_view()
    words = " ".join(Page(render_page(job_view(view_of_step))).words)

    peak = view_of_step.planned.stages[1].peak_bytes
    assert f"peak {peak / 1024:.1f} KiB of 476.8 MiB, 0%, measured 2.0 KiB" in words


def test_a_step_that_was_not_measured_says_so() -> None:
    assert "Not measured yet." in Page(render_page(job_view(step_view(slowdown=None)))).words


def test_the_histogram_counts_every_sequence_in_bins_of_powers_of_two() -> None:
    words = Page(histogram([1, 4, 3, 5, 16])).words

    assert words == [
        *("tokens", "1 to 1", "1 sequence, 3% of tokens", "2 to 2", "none"),
        *("3 to 4", "2 sequences, 24% of tokens", "5 to 8", "1 sequence, 17% of tokens"),
        *("9 to 16", "1 sequence, 55% of tokens"),
    ]


@pytest.mark.parametrize(
    ("end", "marks"),
    [
        (0.0, [0]),
        (5.0, [0, 1, 2, 3, 4, 5]),
        (0.07, [0, 0.02, 0.04, 0.06]),
        (1200.0, [0, 200, 400, 600, 800, 1000, 1200]),
    ],
)
def test_axes_are_marked_at_round_numbers(end: float, marks: list[float]) -> None:
    assert ticks(end) == marks


def test_the_parts_of_a_steps_time_add_up_to_what_was_measured_and_waited() -> None:
    step = step_view(slowdown=1.5, wait_s=3.0)

    assert split_time(step).total_s == pytest.approx(step.measured_s + 3.0)


def test_the_parts_of_a_planned_step_add_up_to_the_prediction() -> None:
    step = step_view(slowdown=None)

    assert split_time(step).total_s == pytest.approx(step.plan.estimate.makespan_s)


def test_the_main_cause_is_the_largest_part() -> None:
    assert main_cause(step_view(wait_s=1e4)) == "waiting for the plan"
    assert main_cause(step_view(slowdown=50.0)).startswith("slower than predicted: stage ")
    assert main_cause(step_view(slowdown=None)) == "bubble: 3 chunks to fill 2 stages"


def test_the_step_that_lost_most_time_is_the_worst() -> None:
    steps = [step_view(0), step_view(1, wait_s=2.0), step_view(2), step_view(3, wait_s=9.0)]

    assert [step.step for step in worst_first(steps)] == [3, 1, 0, 2]


def test_a_page_draws_the_worst_and_the_newest_steps_as_far_as_it_can_hold_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [step_view(index, wait_s=9.0 if index == 2 else 0.0) for index in range(10)]
    monkeypatch.setattr(view, "MAX_DRAWN_SPANS", 2 * steps[0].span_count)

    assert [step.step for step in drawn_steps(steps)] == [2, 9]
    source = render_page(job_view(*steps))
    assert "drawn are the worst and the newest, 2 of 10" in source
    assert 'href="#step-9"' in source
    assert 'href="#step-3"' not in source


def test_report_writes_the_page_of_a_job(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    with background_service() as service, PlanClient(service.address, call_timeout_s=10) as client:
        client.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)
        for step in range(3):
            client.submit_batch(step, (5, 7))
            client.fetch_plan(step, timeout_s=10)
        client.report_step(1, RankReport(0, 0, 2.0, 2.0, 0.25, loss=5.5))

        result = CliRunner().invoke(
            build_app(), ["report", "train", "-o", str(output), "--last", "2", "--planner", service.address]
        )

    assert result.exit_code == 0, result.output
    assert result.stderr == f"{output}: 2 steps, 1 of them measured\n"
    assert "step-0" not in Page(output.read_text()).values("id")


def test_a_report_of_a_job_without_plans_is_a_failure(tmp_path: Path) -> None:
    with background_service() as service, PlanClient(service.address, call_timeout_s=10) as client:
        client.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)

        result = CliRunner().invoke(
            build_app(), ["report", "train", "-o", str(tmp_path / "r.html"), "--planner", service.address]
        )

    assert (result.exit_code, result.stderr) == (1, "error: job train has no steps\n")
