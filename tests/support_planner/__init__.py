"""Profiles, batches and small helpers for the tests of the planner."""
