"""The graphs of a decoder step: made once for each size, then kept and only fed with data.

========  ==========================================================================================================
trunk     ``prefill``: context and BOS, filling the cache. ``blank``: the same of the unconditional branch, once.
          ``step``: one position against a bucket of cache columns. ``sequence``: the whole prefix, in reference mode.
tail      ``plain``: hidden vectors stay on the device, parallel logits and alignment come back, and the codes are
          chosen on the host with one small graph a slot. Otherwise the local transformer, the choice of codes and both
          EOS streams are inside the same graph, with one read-back; the tail is then named by the number of tokens
          that sampling keeps, or None for greedy.
========  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..ggml import Backend, Device, ops
from .config import MagpieConfig
from .decoder import DecoderState, Trunk
from .encoder import CrossCache
from .io import StepIO, aligned
from .layers import ROW_MULTIPLES, StageGraph
from .local_transformer import LocalTransformer, build_sampling, parallel_logits, sampling_results
from .weights import Weights

Tail = int | None | Literal["plain"]


def default_column_bucket(device: Device) -> int:
    """What the cache columns that a step attends to are rounded up to a multiple of: on a GPU, columns cost less than
    the making of another graph."""
    return 128 if device.is_cpu or device.in_software else 512


@dataclass
class Stage:
    """A graph with its inputs and results."""

    graph: StageGraph
    io: StepIO

    def close(self) -> None:
        self.graph.close()
        self.io.close()


class Stages:
    """Owns the caches of one number of guidance branches, and all graphs that work on them."""

    def __init__(self, weights: Weights, backend: Backend, *, branches: int, columns: int, exact_gelu: bool,
                 alignment_layers: tuple[int, ...], prior_layers: tuple[int, ...], column_bucket: int) -> None:
        self.weights, self.backend, self.exact_gelu = weights, backend, exact_gelu
        self.config: MagpieConfig = weights.config
        self.alignment_layers, self.prior_layers = alignment_layers, prior_layers
        self.column_bucket = column_bucket
        self.state = DecoderState(weights, backend, branches, columns)
        self.prefill_frames = self._filled(1, columns - self.config.context_frames)
        """Groups of codes that a pre-fill has room for: one, and where the device wants it, masked ones behind."""
        self.built: dict[Hashable, Stage] = {}

    def step(self, cross: CrossCache, index: int, tail: Tail) -> Stage:
        """The graph of step *index* of a window; the first is the pre-fill."""
        if index == 0:
            return self._stage(("prefill", cross.capacity, tail), partial(self._build_prefill, cross, tail))
        used = self.config.context_frames + index + 1
        columns = min(-(-used // self.column_bucket) * self.column_bucket, self.state.columns)
        return self._stage(("step", cross.capacity, columns, tail), partial(self._build_step, cross, columns, tail))

    def sequence(self, cross: CrossCache, frames: int) -> tuple[Stage, int]:
        """The graph of the whole prefix for *frames* groups of codes, and how many it has room for."""
        limit = self.config.decoder.positions - self.config.context_frames
        bucket = self._filled(min(-(-frames // self.column_bucket) * self.column_bucket, limit), limit)
        return self._stage(("sequence", cross.capacity, bucket), partial(self.build_sequence, cross, bucket)), bucket

    def blank(self) -> Stage:
        """The pre-fill of the unconditional branch."""
        return self._stage("blank", self._build_blank)

    def slot(self, slot: int) -> Stage:
        """The logits of one slot, from the code before and the local transformer's cache."""
        return self._stage(("slot", slot), partial(self._build_slot, slot))

    def builders(self, cross: CrossCache, top_k: int) -> dict[str, Callable[[], Stage]]:
        """What builds each kind of graph, by name, none of them allocated; *top_k* for those that sample."""
        found: dict[str, Callable[[], Stage]] = {"blank prefill": self._build_blank} if self.state.branches > 1 else {}
        tails: dict[str, Tail] = {"greedy": None, "top-k": top_k, "codes on the host": "plain"}
        for name, tail in tails.items():
            found[f"prefill, {name}"] = partial(self._build_prefill, cross, tail)
            found[f"step, {name}"] = partial(self._build_step, cross, self.state.columns, tail)
        found["slot"] = partial(self._build_slot, self.config.slots - 1)
        found["sequence"] = partial(self.build_sequence, cross, 8)
        return found

    def close(self) -> None:
        for stage in self.built.values():
            stage.close()
        self.built.clear()
        self.state.close()

    def _filled(self, frames: int, limit: int) -> int:
        """*frames*, at most *limit*, with those that fill a sequence up to the multiple that the device wants."""
        rows = self.config.context_frames + frames
        return min(frames + -rows % ROW_MULTIPLES.get(self.backend.device.family, 1), limit)

    def _stage(self, key: Hashable, build: Callable[[], Stage]) -> Stage:
        stage = self.built.get(key)
        if stage is None:
            stage = build()
            try:
                stage.graph.allocate()
            except BaseException:
                stage.close()
                raise
            self.built[key] = stage
        return stage

    def _io(self, cross: CrossCache, ints: dict[str, int], mask: int, tail: Tail) -> StepIO:
        config = self.config
        floats = {"self_mask": mask, "text_mask": cross.capacity, "prior": cross.capacity,
                  "guidance": self.state.branches}
        result = {"alignment": cross.capacity}
        if tail == "plain":
            result["parallel"] = config.slots * config.vocab_size
        else:
            floats["token_mask"] = config.vocab_size
            result.update(sampling_results(config.slots))
            if tail is not None:
                floats["noise"] = config.slots * aligned(config.vocab_size)
        return StepIO(self.backend, ints, floats, result)

    def _trunk(self, graph: StageGraph, io: StepIO, cross: CrossCache | None) -> Trunk:
        return Trunk(graph, io, self.weights, self.state, cross, self.exact_gelu, self.alignment_layers,
                     self.prior_layers)

    def _max_nodes(self) -> int:
        config = self.config
        return 512 + 64 * config.decoder.layers + config.slots * (64 + 48 * config.local.layers)

    def _build_step(self, cross: CrossCache, columns: int, tail: Tail) -> Stage:
        ints = {f"code{slot}": 1 for slot in range(self.config.slots)}
        ints.update(position=1, value_rows=self.config.width)
        io = self._io(cross, ints, columns, tail)
        graph = StageGraph(self.backend, self._max_nodes(), f"decoder step ({columns} columns)")
        trunk = self._trunk(graph, io, cross)
        trunk.build_step(columns)
        return self._finish(graph, io, trunk, tail)

    def _sequence_ints(self, frames: int) -> dict[str, int]:
        ints = {f"code{slot}": frames for slot in range(self.config.slots)}
        return {**ints, "voice": 1, "last": max(self.state.branches, self.config.cross_heads)}

    def build_sequence(self, cross: CrossCache, frames: int, *, every_position: bool = False) -> Stage:
        """Reference mode: the whole prefix of all branches. *every_position* keeps hidden vectors and cross-attention
        of all layers and positions as graph outputs; the caller owns and allocates such a graph."""
        io = self._io(cross, self._sequence_ints(frames), (self.config.context_frames + frames) ** 2, "plain")
        graph = StageGraph(self.backend, self._max_nodes(), f"decoder sequence ({frames} frames)")
        trunk = self._trunk(graph, io, cross)
        trunk.build_sequence(frames, range(self.state.branches), write_cache=False, every_position=every_position)
        return self._finish(graph, io, trunk, "plain")

    def _build_prefill(self, cross: CrossCache, tail: Tail) -> Stage:
        """Context and BOS of the conditional branch; the other's hidden vector is at hand."""
        frames = self.prefill_frames
        io = self._io(cross, self._sequence_ints(frames), (self.config.context_frames + frames) ** 2, tail)
        graph = StageGraph(self.backend, self._max_nodes(), "decoder pre-fill")
        trunk = self._trunk(graph, io, cross)
        trunk.build_sequence(frames, range(1), write_cache=True)
        if self.state.branches > 1:
            trunk.hidden = ops.concat(graph.context, trunk.hidden, self.state.blank_hidden, 1)
        return self._finish(graph, io, trunk, tail)

    def _build_blank(self) -> Stage:
        frames = self.prefill_frames
        mask = (self.config.context_frames + frames) ** 2
        io = StepIO(self.backend, self._sequence_ints(frames), {"self_mask": mask}, {"-": 1})
        graph = StageGraph(self.backend, self._max_nodes(), "decoder pre-fill, unconditional")
        trunk = self._trunk(graph, io, None)
        trunk.build_sequence(frames, range(1, 2), write_cache=True)
        graph.expand(ops.cpy(graph.context, trunk.hidden, self.state.blank_hidden))
        return Stage(graph, io)

    def _finish(self, graph: StageGraph, io: StepIO, trunk: Trunk, tail: Tail) -> Stage:
        ctx, hidden = graph.context, trunk.hidden
        graph.expand(ops.cpy(ctx, trunk.alignment, io.result.view(ctx, "alignment", trunk.alignment.ne[:2])))
        if tail == "plain":
            logits = parallel_logits(graph, self.weights, hidden, io.floats.view(ctx, "guidance"))
            graph.expand(ops.cpy(ctx, logits, io.result.view(ctx, "parallel", logits.ne[:2])))
            graph.expand(ops.cpy(ctx, hidden, self.state.hidden))
        else:
            assert tail is None or isinstance(tail, int)
            build_sampling(graph, io, self.weights, self.state, hidden, tail, self.exact_gelu)
        return Stage(graph, io)

    def _build_slot(self, slot: int) -> Stage:
        config = self.config
        io = StepIO(self.backend, {"code": 1}, {"guidance": self.state.branches}, {"logits": config.vocab_size})
        graph = StageGraph(self.backend, 64 + 48 * config.local.layers, f"local transformer slot {slot}")
        ctx = graph.context
        local = LocalTransformer(graph, self.weights, self.state, io.floats.view(ctx, "guidance"), self.exact_gelu)
        x = local.next_input(slot, io.ints.view(ctx, "code")) if slot else local.first_input(self.state.hidden)
        bias = ops.view(ctx, self.weights.local_bias, (config.vocab_size,), offset=slot * config.vocab_size * 4)
        logits = local.logits(slot, x, bias)
        graph.expand(ops.cpy(ctx, logits, io.result.view(ctx, "logits", (config.vocab_size, 1))))
        return Stage(graph, io)
