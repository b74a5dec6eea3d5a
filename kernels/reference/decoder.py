"""Decoders as one kernel: none here. What a model computes layer by layer is the definition."""

from ..interface import DecoderWeights, FusedDecoder


def fuse_decoder(weights: DecoderWeights, *, block_size: int) -> FusedDecoder | None:
    """None, always."""
    return None
