"""The model: a Llama-like decoder, stage by stage."""
