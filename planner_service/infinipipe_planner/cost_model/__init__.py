"""What the cost model means for chunking: the work of a slice, and how many tokens fit."""
