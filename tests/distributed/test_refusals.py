"""Plans and layouts that do not fit the job are refused before any message is sent."""

import dataclasses

import pytest
import torch

from infinipipe_executor.errors import LayoutError
from infinipipe_executor.mesh import init_mesh
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan
from support_executor.ranks import refusal_of_layout, refusal_of_plan
from support_executor.reference import TINY


def test_a_plan_for_another_number_of_stages_is_refused(groups: GroupPool) -> None:
    batch = make_batch([5])

    errors = groups.run(1, refusal_of_plan, TINY, make_plan([[chunk(*cut(0, 5))]], 2, batch), batch)

    assert errors == ["PlanError: the plan of step 0 has 2 stages, the job has 1"]


def test_a_plan_that_divides_by_another_number_of_targets_is_refused(groups: GroupPool) -> None:
    batch = make_batch([5])
    plan = dataclasses.replace(make_plan([[chunk(*cut(0, 5))]], 1, batch), target_token_count=5)

    errors = groups.run(1, refusal_of_plan, TINY, plan, batch)

    assert errors == ["PlanError: the plan of step 0 divides the loss by 5 targets, the batch has 4"]


def test_a_plan_for_more_replicas_than_there_are_is_refused(groups: GroupPool) -> None:
    batch = make_batch([5])
    plan = make_plan([[chunk(*cut(0, 5))]], 1, batch, replicas=[1])

    errors = groups.run(1, refusal_of_plan, TINY, plan, batch)

    assert errors == ["PlanError: the plan of step 0 has a pipeline for replica 1, the job has 1, counted from 0"]


def test_a_layout_for_another_number_of_ranks_is_refused(groups: GroupPool) -> None:
    errors = groups.run(2, refusal_of_layout, 3, 2)

    assert errors == ["LayoutError: the job has 2 ranks, but dp_size 1 x pp_size 3 x sp_size 2 needs 6"] * 2


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LayoutError, match=r"device is 'tpu', it must be one of cpu, cuda"):
        init_mesh(1, 1, "tpu", timeout_s=5.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(LayoutError, match="device is 'cuda', but this node shows 0 CUDA devices to local rank 0"):
        init_mesh(1, 1, "cuda", timeout_s=5.0)
