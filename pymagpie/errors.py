"""The errors that pymagpie raises besides ``ValueError``.

``ValueError`` means that an argument was wrong; the classes here mean that the model, the machine or the backend was.
Each message is one line that names what was wrong and what is allowed.
"""

from __future__ import annotations


class MagpieError(Exception):
    """Base class of every fault that is not a wrong argument."""


class ModelError(MagpieError):
    """A model file cannot be used: damaged, of another kind, or of a topology outside our limits."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """The model file does not exist."""


class CapabilityError(MagpieError):
    """This installation lacks an optional package or feature; the message says what to install."""


class DeviceError(CapabilityError):
    """The requested device is not present in this build or on this machine; the message lists what is."""


class BackendError(MagpieError):
    """ggml could not allocate or compute."""


class NonFiniteError(BackendError):
    """A computation produced NaN or infinity."""


class StreamOwnershipError(MagpieError):
    """A graph was used with a stream state, a generation of it, or a backend that it was not built for."""
