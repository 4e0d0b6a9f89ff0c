"""The decoder: its key-value cache, and its two graph trunks.

The *sequence* trunk computes every position at once: the whole prefix in reference mode, and the pre-fill of the cached
mode (context rows and BOS, written to the cache). The *step* trunk computes one new position per branch against the
cache; position and masks are data, so its graph never changes.

The unconditional branch has a zero context and a zero text memory, for which cross-attention is exactly zero; it is
computed for the conditional branch alone. Its pre-fill depends on nothing that changes, so it is done once and kept.
"""

from __future__ import annotations

from ..ggml import F16, F32, Backend, Buffer, Context, Graph, Tensor, ops
from . import native_attention
from .config import MagpieConfig
from .encoder import CrossCache
from .io import StepIO
from .layers import Shape, attend, feed_forward, layer_norm, sequence_attention, split_heads
from .native_matmul import mul_mat
from .weights import LayerWeights, Weights


class DecoderState:
    """What outlives a graph: the caches of decoder and local transformer, and the last hidden vectors.

    ``keys[l]`` is [width, columns, branches], ``values[l]`` transposed [columns, width, branches]; the local
    transformer's are the same with a column for each slot. f32 for an f32 model, else the decoder's are f16.
    """

    def __init__(self, weights: Weights, backend: Backend, branches: int, columns: int) -> None:
        config = weights.config
        kind = F32 if weights.precise else F16
        self.branches, self.columns = branches, columns
        width, local, slots = config.width, config.local.width, config.slots
        context = Context(5 + 2 * (config.decoder.layers + config.local.layers))
        layers, local_layers = range(config.decoder.layers), range(config.local.layers)
        self.keys = [context.new_tensor(kind, (width, columns, branches)) for _ in layers]
        self.values = [context.new_tensor(kind, (columns, width, branches)) for _ in layers]
        self.local_keys = [context.new_tensor(F32, (local, slots, branches)) for _ in local_layers]
        self.local_values = [context.new_tensor(F32, (slots, local, branches)) for _ in local_layers]
        self.hidden = context.new_tensor(F32, (width, branches), "hidden")
        self.blank_hidden = context.new_tensor(F32, (width, 1), "blank_hidden")
        self.slot_logits = context.new_tensor(F32, (config.vocab_size, slots), "slot_logits")
        self.zero_context = context.new_tensor(F32, (width, config.context_frames), "zero_context")
        self.buffer = Buffer(context, backend, f"the decoder cache of {columns} columns")
        self.buffer.clear()

    def clear(self) -> None:
        """Forget everything; needed only after a computation that left NaN behind."""
        self.buffer.clear()

    def close(self) -> None:
        self.buffer.close()


class Trunk:
    """Builds the decoder into one graph. After a build, ``hidden`` is [width, branches] of the newest position and
    ``alignment`` its scores [capacity], the mean over the layers that estimate alignment and over heads."""

    def __init__(self, graph: Graph, io: StepIO, weights: Weights, state: DecoderState, cross: CrossCache | None,
                 exact_gelu: bool, alignment_layers: tuple[int, ...], prior_layers: tuple[int, ...]) -> None:
        self.graph, self.ctx, self.io = graph, graph.context, io
        self.weights, self.state, self.cross = weights, state, cross
        self.config: MagpieConfig = weights.config
        self.exact_gelu = exact_gelu
        self.alignment_layers, self.prior_layers = alignment_layers, prior_layers
        self.hidden: Tensor
        self.alignment: Tensor
        self.probs: list[Tensor] = []
        """Cross-attention probabilities of every layer."""

    def build_step(self, columns: int) -> None:
        """One position, attending to the first *columns* columns of the cache."""
        ctx, io, weights, config = self.ctx, self.io, self.weights, self.config
        shape = Shape(1, self.state.branches)
        embedded = self._mean_embedding([io.ints.view(ctx, f"code{slot}") for slot in range(config.slots)])
        position = ops.get_rows(ctx, weights.decoder_positions, io.ints.view(ctx, "position"))
        x = ops.add(ctx, embedded, position)
        if shape.branches > 1:
            x = ops.repeat(ctx, x, self.state.hidden)
        mask = io.floats.view(ctx, "self_mask")
        for index, layer in enumerate(weights.decoder_layers):
            qkv = mul_mat(ctx, layer.qkv, layer_norm(ctx, x, layer.norm_self))
            attended = self._cached_attention(qkv, index, columns, mask)
            x = ops.add(ctx, x, mul_mat(ctx, layer.self_out, attended))
            x = self._cross_attention(x, index, layer, 1)
            x = feed_forward(self.graph, layer, x, self.exact_gelu)
        self.hidden = layer_norm(ctx, x, weights.decoder_norm)
        self._finish_alignment(None)

    def build_sequence(self, frames: int, branches: range, *, write_cache: bool, every_position: bool = False) -> None:
        """Context rows and *frames* groups of codes, for some *branches*: 0 is the conditional one, 1 the other. The
        position whose outputs count is data; *every_position* keeps all of them as graph outputs for tests."""
        ctx, io, weights, config = self.ctx, self.io, self.weights, self.config
        n = config.context_frames + frames
        shape = Shape(n, len(branches))
        x = self._sequence_input(frames, branches)
        mask = io.floats.view(ctx, "self_mask", (n, n))
        for index, layer in enumerate(weights.decoder_layers):
            qkv = mul_mat(ctx, layer.qkv, layer_norm(ctx, x, layer.norm_self))
            if write_cache:
                self._write_cache(qkv, index, shape, branches.start)
            attended = sequence_attention(ctx, qkv, config.decoder.heads, shape, mask)
            x = ops.add(ctx, x, mul_mat(ctx, layer.self_out, attended))
            if 0 in branches:
                x = self._cross_attention(x, index, layer, n)
            x = feed_forward(self.graph, layer, x, self.exact_gelu)
            if every_position:
                self.graph.output(x, f"layer{index}")
                self.graph.output(ops.cont(ctx, self.probs[-1]), f"probs{index}")  # a view would not be kept
        if every_position:
            self.graph.output(layer_norm(ctx, x, weights.decoder_norm), "normed")
        last = ops.get_rows(ctx, ops.reshape(ctx, x, config.width, n, shape.branches),
                            io.ints.view(ctx, "last", (1, shape.branches)))
        last = ops.reshape(ctx, last, config.width, shape.branches)
        self.hidden = layer_norm(ctx, last, weights.decoder_norm)
        if 0 in branches:
            self._finish_alignment(io.ints.view(ctx, "last", (1, config.cross_heads)))

    def _mean_embedding(self, codes: list[Tensor]) -> Tensor:
        """The average of all tables' rows: [width, n] for one index tensor [n] a slot."""
        ctx = self.ctx
        total = ops.get_rows(ctx, self.weights.audio_embeddings[0], codes[0])
        for table, index in zip(self.weights.audio_embeddings[1:], codes[1:], strict=True):
            total = ops.add(ctx, total, ops.get_rows(ctx, table, index))
        return ops.scale(ctx, total, 1.0 / len(codes))

    def _sequence_input(self, frames: int, branches: range) -> Tensor:
        ctx, io, weights, config = self.ctx, self.io, self.weights, self.config
        width, rows = config.width, config.context_frames
        audio = self._mean_embedding([io.ints.view(ctx, f"code{slot}", (frames,)) for slot in range(config.slots)])
        positions = ops.view(ctx, weights.decoder_positions, (width, rows + frames))
        columns: Tensor | None = None
        for branch in branches:
            context = self.state.zero_context
            if branch == 0:
                context = ops.get_rows(ctx, weights.voice_context, io.ints.view(ctx, "voice"))
                context = ops.reshape(ctx, context, width, rows)
            x = ops.add(ctx, ops.concat(ctx, context, audio, 1), positions)
            columns = x if columns is None else ops.concat(ctx, columns, x, 1)
        assert columns is not None
        return columns

    def _cached_attention(self, qkv: Tensor, index: int, columns: int, mask: Tensor) -> Tensor:
        ctx, state = self.ctx, self.state
        width, heads, branches = self.config.width, self.config.decoder.heads, state.branches
        head_dim = width // heads
        row = qkv.nb[1]
        keys, values = state.keys[index], state.values[index]
        k = ops.view(ctx, qkv, (width, 1, branches), (row, row), width * 4)
        keys = ops.set_rows(ctx, keys, k, self.io.ints.view(ctx, "position"))
        # A transposed cache makes a column of single elements of each new value vector.
        v = ops.view(ctx, qkv, (1, width, branches), (4, row), 2 * width * 4)
        elements = ops.reshape(ctx, values, 1, values.ne[0] * width, branches)
        elements = ops.set_rows(ctx, elements, v, self.io.ints.view(ctx, "value_rows"))
        size = keys.nb[0]
        keys = ops.view(ctx, keys, (head_dim, columns, heads, branches),
                        (keys.nb[1], head_dim * size, keys.nb[2]))
        values = ops.view(ctx, elements, (columns, head_dim, heads, branches),
                          (values.nb[1], head_dim * values.nb[1], values.nb[2]))
        q = ops.permute(ctx, split_heads(ctx, qkv, 0, heads, Shape(1, branches)), 0, 2, 1, 3)
        return native_attention.attend(ctx, q, keys, values, mask)

    def _write_cache(self, qkv: Tensor, index: int, shape: Shape, first_branch: int) -> None:
        ctx, width = self.ctx, self.config.width
        keys, values = self.state.keys[index], self.state.values[index]
        row = qkv.nb[1]
        extent = (width, shape.n, shape.branches)
        k = ops.view(ctx, qkv, extent, (row, row * shape.n), width * 4)
        v = ops.view(ctx, qkv, extent, (row, row * shape.n), 2 * width * 4)
        self.graph.expand(ops.cpy(ctx, k, ops.view(ctx, keys, extent, offset=first_branch * keys.nb[2])))
        values = ops.view(ctx, values, (shape.n, width, shape.branches), offset=first_branch * values.nb[2])
        self.graph.expand(ops.cpy(ctx, ops.permute(ctx, v, 1, 0, 2, 3), values))

    def _cross_attention(self, x: Tensor, index: int, layer: LayerWeights, n: int) -> Tensor:
        """x with the cross-attention of the conditional branch, its first n columns, added."""
        ctx, config, cross = self.ctx, self.config, self.cross
        assert layer.norm_query is not None and layer.cross_q is not None and layer.cross_out is not None
        assert cross is not None
        dim, heads = config.cross_head_dim, config.cross_heads
        alone = x.ne[1] == n
        conditional = x if alone else ops.view(ctx, x, (config.width, n))
        q = mul_mat(ctx, layer.cross_q, layer_norm(ctx, conditional, layer.norm_query))
        q = ops.permute(ctx, ops.reshape(ctx, q, dim, heads, n, 1), 0, 2, 1, 3)
        keys, values = cross.keys[index], cross.values[index]
        size = keys.nb[0]
        k = ops.view(ctx, keys, (dim, cross.capacity, heads), (keys.nb[1], dim * size))
        mask = self.io.floats.view(ctx, "prior" if index in self.prior_layers else "text_mask")
        out, probs = attend(ctx, q, k, values, mask)
        self.probs.append(probs)
        out = mul_mat(ctx, layer.cross_out, out)
        return ops.add(ctx, x, out) if alone else ops.acc(ctx, x, out)

    def _finish_alignment(self, last: Tensor | None) -> None:
        """Average the probabilities of one query: the only one, or the one that *last* [1, heads] names."""
        ctx = self.ctx
        total: Tensor | None = None
        for index in self.alignment_layers:
            probs = self.probs[index]
            if last is not None:
                probs = ops.get_rows(ctx, probs, last)
            total = probs if total is None else ops.add(ctx, total, probs)
        assert total is not None
        capacity, _, heads, _ = total.ne
        rows = ops.reshape(ctx, total, capacity, heads)
        mean = ops.view(ctx, rows, (capacity, 1))
        for head in range(1, heads):
            mean = ops.add(ctx, mean, ops.view(ctx, rows, (capacity, 1), offset=head * rows.nb[1]))
        self.alignment = ops.scale(ctx, mean, 1.0 / (heads * len(self.alignment_layers)))
