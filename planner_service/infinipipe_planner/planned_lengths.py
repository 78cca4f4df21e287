"""The batch that a plan is for, read back from its slices."""

from infinipipe_contract.plan import ExecutionPlan


def planned_lengths(plan: ExecutionPlan) -> list[int]:
    """Return the length of every sequence of a plan in tokens, by its index in the batch.

    A plan of N sequences gives N lengths; an index beyond them (a plan that breaks a rule) is left out.
    """
    ends: dict[int, int] = {}
    for pipeline in plan.pipelines:
        for chunk in pipeline.chunks:
            for piece in chunk.slices:
                ends[piece.sequence_index] = max(ends.get(piece.sequence_index, 0), piece.end_token)
    return [ends.get(index, 0) for index in range(len(ends))]
