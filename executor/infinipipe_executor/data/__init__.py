"""Training data: from documents to the batch of a step."""
