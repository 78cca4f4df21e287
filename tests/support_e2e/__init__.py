"""Real runs: configurations, torchrun, planners in a thread, and workers with a planted fault."""
