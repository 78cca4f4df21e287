"""Batches of sequence lengths, reproducible."""

import random


def log_normal_lengths(count: int, context_tokens: int, *, mu: float, sigma: float, seed: int = 0) -> list[int]:
    """Draw lengths from a log-normal distribution, cut at the context."""
    generator = random.Random(seed)
    return [max(1, min(context_tokens, round(generator.lognormvariate(mu, sigma)))) for _ in range(count)]


def github_lengths(count: int, context_tokens: int, *, seed: int = 0) -> list[int]:
    """Draw lengths like those of source files, one of them of full context."""
    return [context_tokens, *log_normal_lengths(count - 1, context_tokens, mu=6.60, sigma=1.75, seed=seed)]


def common_crawl_lengths(count: int, context_tokens: int, *, seed: int = 0) -> list[int]:
    """Draw lengths like those of web pages, one of them of full context."""
    return [context_tokens, *log_normal_lengths(count - 1, context_tokens, mu=6.59, sigma=1.28, seed=seed)]
