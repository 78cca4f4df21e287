"""Every rule of a plan is refused when it is broken, in a sentence that names what and where."""

import dataclasses
from collections.abc import Sequence

import pytest

from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import Chunk, ExecutionPlan, Pipeline, Slice, plan_digest
from infinipipe_contract.validate import check_identity, validate
from support_contract import build_plan, picture_pipeline, small_profile, two_stage_plan


def sealed(plan: ExecutionPlan) -> ExecutionPlan:
    """Give a tampered plan a digest of its own, so that only the tampering is found."""
    return dataclasses.replace(plan, digest=plan_digest(plan))


def with_pipeline(plan: ExecutionPlan, chunks: Sequence[Sequence[Slice]], *stages: str) -> ExecutionPlan:
    return sealed(dataclasses.replace(plan, pipelines=(picture_pipeline(chunks, *stages),)))


LONG = [Slice(0, 0, 8)]
TAIL = [Slice(0, 8, 4), Slice(1, 0, 3)]
SHORT = [Slice(2, 0, 5)]


def test_a_good_plan_passes() -> None:
    profile, lengths, plan = two_stage_plan()
    validate(plan, lengths, profile)


@pytest.mark.parametrize(
    ("chunks", "stages", "sentence"),
    [
        ([LONG, TAIL], ["F0 F1 B1 B0"] * 2, "sequence 2: 0 of 5 tokens planned"),
        ([LONG, TAIL, [Slice(2, 0, 4)]], ["F0 F1 B1 B0 F2 B2"] * 2, "sequence 2: 4 of 5 tokens planned"),
        ([LONG, TAIL, [Slice(2, 0, 6)]], ["F0 F1 B1 B0 F2 B2"] * 2, "sequence 2: 6 of 5 tokens planned"),
        ([LONG, TAIL, SHORT, SHORT], ["F0 F1 B1 B0 F2 B2 F3 B3"] * 2, "sequence 2: token 5 expected"),
        ([LONG, TAIL, [*SHORT, Slice(7, 0, 1)]], ["F0 F1 B1 B0 F2 B2"] * 2, "sequence 7 is not in the batch of 3"),
        ([LONG, TAIL, [*SHORT, Slice(-1, 0, 1)]], ["F0 F1 B1 B0 F2 B2"] * 2, "sequence -1 is not in the batch"),
        ([LONG, TAIL, [Slice(2, 0, 0), *SHORT]], ["F0 F1 B1 B0 F2 B2"] * 2, "holds a slice of 0 tokens"),
        ([LONG, TAIL, SHORT, []], ["F0 F1 B1 B0 F2 B2 F3 B3"] * 2, "chunk 3 is empty"),
        (
            [LONG, [Slice(0, 8, 4), Slice(1, 2, 1)], [*SHORT, Slice(1, 0, 2)]],
            ["F0 F2 F1 B1 B2 B0"] * 2,
            "holds 2 slices with context",
        ),
        ([[*LONG, Slice(0, 8, 4)], [Slice(1, 0, 3)], SHORT], ["F0 B0 F1 B1 F2 B2"] * 2, "two slices of sequence 0"),
        ([LONG, TAIL, SHORT], ["F1 F0 B0 B1 F2 B2"] * 2, "chunk 1 runs forward before chunk 0, its context"),
        ([LONG, TAIL, SHORT], ["F0 F1 B0 B1 F2 B2"] * 2, "chunk 0 runs backward before chunk 1, which reads it"),
        ([LONG, TAIL, SHORT], ["F0 F1 B1 B0 B2 F2"] * 2, "chunk 2 runs backward before forward"),
        ([LONG, TAIL, SHORT], ["F0 F1 B1 B0 F2"] * 2, "does not run every chunk forward and backward exactly once"),
        (
            [LONG, TAIL, SHORT],
            ["F0 F1 B1 B0 F2 B2", "F0 F1 F2 B2 B1 B0"],
            "stage 1 sends its messages in another order",
        ),
        ([LONG, TAIL, SHORT], ["F0 F1 B1 B0 F2 B2"], "1 stages planned, the profile has 2"),
        ([LONG, TAIL, SHORT], ["F0 F1 B1 B0 F2 B2 F9"] * 2, "chunk 9 does not exist"),
        ([LONG, TAIL, SHORT], ["F0 F1 B1 B0 F2r3 B2"] * 2, "chunk 2 recomputes 3 of 2 layers"),
        ([LONG, TAIL, SHORT], ["F0 F1 B1 B0 F2 B2r1"] * 2, "the recompute count belongs on the forward action"),
    ],
)
def test_each_broken_rule_is_named(chunks: Sequence[Sequence[Slice]], stages: list[str], sentence: str) -> None:
    profile, lengths, plan = two_stage_plan()
    broken = with_pipeline(plan, chunks, *stages)
    with pytest.raises(InvalidPlanError) as caught:
        validate(broken, lengths, profile)
    assert any(sentence in rule for rule in caught.value.broken), caught.value.broken


def test_stages_that_wait_for_each_other_for_ever_are_a_deadlock() -> None:
    # Same message order on both stages, but stage 0 wants a gradient before it sent what the gradient needs.
    profile, lengths, plan = two_stage_plan()
    stuck = with_pipeline(plan, [LONG, TAIL, SHORT], "F0 F1 B1 B0 F2 B2", "F0 F1 F2 B1 B0 B2")
    with pytest.raises(InvalidPlanError, match="deadlock: stage 0 waits for ever at action 2 of 6"):
        validate(stuck, lengths, profile)


def test_a_sequence_in_two_pipelines_is_refused() -> None:
    profile, lengths, plan = two_stage_plan()
    first = picture_pipeline([LONG], "F0 B0", "F0 B0")
    second = Pipeline(
        (Chunk(tuple(TAIL)), Chunk(tuple(SHORT))), picture_pipeline([TAIL, SHORT], *["F0 B0 F1 B1"] * 2).stages
    )
    torn = sealed(dataclasses.replace(plan, pipelines=(first, second)))
    with pytest.raises(InvalidPlanError, match="sequence 0 is in pipelines 0 and 1"):
        validate(torn, lengths, profile)


def test_memory_above_the_limit_names_stage_need_and_limit() -> None:
    profile, lengths, plan = two_stage_plan()
    tight = dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, device_memory_bytes=5000.0))
    with pytest.raises(InvalidPlanError, match=r"stage 0 needs 4\.4 KiB, 2\.4 KiB are usable \(device_memory_bytes"):
        validate(plan, lengths, tight)


def test_any_change_of_what_runs_breaks_the_digest() -> None:
    profile, lengths, plan = two_stage_plan()
    tampered = dataclasses.replace(plan, target_token_count=plan.target_token_count - 1)
    with pytest.raises(InvalidPlanError, match="digest .* does not match the content"):
        validate(tampered, lengths, profile)


@pytest.mark.parametrize("count", [-1, 21])
def test_a_target_count_outside_the_batch_is_refused(count: int) -> None:
    profile, lengths, plan = two_stage_plan()
    wrong = sealed(dataclasses.replace(plan, target_token_count=count))
    with pytest.raises(InvalidPlanError, match=f"target token count is {count}, the batch has 20 tokens"):
        validate(wrong, lengths, profile)


def test_numbers_that_are_not_finite_are_refused() -> None:
    profile, lengths, plan = two_stage_plan()
    wrong = dataclasses.replace(plan, estimate=dataclasses.replace(plan.estimate, makespan_s=float("nan")))
    with pytest.raises(InvalidPlanError, match="not finite"):
        validate(wrong, lengths, profile)


def test_a_plan_without_pipelines_is_refused() -> None:
    profile = small_profile()
    empty = build_plan(profile, [])
    with pytest.raises(InvalidPlanError, match="no pipeline"):
        validate(empty, [], profile)


@pytest.mark.parametrize(
    ("identity", "sentence"),
    [
        (("other", 1, 3), "job 'job', expected 'other'"),
        (("job", 2, 3), "generation 1, expected 2"),
        (("job", 1, 4), "step 3, expected 4"),
    ],
)
def test_a_foreign_plan_is_refused(identity: tuple[str, int, int], sentence: str) -> None:
    _, _, plan = two_stage_plan()
    check_identity(plan, "job", 1, 3)
    with pytest.raises(InvalidPlanError, match=sentence):
        check_identity(plan, *identity)
