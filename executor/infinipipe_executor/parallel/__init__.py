"""Communication: between stages, inside a stage, and over the whole job."""
