"""What a step prints is counted from the plan and from what all ranks measured."""

import dataclasses
import json
import math

import pytest

from infinipipe_contract.codec import plan_to_json
from infinipipe_contract.model_flops import useful_flops
from infinipipe_contract.plan import ChunkKind
from infinipipe_executor.metrics import bubble_ratio, describe_plan, sequence_lengths, step_line, step_scalars
from support_executor.metrics import MEASURED, two_pipelines
from support_executor.reference import TINY, parameter_shapes


def test_a_plan_is_described_by_its_tokens_kinds_slices_pipelines_and_recomputed_layers() -> None:
    shape = describe_plan(two_pipelines())

    assert shape.token_count == 20
    assert shape.chunk_count_by_kind == {ChunkKind.SPLIT: 2, ChunkKind.HYBRID: 1, ChunkKind.BATCHED: 1}
    assert shape.longest_slice_count == 3
    assert shape.pipeline_count == 2
    assert shape.recomputed_layer_count == 4


def test_a_step_is_one_line_with_everything_an_operator_asks_first() -> None:
    assert step_line(4, 20, two_pipelines(), MEASURED) == (
        "step  4 of 20  loss 3.1416  grad norm 0.500  learning rate 1.00e-03  tokens 20  chunks 1b/2s/1h  K 3"
        "  pipelines 2  recompute 4 layers  predicted 2.00 s  measured 2.50 s  bubble 25%/30%  plan wait 0.0 s"
        "  5 tokens/s  0.0015 TFLOP/s a device"
    )


def test_a_step_tells_its_share_of_the_peak_rate_only_where_the_peak_is_known() -> None:
    # 6e9 operations in 4 s are 1.5e9 a second, a tenth of 15e9.
    known = dataclasses.replace(MEASURED, device_peak_flops=15e9)

    assert step_line(4, 20, two_pipelines(), known).endswith("  5 tokens/s  0.0015 TFLOP/s a device  MFU 10.0%")
    assert step_scalars(two_pipelines(), known)["mfu"] == pytest.approx(0.1)
    assert step_scalars(two_pipelines(), MEASURED)["tflops_per_device"] == pytest.approx(0.0015)
    assert "mfu" not in step_scalars(two_pipelines(), MEASURED)


def test_operations_are_counted_from_whole_sequences_however_they_were_cut_and_packed() -> None:
    # Sequences of 10 (in three slices), 3 (packed with the last of them) and 7 tokens.
    assert sorted(sequence_lengths(two_pipelines())) == [3, 7, 10]


def test_the_numbers_of_a_step_follow_from_its_saved_plan_alone() -> None:
    # The plan is counted a second time, from its file, by slices with their context rather than by sequences.
    plan = two_pipelines()
    saved = json.loads(plan_to_json(plan))
    chunks = [chunk["slices"] for pipeline in saved["pipelines"] for chunk in pipeline["chunks"]]
    slices = [(int(one.get("start_token", 0)), int(one["length_tokens"])) for chunk in chunks for one in chunk]
    actions = [action for one in saved["pipelines"] for stage in one["stages"] for action in stage["actions"]]
    tokens = sum(length for _, length in slices)
    token_pairs = sum((start + length) ** 2 - start**2 for start, length in slices)
    # Two operations a weight and token forward and four backward, but for the embedding, which is looked up; two
    # products of as much for half of the pairs of tokens, in every layer.
    shapes = parameter_shapes(TINY)
    weights = sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and "embedding" not in name)
    flops = 6 * weights * tokens + 6 * 2 * TINY.query_dim * TINY.layers * token_pairs / 2

    scalars = step_scalars(
        plan, dataclasses.replace(MEASURED, device_flops=useful_flops(TINY.shape, sequence_lengths(plan)))
    )

    assert scalars["tokens"] == tokens == 20
    assert scalars["tokens_per_s"] == tokens / MEASURED.step_s
    assert scalars["target_tokens"] == int(saved["target_token_count"])
    assert scalars["tflops_per_device"] == pytest.approx(flops / MEASURED.step_s / 1e12)
    assert scalars["chunks"] == len(chunks)
    assert scalars["recomputed_layers"] == sum(int(one.get("recompute_layer_count", 0)) for one in actions) == 4
    assert scalars["predicted_bubble_ratio"] == saved["estimate"]["bubble_ratio"]


def test_a_step_tells_how_far_its_predicted_time_is_off() -> None:
    scalars = step_scalars(two_pipelines(), MEASURED)

    assert scalars["step_error_ratio"] == pytest.approx(2.0 / 2.5 - 1)
    assert scalars["median_step_error_ratio"] == 0.125


@pytest.mark.parametrize(
    ("busy_s", "makespan_s", "expected"),
    [([2.0, 2.0], 2.0, 0.0), ([1.0, 2.0], 2.0, 0.25), ([0.0, 0.0], 2.0, 1.0), ([0.0], 0.0, 0.0)],
)
def test_the_bubble_is_the_idle_share_of_the_step_over_all_ranks(
    busy_s: list[float], makespan_s: float, expected: float
) -> None:
    assert bubble_ratio(busy_s, makespan_s) == pytest.approx(expected)


def test_tokens_per_second_count_every_token_once_over_the_whole_step() -> None:
    scalars = step_scalars(two_pipelines(), MEASURED)

    # 20 tokens in 4 seconds, in whatever chunks they were.
    assert scalars["tokens"] == 20
    assert scalars["tokens_per_s"] == 5.0
    assert scalars["target_tokens"] == 17
    assert (scalars["chunks"], scalars["pipelines"], scalars["slices_of_longest"]) == (4, 2, 3)
    assert (scalars["predicted_s"], scalars["measured_s"], scalars["step_s"]) == (2.0, 2.5, 4.0)
