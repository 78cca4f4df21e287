"""The reference: one process, one sequence at a time, plain torch. No packing, slicing, recompute or own operators."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from infinipipe_contract.rope import RopeScaling
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import initial_parameter

Weights = dict[str, Tensor]

TINY = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=97)
"""The model of most tests."""

# Of eight frequencies of a head, some stay, some become eight times as long, and some lie between.
_STRETCHED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_tokens=64)

FAMILIES = {
    "llama 3": dataclasses.replace(TINY, rope_theta=500.0, rope_scaling=_STRETCHED),
    "llama 3, tied": dataclasses.replace(TINY, rope_scaling=_STRETCHED, ties_embeddings=True),
    "qwen 2": dataclasses.replace(TINY, has_qkv_bias=True, ties_embeddings=True),
    "qwen 3": dataclasses.replace(TINY, head_dim=16, has_qk_norm=True),
    "qwen 3, tied": dataclasses.replace(TINY, head_dim=16, has_qk_norm=True, ties_embeddings=True),
}
"""What the families add to the tiny model: stretched angles, tied embeddings, biases, norms of heads, wider heads."""

LEARNING_RATE, MAX_NORM = 1e-3, 1.0
"""Of training runs, which use AdamW as torch has it."""


@dataclass(frozen=True)
class ReferenceStep:
    """Cross-entropy and gradients by name; the gradients are those of the z-loss, too, which is told apart."""

    loss: float
    gradients: dict[str, Tensor]
    z_loss: float = 0.0


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
        if config.has_qkv_bias:
            widths = {"q": config.query_dim, "k": config.kv_dim, "v": config.kv_dim}
            shapes |= {f"layers.{i}.attention.{part}.bias": (width,) for part, width in widths.items()}
        if config.has_qk_norm:
            shapes |= {f"layers.{i}.attention.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    shapes["norm.weight"] = (config.hidden,)
    return shapes if config.ties_embeddings else shapes | {"head.weight": (config.vocab, config.hidden)}


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
        q, k, v = (
            _heads(normed @ w[f"attention.{part}.weight"].T + w.get(f"attention.{part}.bias", 0.0), config)
            for part in "qkv"
        )
        if config.has_qk_norm:
            q = _norm(q, w["attention.q_norm.weight"], config)
            k = _norm(k, w["attention.k_norm.weight"], config)
        x = x + _attention(_rope(q, config), _rope(k, config), v).flatten(1) @ w["attention.output.weight"].T
        normed = _norm(x, w["mlp_norm.weight"], config)
        gated = functional.silu(normed @ w["mlp.gate.weight"].T) * (normed @ w["mlp.up.weight"].T)
        x = x + gated @ w["mlp.down.weight"].T
    head = weights["embedding.weight" if config.ties_embeddings else "head.weight"]
    return _norm(x, weights["norm.weight"], config) @ head.T


def reference_step(
    config: ModelConfig, seed: int, batch: Batch, dtype: torch.dtype = torch.float64, *, z_loss: float = 0.0
) -> ReferenceStep:
    """Run a whole batch; the loss is the sum over all targets divided by their number."""
    weights = make_weights(config, seed, dtype)
    loss = _loss(config, weights, batch)
    z_part = z_loss * _mean_squared_lse(config, weights, batch) if z_loss else loss.new_zeros(())
    gradients: Sequence[Tensor] = torch.autograd.grad(loss + z_part, list(weights.values()))
    return ReferenceStep(loss.item(), dict(zip(weights, gradients, strict=True)), z_part.item())


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


def _mean_squared_lse(config: ModelConfig, weights: Weights, batch: Batch) -> Tensor:
    squares = [
        torch.logsumexp(reference_logits(config, weights, sequence.token_ids), -1)[sequence.target_ids != -100] ** 2
        for sequence in batch.sequences
    ]
    return torch.cat(squares).sum() / batch.target_token_count


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
    frequencies = config.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / config.head_dim)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), _stretched(frequencies, config.rope_scaling))
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def _stretched(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Stretch by the length of every wave, case by case."""
    if scaling is None:
        return frequencies
    stretched = []
    for frequency in frequencies.tolist():
        wave_tokens = 2 * math.pi / frequency
        if wave_tokens < scaling.original_tokens / scaling.high_freq_factor:
            stretched.append(frequency)
        elif wave_tokens > scaling.original_tokens / scaling.low_freq_factor:
            stretched.append(frequency / scaling.factor)
        else:
            smooth = (scaling.original_tokens / wave_tokens - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            stretched.append((1 - smooth) * frequency / scaling.factor + smooth * frequency)
    return torch.tensor(stretched, dtype=torch.float64)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5
    hidden_from = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden_from, float("-inf")).softmax(-1), v)
