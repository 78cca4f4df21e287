"""Helpers for the tests of the executor: a plain reference model, plans by hand, groups of processes."""
