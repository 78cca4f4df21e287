"""Profiles from a model's configuration and datasheets, for models and clusters that nobody has measured.

Entry points: ``read_decoder_shape`` (hf_config), ``DEVICES`` (devices), ``build_profile`` (profile) and
``try_layouts`` (dry_run).
"""
