"""Chunk scheduling (paper, III-C): sequence grouping, 1F1B order and recompute."""
