"""Streaming state and graphs: the explicit level, which mirrors ggml's own life cycle.

    state = StreamState(codec)                 # plan, allocate and clear the caches
    graph = init_stream_graph(state, 4)        # build and allocate a graph of 4 frames
    audio = decode_stream(state, graph, codes) # set, compute, get

A :class:`StreamState` owns every cache of one stream in one buffer on the backend, whatever the chunk size, so several
:class:`StreamGraph` of different sizes may serve one stream: a short first chunk, steady chunks, and an exact last
one. A graph points into the memory of the state that it was built for; it records that owner and the owner's
generation, and refuses to run for any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import NonFiniteError, StreamOwnershipError
from ..ggml import F32, Buffer, Context, Graph
from ..native import dequantize

if TYPE_CHECKING:
    from .model import NanoCodec

MAX_GRAPH_FRAMES = 4096
"""The most frames of one graph."""

_CUDA_WARM_RUNS = 3  # ggml captures a CUDA graph at its third unchanged run


class StreamState:
    """The left context of one stream: one context and one backend buffer with all caches."""

    def __init__(self, codec: NanoCodec) -> None:
        """Allocate the caches and clear them.

        Raises :class:`ModelError` when the plan is over the limits (before anything is created), and
        :class:`BackendError` when the memory is not there.
        """
        self.codec = codec
        self.generation = 0
        """Counts the buffers that this state has had; a graph fits the one that it was built for."""
        self.poisoned = False
        """True once a chunk came out NaN or infinite, which is then in the caches too: reset to go on."""
        self.frames = 0
        """Frames decoded since the last reset."""
        self._allocate()

    def _allocate(self) -> None:
        decoder = self.codec.decoder
        decoder.config.check()
        shapes = decoder.cache_shapes()
        context = Context(max(1, len(shapes)))
        try:
            self.caches = {name: context.new_tensor(F32, ne, f"cache.{name}") for name, ne in shapes.items()}
            if not shapes:  # every kernel has one tap: a buffer still marks the state as open
                context.new_tensor(F32, (1,), "cache.none")
            self._buffer = Buffer(context, decoder.backend, "the caches of a stream")
        except BaseException:
            context.close()
            raise
        self.generation += 1
        self._clear()

    def _clear(self) -> None:
        self._buffer.clear()
        self.poisoned = False
        self.frames = 0

    @property
    def closed(self) -> bool:
        return self._buffer.closed

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches on the device."""
        return self._buffer.nbytes

    def reset(self) -> None:
        """Start a new stream: clear the caches on the device. Graphs stay valid. Raises ``ValueError`` when closed."""
        if self.closed:
            raise ValueError("the stream state is closed")
        with self.codec.lock:
            self._clear()

    def reallocate(self) -> None:
        """Give the state a new, cleared buffer. Graphs built before are refused from now on."""
        self.close()
        self._allocate()

    def close(self) -> None:
        """Free the caches. Graphs built for this state are refused from now on."""
        with self.codec.lock:
            self._buffer.close()

    def __enter__(self) -> StreamState:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StreamGraph:
    """A graph of a fixed number of frames, built for one generation of one :class:`StreamState`.

    Make it with :func:`init_stream_graph`.
    """

    def __init__(self, state: StreamState, frames: int) -> None:
        decoder = state.codec.decoder
        self.frames = frames
        self.generation = state.generation
        self.state: StreamState | None = state
        self._decoder = decoder
        self._graph = Graph(decoder.backend, decoder.max_nodes, f"the codec graph of {frames} frames")
        try:
            self._latents, self._audio = decoder.build(self._graph, state.caches, frames)
            self._graph.allocate()
        except BaseException:
            self._graph.close()
            raise

    @property
    def closed(self) -> bool:
        return self._graph.closed

    @property
    def node_count(self) -> int:
        return self._graph.node_count

    @property
    def compute_bytes(self) -> int:
        """Bytes of the compute buffer."""
        return self._graph.compute_bytes

    def check(self, state: StreamState) -> None:
        """Raise :class:`StreamOwnershipError` or ``ValueError`` unless the graph may run for *state* now."""
        if self.closed:
            raise ValueError("the stream graph is closed")
        if self._decoder.closed or state.codec.decoder is not self._decoder:
            raise ValueError("the codec of the stream graph is closed")
        if self.state is not state:
            raise StreamOwnershipError("the stream graph was built for another stream state")
        if state.closed:
            raise StreamOwnershipError("the stream state is closed")
        if self.generation != state.generation:
            raise StreamOwnershipError(f"the stream graph was built for generation {self.generation} of its state, "
                                       f"which is now at {state.generation}")

    def run(self, latents: np.ndarray) -> np.ndarray:
        """Upload, compute, download: the two host copies of a chunk. :func:`decode_stream` guards it."""
        self._latents.set(self._decoder.arrange(latents))
        self._graph.compute()
        return self._audio.get().reshape(-1)

    def close(self) -> None:
        """Free the graph and forget its owner."""
        self._graph.close()
        self.state = None

    def __enter__(self) -> StreamGraph:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_frames(frames: int, what: str = "frames") -> int:
    """*frames* if it is a whole number that one graph can have; ``ValueError`` otherwise."""
    if isinstance(frames, bool) or not isinstance(frames, (int, np.integer)) or not 1 <= frames <= MAX_GRAPH_FRAMES:
        raise ValueError(f"{what} must be a whole number from 1 to {MAX_GRAPH_FRAMES}, not {frames!r}")
    return int(frames)


def init_stream_graph(state: StreamState, frames: int = 4, warm: bool = True) -> StreamGraph:
    """Build and allocate the graph that decodes *frames* frames of *state*'s stream at a time.

    With *warm* and a state that has decoded nothing yet, the graph is run on silence and the caches are cleared, so
    that page faults and a GPU's capture of the graph are off the path of the first chunk.

    Raises ``ValueError`` for a closed state or a number of frames out of range, and as :meth:`Graph.allocate` does.
    """
    frames = check_frames(frames)
    if state.closed:
        raise ValueError("the stream state is closed")
    if state.codec.decoder.closed:
        raise ValueError("the codec is closed")
    with state.codec.lock:
        graph = StreamGraph(state, frames)
        if warm and state.frames == 0 and not state.poisoned:
            silence = np.zeros((frames, state.codec.config.latent_channels), np.float32)
            for _ in range(_CUDA_WARM_RUNS if state.codec.backend.device.family == "cuda" else 1):
                graph.run(silence)
            state._clear()
    return graph


def decode_stream(state: StreamState, graph: StreamGraph, codes: np.ndarray) -> np.ndarray:
    """Decode the next frames of *state*'s stream.

    codes: integers (graph.frames, codebooks), each from 0 to codebook_size - 1.
    Returns float32 (graph.frames * samples_per_frame,) in [-1, 1].

    Raises ``ValueError`` for codes of another shape or out of range; :class:`StreamOwnershipError` or ``ValueError``
    when *graph* does not belong to *state* as it is now; :class:`NonFiniteError` when the audio has NaN or infinity,
    and from then on until the state is reset. Each before any memory is touched, but for the last.
    """
    codec = state.codec
    with codec.lock:
        graph.check(state)
        if state.poisoned:
            raise NonFiniteError("an earlier chunk of this stream was not finite; reset the state to go on")
        codes = codec.check_codes(codes)
        if len(codes) != graph.frames:
            raise ValueError(f"the graph decodes {graph.frames} frames, the codes have {len(codes)}")
        audio = graph.run(dequantize(codes, codec.config.levels))
        state.frames += len(codes)
        # Before the clamp, which would turn NaN into a full-scale sample. The sum of a finite block can overflow only
        # if the block is absurd, so the cheap test comes first.
        if not np.isfinite(audio.sum(dtype=np.float64)) and not np.isfinite(audio).all():
            state.poisoned = True
            raise NonFiniteError(f"the codec produced NaN or infinity within {graph.frames} frames ending at frame "
                                 f"{state.frames}; the model file is damaged or the backend is at fault")
        if codec.config.output_activation == "tanh":
            return np.tanh(audio, out=audio)
        return np.clip(audio, -1.0, 1.0, out=audio)
