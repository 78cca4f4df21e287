"""Eq. 12: every sequence is in exactly one pipeline."""

from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile


def test_the_pipelines_partition_the_sequences() -> None:
    """The union of ``S_P`` over all pipelines is S, and a sequence is scheduled once. Reference: III-C1, Eq. 12.

    The memory is short enough that more than one pipeline pays.
    """
    lengths = github_lengths(512, 131_072)
    plan = solve_plan(lengths, llama_profile(device_memory_bytes=26e9), PlanOptions(policy="paper"))

    groups = [{s.sequence_index for c in pipeline.chunks for s in c.slices} for pipeline in plan.pipelines]

    assert len(groups) > 1
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
