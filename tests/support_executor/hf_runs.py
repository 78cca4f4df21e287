"""Configurations of runs whose model is a folder."""

from pathlib import Path
from typing import Any

from infinipipe_executor.config import RunConfig
from support_executor.hf_models import CONTEXT_TOKENS

SIZES: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 48, "vocab": 97}


def run_config(folder: Path | None, *, context_tokens: int = CONTEXT_TOKENS, **data: Any) -> RunConfig:
    """A run with the model of a folder, or with one by its sizes."""
    return RunConfig.model_validate(
        {
            "job": {"name": "run", "steps": 1},
            "model": SIZES if folder is None else {"path": folder},
            "data": {
                "corpus": Path("corpus"),
                "cache": Path("cache"),
                "context_tokens": context_tokens,
                "beyond_context": "truncate",
                "sequences_per_batch": 1,
                **data,
            },
            "cluster": {"pp_size": 1, "sp_size": 1, "device_memory_mib": 64},
            "optimizer": {"learning_rate": 1e-3},
        }
    )
