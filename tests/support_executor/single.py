"""One stage in one process, without sharding: for tests that need no peers."""

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from infinipipe_contract.plan import Chunk, Pipeline, slices_by_sequence
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.rotary import rotary_table
from infinipipe_executor.model.stage import Stage, initial_parameter
from infinipipe_executor.parallel.ulysses import HeadExchange
from infinipipe_executor.pipeline.chunk_layout import lay_out_pipeline
from infinipipe_executor.pipeline.chunk_pass import ChunkPass
from infinipipe_executor.pipeline.slice_cache import SliceCache
from infinipipe_kernels.attention import backend_for
from support_executor.ranks import SEED


def plain_stage(config: ModelConfig, pp_size: int, stage_index: int, dtype: torch.dtype = torch.float64) -> Stage:
    """A stage with its first weights."""
    stage = Stage(config, pp_size, stage_index, dtype).to(dtype)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            parameter.copy_(initial_parameter(name, parameter.shape, SEED))
    return stage


def chunk_passes(
    stage: Stage, chunks: list[Chunk], batch: Batch, *, recompute_layer_count: int = 0, device: str = "cpu"
) -> list[ChunkPass]:
    """What the layers get for every chunk of a pipeline on one rank."""
    pieces = slices_by_sequence(chunks)
    caches = {index: SliceCache(len(stage.layers), len(of)) for index, of in pieces.items() if len(of) > 1}
    return [
        ChunkPass(
            layout=layout,
            caches=caches,
            rotary=rotary_table(layout.own_positions().to(device), stage.config, stage.dtype),
            exchange=HeadExchange(cast("dist.ProcessGroup", None), layout.shares_tokens, 0),  # one rank: never used
            attention=backend_for(torch.device(device)),
            recompute_layer_count=recompute_layer_count,
            target_ids=layout.own_target_ids(batch).to(device),
            loss_scale=1.0 / max(1, batch.target_token_count),
        )
        for layout in lay_out_pipeline(Pipeline(tuple(chunks), ()), 1, 0)
    ]


def forward_rows(stage: Stage, chunks: list[Chunk], batch: Batch) -> dict[int, Tensor]:
    """Run all chunks forward through the first stage; return the output of every sequence, slices joined."""
    rows: dict[int, list[Tensor]] = {}
    for chunk_pass in chunk_passes(stage, chunks, batch):
        output = stage(chunk_pass.layout.own_token_ids(batch), chunk_pass).detach()
        for placed in chunk_pass.layout.slices:
            rows.setdefault(placed.piece.sequence_index, []).append(output[placed.rows])
    return {index: torch.cat(parts) for index, parts in rows.items()}
