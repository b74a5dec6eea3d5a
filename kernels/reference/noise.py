"""Counter-based Gumbel noise: Philox4x32-10 with 32-bit lanes held in int64.

key = the 64-bit seed, counter = (token // 4, position, 0, 0); the four outputs serve four consecutive tokens. So the
noise of a token depends on nothing but seed, position and token, whatever batch it is drawn in.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LANES = 4


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10. All six are int64, each in 0 .. 2**32 - 1, of shapes that broadcast; so are the four results."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The products need 64 bits and int64 wraps to just those, so masking after the shift undoes its sign.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise float32 [R, vocab_size] for seeds and positions int64 [R]."""
    quads = torch.arange(-(-vocab_size // _LANES))[None, :]
    lanes = _lanes(quads, positions[:, None], seeds[:, None])
    return to_gumbel(torch.stack(lanes, dim=-1).flatten(1)[:, :vocab_size].contiguous())


def gumbel_noise_at(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Gumbel noise float32 [N] for seeds, positions and tokens int64 [N]."""
    lanes = torch.stack(_lanes(tokens // _LANES, positions, seeds), dim=-1)
    return to_gumbel(lanes.gather(-1, (tokens % _LANES)[:, None]).squeeze(-1))


def to_gumbel(bits: Tensor) -> Tensor:
    """32 random bits (int64) to a Gumbel variable in float32, from the top 24 of them: -2.82 to 17.33."""
    w = ((bits >> 8).float() + 0.5) * 2.0**-24
    # The largest w would round to 1 and its noise to minus infinity.
    return -torch.log(-torch.log1p(-w.clamp_(max=1.0 - 2.0**-24)))


def _lanes(quads: Tensor, positions: Tensor, seeds: Tensor) -> tuple[Tensor, ...]:
    zero = torch.zeros_like(positions)
    key = (seeds & _MASK, (seeds >> 32) & _MASK)
    return philox4x32((quads, positions & _MASK, zero, zero), key)
