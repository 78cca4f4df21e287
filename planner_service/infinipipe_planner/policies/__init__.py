"""Policies: ways to turn lengths into pipelines, by name."""
