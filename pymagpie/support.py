"""Which of our graphs a device can run: each is built from a tiny random model, and the device asked about every node.

Nothing is computed. The graphs are those of real models in all but size, so this tells of ops and types that a build of
ggml lacks on a device; the sizes of a real model are asked about when its graphs are allocated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .errors import MagpieError
from .ggml import Graph, find_device
from .ggml.device import Device
from .magpie import AcousticModel
from .magpie.stages import Stage, Stages
from .nanocodec import NanoCodec, StreamState
from .nanocodec.model import OFFLINE_FRAMES
from .synthetic import write_magpie, write_nanocodec

OUTTYPES = ("f32", "f16")
"""Weight types of the models asked about."""

# As the public codec, in fewer and smaller stages: three stacks, upsamplers that are grouped.
_CODEC: dict[str, Any] = {"base_channels": 56, "up_sample_rates": (4, 2), "resblock_kernel_sizes": (3, 7, 11),
                          "resblock_dilation_sizes": (1, 3)}
_TEXT = 48  # tokens
_COLUMNS = 128
_TOP_K = 80
_STREAM_FRAMES = 4


@dataclass
class GraphSupport:
    """One of our graphs on one device."""

    graph: str
    """For example ``codec streaming``, ``encoder`` or ``step, greedy``."""
    weights: str
    """``f32`` or ``f16``."""
    nodes: int
    unsupported: list[str] = field(default_factory=list)
    """One line for each node that the device lacks; where the graph could not even be built, the reason."""

    @property
    def supported(self) -> bool:
        return not self.unsupported


def graph_support(device: str | Device, outtypes: tuple[str, ...] = OUTTYPES) -> list[GraphSupport]:
    """Every graph of codec and acoustic model on *device*, for models of each of *outtypes*.

    Raises as :func:`find_device` does, and :class:`BackendError` when the device cannot be opened.
    """
    found = []
    for outtype in outtypes:
        with ExitStack() as stack:
            for name, build in graph_builders(find_device(device), outtype, stack):
                try:
                    with build() as graph:
                        found.append(GraphSupport(name, outtype, graph.node_count, graph.unsupported()))
                except MagpieError as error:
                    found.append(GraphSupport(name, outtype, 0, [str(error)]))
    return found


def graph_builders(device: Device, outtype: str, stack: ExitStack,
                   kernels: str = "auto") -> Iterator[tuple[str, Callable[[], Graph]]]:
    """The name of every graph and what builds it on *device*, not allocated; *stack* comes to own the models.
    *kernels* as for :meth:`NanoCodec.load`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    path = write_nanocodec(folder / "codec.gguf", outtype=outtype, **_CODEC)
    codec = stack.enter_context(NanoCodec.load(path, device, 1, kernels))
    state = stack.enter_context(StreamState(codec))
    for name, frames in (("codec streaming", _STREAM_FRAMES), ("codec offline", OFFLINE_FRAMES)):
        yield name, partial(_codec_graph, codec, state, frames)
    path = write_magpie(folder / "magpie.gguf", size="tiny", outtype=outtype)
    model = stack.enter_context(AcousticModel.load(path, device, 1))
    cross = model.encoder.cross_cache(_TEXT)
    yield "encoder", partial(model.encoder.build_encoder, _TEXT)
    yield "cross-attention projection", partial(model.encoder.build_projection, _TEXT, cross)
    layers = model.config.inference
    stages = stack.enter_context(closing(Stages(
        model.weights, model.backend, branches=2, columns=_COLUMNS, exact_gelu=model.exact_gelu,
        alignment_layers=layers.estimate_alignment_from_layers, prior_layers=layers.apply_prior_to_layers,
        column_bucket=_COLUMNS)))
    for name, build in stages.builders(cross, _TOP_K).items():
        yield name, partial(_stage_graph, build, stack)


def _codec_graph(codec: NanoCodec, state: StreamState, frames: int) -> Graph:
    graph = Graph(codec.backend, codec.decoder.max_nodes)
    try:
        codec.decoder.build(graph, state.caches, frames)
    except BaseException:
        graph.close()
        raise
    return graph


def _stage_graph(build: Callable[[], Stage], stack: ExitStack) -> Graph:
    stage = build()
    stack.callback(stage.close)
    return stage.graph
