"""The text encoder, and the cross-attention keys and values that the decoder reads from its output.

Both run once per text window. The encoder is causal, so padding behind a text changes nothing before it.
"""

from __future__ import annotations

import numpy as np

from ..errors import NonFiniteError
from ..ggml import F16, F32, I32, Backend, Buffer, Context, Tensor, ops
from .layers import ROW_MULTIPLES, Shape, StageGraph, feed_forward, layer_norm, sequence_attention
from .native_matmul import mul_mat
from .weights import Weights

NEG_INF = np.float32(-np.inf)

_ROUND = 16  # on a CPU, graphs are made for texts of multiples of this many tokens
_KEEP_GRAPHS = 8
_SMALLEST_BUCKET = 128


def text_bucket(length: int, limit: int) -> int:
    """The capacity of the cross-attention cache for a text: the next power of two from 128, at most *limit*."""
    bucket = _SMALLEST_BUCKET
    while bucket < length:
        bucket *= 2
    return min(bucket, limit)


def causal_mask(n: int) -> np.ndarray:
    """float32 (n, n): row q is 0 up to column q and -inf behind."""
    return np.triu(np.full((n, n), NEG_INF, np.float32), 1)


class CrossCache:
    """Keys (head_dim, capacity, heads) and transposed values (capacity, head_dim, heads) of every decoder layer, for
    the conditional branch. The other branch has an all-zero memory, so its cross-attention adds nothing."""

    def __init__(self, weights: Weights, backend: Backend, capacity: int) -> None:
        config = weights.config
        kind = F32 if weights.precise else F16
        self.capacity = capacity
        context = Context(2 * config.decoder.layers)
        dim, heads = config.cross_head_dim, config.cross_heads
        # [dim * heads, capacity] in memory; the graphs view it as heads.
        self.keys = [context.new_tensor(kind, (dim * heads, capacity)) for _ in range(config.decoder.layers)]
        self.values = [context.new_tensor(kind, (capacity, dim, heads)) for _ in range(config.decoder.layers)]
        self.buffer = Buffer(context, backend, "the cross-attention cache")
        self.buffer.clear()

    def close(self) -> None:
        self.buffer.close()


class TextEncoder:
    """Owns the graphs of the text encoder and of the cross-attention projections, and the caches of the latter."""

    def __init__(self, weights: Weights, backend: Backend, exact_gelu: bool) -> None:
        self.weights, self.backend, self.exact_gelu = weights, backend, exact_gelu
        self.caches: dict[int, CrossCache] = {}
        self._encode: dict[int, StageGraph] = {}
        self._project: dict[tuple[int, int], StageGraph] = {}
        config = weights.config
        constants = Context(2)
        taps = config.encoder.kernel_size - 1
        self._padding: tuple[Tensor, Tensor] | None = None
        self._constants: Buffer | None = None
        if taps:
            self._padding = (constants.new_tensor(F32, (config.encoder.width, taps)),
                             constants.new_tensor(F32, (config.encoder.ffn, taps)))
            self._constants = Buffer(constants, backend)
            self._constants.clear()

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        """The encoder output of *tokens* int32 (n,), after the final norm: float32 (n, width)."""
        padded = self._padded(len(tokens))
        graph = self._encode.get(padded)
        if graph is None:
            graph = _remember(self._encode, padded, self.build_encoder(padded))
        text = np.zeros(padded, np.int32)
        text[:len(tokens)] = tokens
        graph.inputs["tokens"].set(text)
        graph.inputs["positions"].set(np.arange(padded, dtype=np.int32))
        graph.inputs["mask"].set(causal_mask(padded))
        graph.compute()
        memory = graph.outputs["memory"].get().reshape(padded, -1)[:len(tokens)]
        if not np.isfinite(memory).all():
            raise NonFiniteError("the text encoder produced NaN or infinity; the model file is damaged")
        return memory

    def project(self, memory: np.ndarray) -> CrossCache:
        """Fill the cross-attention cache of a window from its *memory* float32 (n, width)."""
        cache = self.cross_cache(len(memory))
        padded = self._padded(len(memory))
        graph = self._project.get((padded, cache.capacity))
        if graph is None:
            graph = _remember(self._project, (padded, cache.capacity), self.build_projection(padded, cache))
        rows = np.zeros((padded, memory.shape[1]), np.float32)
        rows[:len(memory)] = memory
        graph.inputs["memory"].set(rows)
        graph.compute()
        return cache

    def cross_cache(self, length: int) -> CrossCache:
        """The cross-attention cache for a text of *length* tokens."""
        capacity = text_bucket(length, self.weights.config.max_text)
        if capacity not in self.caches:
            self.caches[capacity] = CrossCache(self.weights, self.backend, capacity)
        return self.caches[capacity]

    def close(self) -> None:
        for graph in (*self._encode.values(), *self._project.values()):
            graph.close()
        for cache in self.caches.values():
            cache.close()
        if self._constants is not None:
            self._constants.close()

    def _padded(self, n: int) -> int:
        limit, device = self.weights.config.max_text, self.backend.device
        if not device.is_cpu and not device.in_software:
            return text_bucket(n, limit)  # tokens cost less than the making of another graph
        multiple = max(_ROUND, ROW_MULTIPLES.get(device.family, 1))
        return min(-(-n // multiple) * multiple, limit)

    def build_encoder(self, n: int) -> StageGraph:
        """The graph that encodes *n* tokens, not allocated yet."""
        weights, config = self.weights, self.weights.config.encoder
        max_nodes = 16 + (40 + 8 * config.kernel_size) * config.layers
        graph = StageGraph(self.backend, max_nodes, f"text encoder ({n} tokens)")
        ctx = graph.context
        mask = graph.input(F32, (n, n), "mask")
        tokens = graph.input(I32, (n,), "tokens")
        positions = graph.input(I32, (n,), "positions")
        x = ops.add(ctx, ops.get_rows(ctx, weights.text_embedding, tokens),
                    ops.get_rows(ctx, weights.encoder_positions, positions))
        shape = Shape(n, 1)
        for index, layer in enumerate(weights.encoder_layers):
            qkv = mul_mat(ctx, layer.qkv, layer_norm(ctx, x, layer.norm_self))
            attended = sequence_attention(ctx, qkv, config.heads, shape, mask)
            x = ops.add(ctx, x, mul_mat(ctx, layer.self_out, attended))
            x = feed_forward(graph, layer, x, self.exact_gelu, self._padding).set_name(f"layer{index}")
        graph.output(layer_norm(ctx, x, weights.encoder_norm), "memory")
        return graph

    def build_projection(self, n: int, cache: CrossCache) -> StageGraph:
        """The graph that fills *cache* from the encoder's output of *n* tokens, not allocated yet."""
        weights, config = self.weights, self.weights.config
        graph = StageGraph(self.backend, 16 * config.decoder.layers + 8, f"cross-attention projection ({n} tokens)")
        ctx = graph.context
        memory = graph.input(F32, (config.width, n), "memory")
        dim, heads = config.cross_head_dim, config.cross_heads
        for layer, keys, values in zip(weights.decoder_layers, cache.keys, cache.values, strict=True):
            assert layer.norm_memory is not None and layer.cross_kv is not None
            kv = mul_mat(ctx, layer.cross_kv, layer_norm(ctx, memory, layer.norm_memory))
            k = ops.view(ctx, kv, (dim * heads, n))
            v = ops.view(ctx, kv, (dim, heads, n), (dim * 4, kv.nb[1]), dim * heads * 4)
            graph.expand(ops.cpy(ctx, k, ops.view(ctx, keys, (dim * heads, n))))
            graph.expand(ops.cpy(ctx, ops.permute(ctx, v, 1, 2, 0, 3), ops.view(ctx, values, (n, dim, heads))))
        return graph


def _remember(graphs: dict, key: object, graph: StageGraph) -> StageGraph:
    """Allocate *graph* and keep it; the oldest goes when there are too many, as texts come in every length."""
    try:
        graph.allocate()
    except BaseException:
        graph.close()
        raise
    if len(graphs) >= _KEEP_GRAPHS:
        graphs.pop(next(iter(graphs))).close()
    graphs[key] = graph
    return graph
