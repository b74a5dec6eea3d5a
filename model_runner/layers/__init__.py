"""Layers. Each takes (config, prefix) the same way, besides its sizes; prefix is its name in the checkpoint."""
