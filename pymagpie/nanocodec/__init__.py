"""NanoCodec: frames of codes to audio.

:class:`NanoCodec` is the short way. The explicit level below it mirrors ggml: :class:`StreamState` owns the caches,
:class:`StreamGraph` one graph, and :func:`init_stream_graph` and :func:`decode_stream` are the steps between.
"""

from .config import MAX_CACHES, CacheSpec, CodecConfig
from .model import OFFLINE_FRAMES, NanoCodec
from .stream import StreamGraph, StreamState, decode_stream, init_stream_graph

__all__ = ["MAX_CACHES", "OFFLINE_FRAMES", "CacheSpec", "CodecConfig", "NanoCodec", "StreamGraph", "StreamState",
           "decode_stream", "init_stream_graph"]
