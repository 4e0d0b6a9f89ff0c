"""Text-to-speech with NVIDIA MagpieTTS and NanoCodec on ggml: on the CPU, CUDA, Vulkan or Metal, streaming.

The public names are loaded on first use, so ``import pymagpie`` costs next to nothing.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .audio import Audio as Audio
    from .audio import AudioChunk as AudioChunk
    from .magpie import AcousticModel as AcousticModel
    from .nanocodec import NanoCodec as NanoCodec
    from .speech import Magpie as Magpie

_LAZY = {
    "AcousticModel": "magpie", "Audio": "audio", "AudioChunk": "audio", "Magpie": "speech", "NanoCodec": "nanocodec",
    "BackendError": "errors", "CapabilityError": "errors", "DeviceError": "errors", "MagpieError": "errors",
    "ModelError": "errors", "ModelNotFoundError": "errors", "NonFiniteError": "errors",
    "StreamOwnershipError": "errors"}

__all__ = ["__version__", *sorted(_LAZY)]

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
