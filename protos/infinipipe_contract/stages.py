"""How layers are divided among stages: one rule for the planner, the executor and the memory model."""


def divide_layers(layers: int, pp_size: int) -> tuple[int, ...]:
    """Divide layers as evenly as whole layers allow.

    What does not divide goes to the stages in the middle first: the first one also holds the embedding, the last one
    the head and the logits. 27 layers on 4 stages are 7, 7, 7 and 6.

    Args:
        layers: Transformer layers of the model, at least ``pp_size``.
        pp_size: Stages, at least 1.

    Returns:
        Layers of every stage, which differ by one at most.
    """
    base, extra = divmod(layers, pp_size)
    last = pp_size - 1
    takers = sorted(range(pp_size), key=lambda stage_index: (stage_index == last, stage_index == 0, stage_index))[
        :extra
    ]
    return tuple(base + (stage_index in takers) for stage_index in range(pp_size))
