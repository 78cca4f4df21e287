"""How layers are divided among stages: one place for the planner, the executor and the memory model."""

from collections.abc import Sequence


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
    return _fill(layers, (layers,) * pp_size, last_takes=pp_size - 1)


def divide_layers_by_cost(
    layers: int, pp_size: int, head_layers: float, most_layers: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Divide layers so that the slowest stage is as fast as whole layers allow, the head on the last one counted.

    Of divisions with equally fast slowest stages the most even one is taken (least sum of squared times), then the one
    with fewer layers on the last stage, which also holds the logits, then on the first, which holds the embedding and
    most chunks in flight. A head that takes no time gives ``divide_layers``.

    Only the last stage differs from the others, so its number of layers is all there is to try: the rest is divided
    best when it is divided evenly, up to what every stage can hold. Every number is tried, so nothing is better.

    Args:
        layers: Transformer layers of the model, at least ``pp_size``.
        pp_size: Stages, at least 1.
        head_layers: Time of the head in layers: its time for a token divided by that of one layer. At least 0.
        most_layers: Most layers that every stage can hold, each at least 1; where no division stays within them, or
            None, memory plays no part.

    Returns:
        Layers of every stage, each at least 1.
    """
    last = pp_size - 1
    if not last:
        return (layers,)
    limits = tuple(most_layers or (layers,) * pp_size)
    best: tuple[tuple[float, float], tuple[int, ...]] | None = None
    for last_layers in range(1, min(layers - last, limits[last]) + 1):
        rest = layers - last_layers
        if rest > sum(limits[:last]):
            continue
        division = (*_fill(rest, limits[:last], last_takes=0), last_layers)
        times = (*division[:last], last_layers + head_layers)
        price = max(times), sum(time * time for time in times)
        if best is None or price < best[0]:  # of equals the one with fewer layers on the last stage came first
            best = price, division
    if best is None:
        return divide_layers_by_cost(layers, pp_size, head_layers)
    return best[1]


def _fill(layers: int, limits: Sequence[int], last_takes: int) -> tuple[int, ...]:
    """Divide layers evenly within limits; what does not divide goes to the middle, then the first, last ``last_takes``.

    ``sum(limits)`` is at least ``layers``.
    """
    level = next(height for height in range(1, layers + 1) if sum(min(limit, height) for limit in limits) >= layers)
    filled = [min(limit, level - 1) for limit in limits]
    order = sorted(range(len(limits)), key=lambda stage: (stage == last_takes, stage == 0, stage))
    takers = [stage for stage in order if limits[stage] >= level][: layers - sum(filled)]
    return tuple(count + (stage in takers) for stage, count in enumerate(filled))
