"""The reference: one process, one sequence at a time, plain torch. No packing, slicing, recompute or own operators."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from infinipipe_executor.data.batch import Batch
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import initial_parameter

Weights = dict[str, Tensor]

TINY = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=97)
"""The model of most tests."""

LEARNING_RATE, MAX_NORM = 1e-3, 1.0
"""Of training runs, which use AdamW as torch has it."""


@dataclass(frozen=True)
class ReferenceStep:
    """Loss and gradients by name."""

    loss: float
    gradients: dict[str, Tensor]


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocab, config.hidden)}
    for i in range(config.layers):
        shapes |= {
            f"layers.{i}.attention_norm.weight": (config.hidden,),
            f"layers.{i}.attention.q.weight": (config.query_dim, config.hidden),
            f"layers.{i}.attention.k.weight": (config.kv_dim, config.hidden),
            f"layers.{i}.attention.v.weight": (config.kv_dim, config.hidden),
            f"layers.{i}.attention.output.weight": (config.hidden, config.query_dim),
            f"layers.{i}.mlp_norm.weight": (config.hidden,),
            f"layers.{i}.mlp.gate.weight": (config.ffn, config.hidden),
            f"layers.{i}.mlp.up.weight": (config.ffn, config.hidden),
            f"layers.{i}.mlp.down.weight": (config.hidden, config.ffn),
        }
    return shapes | {"norm.weight": (config.hidden,), "head.weight": (config.vocab, config.hidden)}


def make_weights(config: ModelConfig, seed: int, dtype: torch.dtype) -> Weights:
    return {
        name: initial_parameter(name, torch.Size(shape), seed).to(dtype).requires_grad_()
        for name, shape in parameter_shapes(config).items()
    }


def reference_logits(config: ModelConfig, weights: Weights, token_ids: Tensor) -> Tensor:
    """Run one sequence."""
    x = functional.embedding(token_ids, weights["embedding.weight"])
    for i in range(config.layers):
        w = {name.removeprefix(f"layers.{i}."): value for name, value in weights.items()}
        normed = _norm(x, w["attention_norm.weight"], config)
        q = _rope(_heads(normed @ w["attention.q.weight"].T, config), config)
        k = _rope(_heads(normed @ w["attention.k.weight"].T, config), config)
        v = _heads(normed @ w["attention.v.weight"].T, config)
        x = x + _attention(q, k, v).flatten(1) @ w["attention.output.weight"].T
        normed = _norm(x, w["mlp_norm.weight"], config)
        gated = functional.silu(normed @ w["mlp.gate.weight"].T) * (normed @ w["mlp.up.weight"].T)
        x = x + gated @ w["mlp.down.weight"].T
    return _norm(x, weights["norm.weight"], config) @ weights["head.weight"].T


def reference_step(config: ModelConfig, seed: int, batch: Batch, dtype: torch.dtype = torch.float64) -> ReferenceStep:
    """Run a whole batch; the loss is the sum over all targets divided by their number."""
    weights = make_weights(config, seed, dtype)
    loss = _loss(config, weights, batch)
    gradients: Sequence[Tensor] = torch.autograd.grad(loss, list(weights.values()))
    return ReferenceStep(loss.item(), dict(zip(weights, gradients, strict=True)))


def _loss(config: ModelConfig, weights: Weights, batch: Batch) -> Tensor:
    losses = [
        functional.cross_entropy(
            reference_logits(config, weights, sequence.token_ids),
            sequence.target_ids,
            reduction="sum",
            ignore_index=-100,
        )
        for sequence in batch.sequences
    ]
    return torch.stack(losses).sum() / max(1, batch.target_token_count)


def reference_training(config: ModelConfig, seed: int, batch: Batch, count: int) -> list[tuple[float, float]]:
    """Train on the same batch many times; return loss and norm of the gradients of every step."""
    weights = make_weights(config, seed, torch.float64)
    optimizer = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE)
    seen = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = _loss(config, weights, batch)
        torch.autograd.backward(loss)
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient in gradients:
            gradient.mul_(min(1.0, MAX_NORM / norm.item()))
        optimizer.step()
        seen.append((loss.item(), norm.item()))
    return seen


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight


def _heads(x: Tensor, config: ModelConfig) -> Tensor:
    return x.reshape(len(x), x.shape[1] // config.head_dim, config.head_dim)


def _rope(x: Tensor, config: ModelConfig) -> Tensor:
    """Rotate complex numbers: a way of its own, so that a slip in the executor's rotation is not repeated here."""
    tokens, half = x.shape[0], config.head_dim // 2
    angles = torch.outer(
        torch.arange(tokens, dtype=torch.float64),
        config.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / config.head_dim),
    )
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5
    hidden_from = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden_from, float("-inf")).softmax(-1), v)
