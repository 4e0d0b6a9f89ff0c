"""ggml-python, with its defects worked around; the one module that imports it.

Everything else in :mod:`pymagpie.ggml` says ``from .bindings import ggml``. Importing this module loads the native
libraries, so it is imported on first use only.

What is put right here, each documented where it is done:

* libgomp's busy waiting, which makes a loaded machine up to 27 times slower;
* ggml's Vulkan backend rounds f32 operands to f16 (see :mod:`.vulkan`);
* ggml-python 0.0.45 binds a function that its own CUDA build does not export, so ``import ggml`` fails there;
* ggml writes its log to stderr; here its lines go to the Python logger ``pymagpie.ggml``;
* an unknown ggml-python version is refused, because its API is not stable.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from types import ModuleType
from typing import Any

from ..errors import BackendError, CapabilityError
from .vulkan import prepare_environment

GGML_PYTHON_VERSION = "0.0.45"
"""The only ggml-python release that this package is written and tested against."""

logger = logging.getLogger("pymagpie.ggml")

# Read by libgomp when it is loaded, which importing ggml does. A user's own setting is left alone.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


class _MissingSymbol:
    """While active, ``ctypes.CDLL`` answers one absent function with a stand-in that returns False.

    The CUDA build of ggml-python 0.0.45 declares ``ggml_backend_cuda_allreduce_tensor`` although ggml 0.15.3 does not
    export it. We never call it. Where the symbol exists, or in builds without CUDA, nothing changes.
    """

    NAME = "ggml_backend_cuda_allreduce_tensor"

    def __enter__(self) -> None:
        self._original = original = ctypes.CDLL.__getattr__
        stand_in = ctypes.CFUNCTYPE(ctypes.c_bool)(lambda: False)

        def lookup(library: ctypes.CDLL, name: str) -> Any:
            try:
                return original(library, name)
            except AttributeError:
                if name == self.NAME:
                    return stand_in
                raise

        ctypes.CDLL.__getattr__ = lookup  # type: ignore[method-assign]

    def __exit__(self, *exc: object) -> None:
        ctypes.CDLL.__getattr__ = self._original  # type: ignore[method-assign]


def _import_ggml() -> ModuleType:
    prepare_environment()
    try:
        with _MissingSymbol():
            import ggml
    except ImportError as error:
        raise CapabilityError(
            f"ggml-python is not installed ({error}); run: pip install ggml-python=={GGML_PYTHON_VERSION}") from error
    except (RuntimeError, FileNotFoundError, OSError) as error:
        raise BackendError(f"ggml's native libraries cannot be loaded: {error}") from error
    if ggml.__version__ != GGML_PYTHON_VERSION:
        raise CapabilityError(f"ggml-python {ggml.__version__} is installed, but pymagpie needs exactly "
                              f"{GGML_PYTHON_VERSION}; run: pip install ggml-python=={GGML_PYTHON_VERSION}")
    return ggml


ggml: ModuleType = _import_ggml()

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


def _bridge_log() -> Any:
    """Send ggml's log to ``logging``; returns the callback, which must outlive every ggml call."""
    level, pending = logging.INFO, ""

    @ggml.ggml_log_callback
    def callback(ggml_level: int, text: bytes | None, _data: object) -> None:
        # ggml logs in pieces: level 5 continues the line before it.
        nonlocal level, pending
        if ggml_level != 5:
            level = _LEVELS.get(ggml_level, logging.INFO)
        pending += (text or b"").decode("utf-8", "replace")
        *lines, pending = pending.split("\n")
        for line in lines:
            if line.strip():
                logger.log(level, "%s", line.rstrip())

    ggml.ggml_log_set(callback, None)
    # A Python callback must not be reached once the interpreter is being taken down.
    atexit.register(ggml.ggml_log_set, ggml.ggml_log_callback(), None)
    return callback


_log_callback = _bridge_log()


def ggml_version() -> str:
    """The version of the ggml library in use, for example ``0.15.3``."""
    return ggml.ggml_version().decode()
