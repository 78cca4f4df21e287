"""One training step on one stage: from the actions of a plan to gradients."""
