"""Llama: grouped-query attention with rotary embedding, gated MLP, RMSNorm before each."""

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from ...ipc.messages.config import EngineConfig
from ...kernels.interface import DecoderLayerWeights, DecoderWeights, FusedDecoder
from ...kernels.select import select_kernels
from ..inputs import StepInputs
from ..kv_cache import KVCache
from ..layers.base import join
from ..layers.embedding import Embedding, LMHead
from ..layers.linear import Linear, MergedLinear
from ..layers.norm import RMSNorm
from ..layers.rotary import rotary_table
from .llama_shape import LlamaShape


class LlamaAttention(nn.Module):
    """Self-attention over the paged cache."""

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        shape = LlamaShape.from_hf(config.checkpoint.hf_config)
        self.kernels = select_kernels()
        self.num_heads, self.num_kv_heads, self.head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.scale = shape.head_dim**-0.5
        heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.qkv = MergedLinear(
            config=config,
            prefix=prefix,
            parts={"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads},
            in_features=shape.hidden_size,
            bias=shape.attention_bias,
        )
        self.out = Linear(
            config=config,
            prefix=join(prefix, "o_proj"),
            in_features=heads,
            out_features=shape.hidden_size,
            bias=shape.attention_bias,
        )

    def forward(self, x: Tensor, inputs: StepInputs, layer_cache: tuple[Tensor, Tensor], cos_sin: Tensor) -> Tensor:
        """x [T, hidden] to [T, hidden]."""
        k_cache, v_cache = layer_cache
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        rotated = self.kernels.rotary(heads[:, : self.num_heads + self.num_kv_heads], inputs.positions, cos_sin)
        q, k = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        self.kernels.write_kv(k, heads[:, -self.num_kv_heads :], k_cache, v_cache, inputs.slots)
        attended = self.kernels.paged_attention(q, k_cache, v_cache, inputs.attention, self.scale)
        output: Tensor = self.out(attended.flatten(1))
        return output


class LlamaMLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        shape = LlamaShape.from_hf(config.checkpoint.hf_config)
        self.kernels = select_kernels()
        self.gate_up = MergedLinear(
            config=config,
            prefix=prefix,
            parts={"gate_proj": shape.intermediate_size, "up_proj": shape.intermediate_size},
            in_features=shape.hidden_size,
            bias=shape.mlp_bias,
        )
        self.down = Linear(
            config=config,
            prefix=join(prefix, "down_proj"),
            in_features=shape.intermediate_size,
            out_features=shape.hidden_size,
            bias=shape.mlp_bias,
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [T, hidden] to [T, hidden]."""
        output: Tensor = self.down(self.kernels.silu_and_mul(self.gate_up(x)))
        return output


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm; the residual stream travels beside x."""

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        shape = LlamaShape.from_hf(config.checkpoint.hf_config)
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_norm = RMSNorm(config=config, prefix=join(prefix, "input_layernorm"), size=size, eps=eps)
        self.attention = LlamaAttention(config=config, prefix=join(prefix, "self_attn"))
        self.mlp_norm = RMSNorm(config=config, prefix=join(prefix, "post_attention_layernorm"), size=size, eps=eps)
        self.mlp = LlamaMLP(config=config, prefix=join(prefix, "mlp"))

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        inputs: StepInputs,
        layer_cache: tuple[Tensor, Tensor],
        cos_sin: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(x, residual), each [T, hidden]; the stream is their sum."""
        x, residual = self.input_norm(x, residual)
        x, residual = self.mlp_norm(self.attention(x, inputs, layer_cache, cos_sin), residual)
        return self.mlp(x), residual

    def weights(self) -> DecoderLayerWeights:
        """What a fused decoder computes the layer from."""
        attention, mlp = self.attention, self.mlp
        return DecoderLayerWeights(
            input_norm=self.input_norm.weight,
            qkv=attention.qkv.packed,
            qkv_bias=attention.qkv.bias,
            out=attention.out.packed,
            out_bias=attention.out.bias,
            mlp_norm=self.mlp_norm.weight,
            gate_up=mlp.gate_up.packed,
            gate_up_bias=mlp.gate_up.bias,
            down=mlp.down.packed,
            down_bias=mlp.down.bias,
        )


class LlamaForCausalLM(nn.Module):
    """The whole model, from token ids to hidden states and from these to logits."""

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        self.shape = shape = LlamaShape.from_hf(config.checkpoint.hf_config)
        size, body = shape.hidden_size, join(prefix, "model")
        embedding = join(body, "embed_tokens")
        self.embedding = Embedding(config=config, prefix=embedding, vocab_size=shape.vocab_size, size=size)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(config=config, prefix=join(body, f"layers.{i}")) for i in range(shape.num_layers)
        )
        self.norm = RMSNorm(config=config, prefix=join(body, "norm"), size=size, eps=shape.rms_norm_eps)
        self.lm_head = LMHead(
            config=config,
            prefix=join(prefix, "lm_head"),
            vocab_size=shape.vocab_size,
            size=size,
            tied_to=embedding if shape.tie_word_embeddings else None,
        )
        max_position = config.checkpoint.max_model_len or shape.max_position
        self.cos_sin = rotary_table(shape.rope, head_dim=shape.head_dim, max_position=max_position)
        self.kernels = select_kernels()
        self._fused_for: KVCache | None = None  # the cache that the fused decoder was made for
        self._fused: FusedDecoder | None = None

    def forward(self, inputs: StepInputs, cache: KVCache) -> Tensor:
        """Hidden states [S, hidden] of the wanted tokens, behind the last norm."""
        if cache is not self._fused_for:
            self._fused_for, self._fused = cache, self._fuse(cache)
        if self._fused is not None:
            return self._fused(inputs.tokens, inputs.positions, inputs.slots, inputs.attention, cache.layers, inputs.logit_rows)
        x, residual = self.embedding(inputs.tokens), None
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x, residual = layer(x, residual, inputs, layer_cache, self.cos_sin)
        if inputs.logit_rows is not None:
            x = x.index_select(0, inputs.logit_rows)
            residual = None if residual is None else residual.index_select(0, inputs.logit_rows)
        hidden: Tensor = self.norm(x, residual)[0]
        return hidden

    def _fuse(self, cache: KVCache) -> FusedDecoder | None:
        if not all(type(layer) is LlamaDecoderLayer for layer in self.layers):
            return None  # whatever they compute, it is not what is fused
        weights = DecoderWeights(
            embedding=self.embedding.weight,
            layers=[layer.weights() for layer in cast("Iterable[LlamaDecoderLayer]", self.layers)],
            norm=self.norm.weight,
            cos_sin=self.cos_sin,
            num_heads=self.shape.num_heads,
            num_kv_heads=self.shape.num_kv_heads,
            head_dim=self.shape.head_dim,
            eps=self.shape.rms_norm_eps,
            scale=self.shape.head_dim**-0.5,
            dtype=cache.dtype,
        )
        return self.kernels.fuse_decoder(weights, block_size=cache.block_size)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 [S, vocab_size] of hidden states [S, hidden]."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def choose(self, hidden: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens int64 [S] for hidden states [S, hidden] and their logits, as the kernels' `choose` has them."""
        if type(self).compute_logits is not LlamaForCausalLM.compute_logits:  # a subclass has logits of its own
            return self.kernels.choose(self.compute_logits(hidden), temperature, seeds, positions)
        return self.lm_head.choose(hidden, temperature, seeds, positions)
