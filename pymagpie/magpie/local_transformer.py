"""The local transformer: the codes of one decoder step, slot after slot, and the choice of each inside the graph.

A slot is one codebook of one stacked frame. Slot 0 sees the decoder's hidden vector, slot k the code of slot k - 1 and,
through a cache, all slots before. With guidance two branches run side by side; being linear, guidance is applied to the
two output vectors before the head instead of to the two logit vectors after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ggml import F32, Context, Graph, Tensor, ops
from .decoder import DecoderState
from .io import StepIO, aligned
from .layers import Shape, attend, feed_forward, layer_norm, split_heads
from .native_matmul import mul_mat
from .weights import Weights


def mix_branches(ctx: Context, x: Tensor, guidance: Tensor) -> Tensor:
    """The guided vector [n] of x [n, branches]: s * conditional + (1 - s) * unconditional; *guidance* [branches]."""
    width, branches = x.ne[0], x.ne[1]
    if branches == 1:
        return x
    weighted = ops.mul(ctx, x, ops.reshape(ctx, guidance, 1, branches))
    return ops.add(ctx, ops.view(ctx, weighted, (width, 1)), ops.view(ctx, weighted, (width, 1), offset=weighted.nb[1]))


def parallel_logits(graph: Graph, weights: Weights, hidden: Tensor, guidance: Tensor) -> Tensor:
    """The guided logits of the parallel head, [vocab, slots]."""
    ctx, config = graph.context, weights.config
    logits = mul_mat(ctx, weights.final_proj, mix_branches(ctx, hidden, guidance))
    return ops.reshape(ctx, ops.add(ctx, logits, weights.final_bias), config.vocab_size, config.slots)


@dataclass
class LocalTransformer:
    """Builds slots into one graph; the caches in *state* carry from slot to slot and from graph to graph."""

    graph: Graph
    weights: Weights
    state: DecoderState
    guidance: Tensor
    exact_gelu: bool

    def first_input(self, hidden: Tensor) -> Tensor:
        """The input of slot 0 from the decoder's hidden vectors [width, branches]."""
        return self._place(hidden, 0)

    def next_input(self, slot: int, code: Tensor) -> Tensor:
        """The input of *slot* from the code of the one before, i32 [1]: both branches see the same."""
        ctx = self.graph.context
        placed = self._place(ops.get_rows(ctx, self.weights.audio_embeddings[slot - 1], code), slot)
        branches = self.state.branches
        if branches == 1:
            return placed
        return ops.repeat(ctx, placed, ops.view(ctx, self.state.local_keys[0], (placed.ne[0], branches)))

    def _place(self, x: Tensor, slot: int) -> Tensor:
        ctx, weights = self.graph.context, self.weights
        if weights.local_in is not None and weights.local_in_bias is not None:
            x = ops.add(ctx, mul_mat(ctx, weights.local_in, x), weights.local_in_bias)
        positions = weights.local_positions
        return ops.add(ctx, x, ops.view(ctx, positions, (positions.ne[0],), offset=slot * positions.nb[1]))

    def output(self, slot: int, x: Tensor) -> Tensor:
        """The guided vector [local width, 1] of *slot*, whose keys and values are added to the cache."""
        ctx = self.graph.context
        for index, layer in enumerate(self.weights.local_layers):
            qkv = mul_mat(ctx, layer.qkv, layer_norm(ctx, x, layer.norm_self))
            attended = self._attention(qkv, index, slot)
            x = ops.add(ctx, x, mul_mat(ctx, layer.self_out, attended))
            x = feed_forward(self.graph, layer, x, self.exact_gelu)
        return mix_branches(ctx, x, self.guidance)

    def logits(self, slot: int, x: Tensor, bias: Tensor) -> Tensor:
        """Logits [vocab, 1] of *slot* from its input; *bias* [vocab] is added."""
        return ops.add(self.graph.context, mul_mat(self.graph.context, self.weights.local_out[slot],
                                                   self.output(slot, x)), bias)

    def _attention(self, qkv: Tensor, index: int, slot: int) -> Tensor:
        ctx, state, config = self.graph.context, self.state, self.weights.config
        heads, width, branches = config.local.heads, config.local.width, state.branches
        shape = Shape(1, branches)
        row = qkv.nb[1]
        keys, values = state.local_keys[index], state.local_values[index]
        k = ops.view(ctx, qkv, (width, 1, branches), (row, row), width * 4)
        v = ops.view(ctx, qkv, (1, width, branches), (4, row), 2 * width * 4)
        self.graph.expand(ops.cpy(ctx, k, ops.view(ctx, keys, (width, 1, branches), offset=slot * keys.nb[1])))
        self.graph.expand(ops.cpy(ctx, v, ops.view(ctx, values, (1, width, branches), offset=slot * 4)))
        if slot == 0:  # attention over one position gives its value
            return ops.cont(ctx, ops.view(ctx, qkv, (width, branches), offset=2 * width * 4))
        head_dim = width // heads
        k = ops.view(ctx, keys, (head_dim, slot + 1, heads, branches), (keys.nb[1], head_dim * 4, keys.nb[2]))
        v = ops.view(ctx, values, (slot + 1, head_dim, heads, branches),
                     (values.nb[1], head_dim * values.nb[1], values.nb[2]))
        q = ops.permute(ctx, split_heads(ctx, qkv, 0, heads, shape), 0, 2, 1, 3)
        out, _ = attend(ctx, q, k, v, None)
        return out


def build_sampling(graph: Graph, io: StepIO, weights: Weights, state: DecoderState, hidden: Tensor, top_k: int | None,
                   exact_gelu: bool) -> None:
    """All slots with their codes chosen in the graph; *top_k* None is greedy.

    Results: ``codes``; ``argmax``, the greedy codes of the parallel head; and for both the number of equals, from which
    the host sees whether a choice was ambiguous (backends break ties differently) or not a number.
    """
    ctx, config = graph.context, weights.config
    vocab, slots = config.vocab_size, config.slots
    guidance = io.floats.view(ctx, "guidance")
    token_mask = io.floats.view(ctx, "token_mask")
    local = LocalTransformer(graph, weights, state, guidance, exact_gelu)
    biases = ops.add(ctx, weights.local_bias, token_mask)
    picker = _TopKPicker(graph, io, vocab, slots, top_k) if top_k is not None else _GreedyPicker(graph)
    x = local.first_input(hidden)
    for slot in range(slots):
        logits = local.logits(slot, x, ops.view(ctx, biases, (vocab,), offset=slot * biases.nb[1]))
        stored = ops.view(ctx, state.slot_logits, (vocab, 1), offset=slot * state.slot_logits.nb[1])
        graph.expand(ops.cpy(ctx, logits, stored))
        if slot + 1 < slots:
            x = local.next_input(slot + 1, picker.pick(slot, logits))
        else:
            picker.pick(slot, logits)
    picker.finish(io, state.slot_logits)
    parallel = ops.add(ctx, parallel_logits(graph, weights, hidden, guidance), token_mask)
    argmax = ops.argmax(ctx, parallel)
    _store(graph, io, "argmax", ops.cast(ctx, argmax, F32))
    _store(graph, io, "argmax_lower", _count_lower(ctx, parallel, argmax))


def sampling_results(slots: int) -> dict[str, int]:
    """The result segments of :func:`build_sampling`."""
    return {"codes": slots, "argmax": slots, "lower": slots, "argmax_lower": slots, "edge": slots}


def ambiguous(io: StepIO, vocab: int, top_k: int | None) -> bool:
    """Whether some choice of the step that *io* holds was not unique, or made among NaN."""
    candidates = vocab if top_k is None else top_k
    result = io.result
    unique = (result["lower"] == 1 - candidates).all() and (result["argmax_lower"] == 1 - vocab).all()
    return not (unique and (top_k is None or (result["edge"] == vocab - top_k).all()))


def _store(graph: Graph, io: StepIO, segment: str, value: Tensor) -> None:
    graph.expand(ops.cpy(graph.context, value, io.result.view(graph.context, segment, value.ne[:2])))


def _count_lower(ctx: Context, values: Tensor, index: Tensor) -> Tensor:
    """Minus the number of values below the chosen one, by row of [n, rows]: 1 - n if it is the only largest."""
    n, rows = values.ne[:2]
    chosen = ops.get_rows(ctx, ops.reshape(ctx, values, 1, n, rows), ops.reshape(ctx, index, 1, rows))
    return ops.sum_rows(ctx, ops.sgn(ctx, ops.sub(ctx, values, ops.reshape(ctx, chosen, 1, rows))))


class _GreedyPicker:
    """The largest logit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def pick(self, slot: int, logits: Tensor) -> Tensor:
        """The code of a slot, i32 [1], from its logits [vocab, 1]."""
        return ops.argmax(self.graph.context, logits)

    def finish(self, io: StepIO, all_logits: Tensor) -> None:
        """Store the codes of all slots, and how unique they were, from their logits [vocab, slots]."""
        codes = ops.argmax(self.graph.context, all_logits)
        _store(self.graph, io, "codes", ops.cast(self.graph.context, codes, F32))
        _store(self.graph, io, "lower", _count_lower(self.graph.context, all_logits, codes))


class _TopKPicker:
    """The largest sum of logit and noise among the k largest logits. Noise is gathered by token id, because devices
    give the k in any order."""

    def __init__(self, graph: Graph, io: StepIO, vocab: int, slots: int, k: int) -> None:
        self.graph, self.vocab, self.slots, self.k = graph, vocab, slots, k
        row = aligned(vocab)
        noise = io.floats.view(graph.context, "noise")
        self.noise = ops.view(graph.context, noise, (1, vocab, slots), (4, row * 4))
        self.ids: Tensor | None = None

    def pick(self, slot: int, logits: Tensor) -> Tensor:
        """As the greedy one does; remembers which tokens were kept."""
        ctx = self.graph.context
        ids = ops.top_k(ctx, ops.reshape(ctx, logits, self.vocab), self.k)
        noise = ops.view(ctx, self.noise, (1, self.vocab), offset=slot * self.noise.nb[2])
        scores = self._scores(ops.reshape(ctx, logits, 1, self.vocab), noise, ids)
        ids = ops.reshape(ctx, ids, self.k, 1)
        self.ids = ids if self.ids is None else ops.concat(ctx, self.ids, ids, 1)
        rank = ops.argmax(ctx, ops.reshape(ctx, scores, self.k, 1))
        return ops.reshape(ctx, ops.get_rows(ctx, ops.reshape(ctx, ids, 1, self.k), rank), 1)

    def _scores(self, logits: Tensor, noise: Tensor, ids: Tensor) -> Tensor:
        ctx = self.graph.context
        return ops.add(ctx, ops.get_rows(ctx, logits, ids), ops.get_rows(ctx, noise, ids))

    def finish(self, io: StepIO, all_logits: Tensor) -> None:
        """As the greedy one does, for the sums; and count what lies below the smallest logit kept."""
        ctx, k, slots = self.graph.context, self.k, self.slots
        assert self.ids is not None
        table = ops.reshape(ctx, all_logits, 1, self.vocab, slots)
        scores = ops.reshape(ctx, self._scores(table, self.noise, self.ids), k, slots)
        ranks = ops.argmax(ctx, scores)
        codes = ops.get_rows(ctx, ops.reshape(ctx, self.ids, 1, k, slots), ops.reshape(ctx, ranks, 1, slots))
        _store(self.graph, io, "codes", ops.cast(ctx, ops.reshape(ctx, codes, slots), F32))
        _store(self.graph, io, "lower", _count_lower(ctx, scores, ranks))
        # Exactly vocab - k logits must lie below the smallest that was kept, or a tie was cut at the edge.
        falling = ops.scale(ctx, ops.get_rows(ctx, table, self.ids), -1.0)
        smallest = ops.get_rows(ctx, falling, ops.reshape(ctx, ops.argmax(ctx, ops.reshape(ctx, falling, k, slots)),
                                                          1, slots))
        below = ops.sub(ctx, ops.scale(ctx, all_logits, -1.0), ops.reshape(ctx, smallest, 1, slots))
        # Vulkan's step of 0 is 1, where other backends give 0; so it never gets to see a 0.
        sign = ops.scale(ctx, ops.sgn(ctx, below), 1.0, -0.5)
        _store(self.graph, io, "edge", ops.sum_rows(ctx, ops.step(ctx, sign)))
