"""Executes step plans: weights, models, KV cache and sampling of one worker."""
