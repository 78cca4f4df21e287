"""Keys, values and gradients of earlier slices."""

import pytest
import torch

from infinipipe_executor.pipeline.slice_cache import KeyValue, SliceCache
from support_executor.plans import chunk, cut, make_batch
from support_executor.reference import TINY
from support_executor.single import chunk_passes, plain_stage


def key_value(value: float, tokens: int = 2) -> KeyValue:
    return KeyValue(torch.full((tokens, 1, 4), value), torch.full((tokens, 1, 4), -value))


def filled(slice_count: int) -> SliceCache:
    cache = SliceCache(1, slice_count)
    for index in range(slice_count):
        cache.put(0, index, key_value(float(index)), copies=False)
    return cache


def test_context_is_all_earlier_slices_in_order() -> None:
    context = filled(4).context(0, 3)

    assert [entry.key[0, 0, 0].item() for entry in context] == [0.0, 1.0, 2.0]


def test_the_last_slice_is_not_kept() -> None:
    assert filled(3).write_count == 2


def test_a_second_write_of_a_slice_changes_nothing() -> None:
    cache = filled(3)

    cache.put(0, 1, key_value(99.0), copies=False)

    assert cache.write_count == 2
    assert cache.context(0, 2)[1].key[0, 0, 0].item() == 1.0


def test_a_copy_does_not_keep_the_tensor_it_came_from() -> None:
    packed = torch.randn(2, 5, 4)
    viewed, copied = SliceCache(1, 2), SliceCache(1, 2)

    for cache, copies in ((viewed, False), (copied, True)):
        cache.put(0, 0, KeyValue(packed[:, 3:4], packed[:, 4:5]), copies=copies)

    def bytes_of(cache: SliceCache) -> int:
        return cache.context(0, 1)[0].key.untyped_storage().nbytes()

    assert bytes_of(viewed) == packed.nbytes
    assert bytes_of(copied) == packed.nbytes // 5


def test_gradients_of_all_later_slices_add_up_and_the_slice_is_forgotten() -> None:
    cache = filled(3)
    cache.take_gradient(0, 2)
    for value in (1.0, 10.0):
        cache.add_gradient(0, 0, key_value(value))
        cache.add_gradient(0, 1, key_value(2 * value))

    second, first = cache.take_gradient(0, 1), cache.take_gradient(0, 0)

    assert second is not None
    assert first is not None
    assert second.key[0, 0, 0].item() == 22.0
    assert first.value[0, 0, 0].item() == -11.0
    assert cache.is_empty


def test_forward_out_of_order_is_noticed() -> None:
    cache = SliceCache(1, 3)
    with pytest.raises(AssertionError, match="slice 1 runs forward after 0 slices"):
        cache.put(0, 1, key_value(1.0), copies=False)


def test_backward_out_of_order_is_noticed() -> None:
    cache = filled(3)
    cache.add_gradient(0, 0, key_value(1.0))
    with pytest.raises(AssertionError, match="slice 0 runs backward before slice 1"):
        cache.take_gradient(0, 0)


def test_backward_before_any_later_slice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="slice 1 runs backward before any later slice"):
        filled(3).take_gradient(0, 1)


@pytest.mark.parametrize("recompute_layer_count", range(TINY.layers + 1))
def test_recompute_neither_writes_twice_nor_leaves_anything_behind(recompute_layer_count: int) -> None:
    batch, stage = make_batch([30]), plain_stage(TINY, 1, 0)
    chunks = [chunk(piece) for piece in cut(0, 12, 10, 8)]
    passes = chunk_passes(stage, chunks, batch, recompute_layer_count=recompute_layer_count)
    cache = passes[0].caches[0]

    losses = [stage(one.layout.own_token_ids(batch), one) for one in passes]
    writes_forward = cache.write_count
    for loss in reversed(losses):
        torch.autograd.backward(loss)

    assert writes_forward == 2 * TINY.layers
    assert cache.write_count == writes_forward
    assert cache.is_empty
