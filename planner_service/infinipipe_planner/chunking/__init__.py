"""Workload-balanced chunking (paper, III-B): from sequence lengths to chunks."""
