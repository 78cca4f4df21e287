"""The slice plan: where long sequences are cut (paper, III-B; line 1 of Alg. 1 calls it the mesh)."""

from infinipipe_planner.cost_model.slice_work import SliceWork


def split_slice_plan(longest_tokens: int, slice_count: int, work: SliceWork) -> tuple[int, ...]:
    """Cut the longest sequence into slices of equal backward work.

    Args:
        longest_tokens: Tokens of the longest sequence.
        slice_count: Slices to cut it into (paper: K), in ``[1, longest_tokens]``.
        work: What a slice costs.

    Returns:
        Tokens of every slice, each at least 1; earlier slices are longer, as later ones attend to more context.
    """
    if not 1 <= slice_count <= longest_tokens:
        raise ValueError(f"slice_count is {slice_count}, it must be in [1, {longest_tokens}]")
    whole_s = work.prefix_work_s(longest_tokens)
    slice_plan, start = [], 0
    for cut in range(1, slice_count):
        balanced = round(work.prefix_tokens(whole_s * cut / slice_count))
        end = min(max(balanced, start + 1), longest_tokens - (slice_count - cut))
        slice_plan.append(end - start)
        start = end
    return (*slice_plan, longest_tokens - start)
