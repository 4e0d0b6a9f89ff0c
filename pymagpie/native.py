"""Loads the native library (``native/``) and wraps what works on plain arrays.

The library is optional at every moment: ``load()`` returns None where it was not built, is of another version or is
switched off, and each function here then has its numpy version. It is looked for as the package file ``_native.so``
(``_native.dll``), which ``pip install`` and ``pip install -e`` put there, then in ``build/native`` of a source tree
(``cmake -S . -B build/native && cmake --build build/native``).

Environment: ``PYMAGPIE_NATIVE=0`` leaves the library alone; any other value is the path of the library to load.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import CapabilityError

ABI_VERSION = 3
INSTRUCTION_SETS = ("plain", "avx2", "avx512", "neon")

log = logging.getLogger(__name__)


class NativeStatus(NamedTuple):
    """What ``load()`` found.

    ``library`` is cffi's handle or None; ``path`` the file; ``reason`` says why there is no library.
    """

    library: Any
    path: Path | None
    reason: str


def load() -> Any:
    """The native library as a cffi handle, or None (see ``status().reason``)."""
    return status().library


def instruction_sets() -> tuple[str, ...]:
    """Names of the instruction sets that the library was built for and this CPU has; empty without a library."""
    library = load()
    if library is None:
        return ()
    mask = library.pymagpie_instruction_sets()
    return tuple(name for bit, name in enumerate(INSTRUCTION_SETS) if mask >> bit & 1)


def choose_instruction_set(name: str | None = None) -> str:
    """The instruction set to use: *name*, else ``PYMAGPIE_INSTRUCTION_SET``, else the fastest that this CPU has.

    Raises ``ValueError`` naming the ones there are, CapabilityError without a library.
    """
    available = instruction_sets()
    if not available:
        raise CapabilityError(f"native kernels are not available: {status().reason}")
    name = name or os.environ.get("PYMAGPIE_INSTRUCTION_SET") or available[-1]
    if name not in available:
        raise ValueError(f"instruction set {name!r} is not available; this CPU and build have: {', '.join(available)}")
    return name


def kernels(instruction_set: str) -> tuple[Any, int]:
    """The kernels of an available instruction set, for ``pymagpie_op_params``, and their vector width in floats."""
    handle = load().pymagpie_kernels(INSTRUCTION_SETS.index(instruction_set))
    return handle, load().pymagpie_lanes(handle)


@functools.cache
def address(function: str) -> int:
    """The address of one of the library's functions, to be called by ggml."""
    return int(ffi().cast("uintptr_t", getattr(load(), function)))


@functools.cache
def ffi() -> Any:
    """The cffi object that knows the declarations of ``_native.h``."""
    import cffi

    declarations = cffi.FFI()
    declarations.cdef((Path(__file__).parent / "_native.h").read_text(encoding="utf-8"))
    return declarations


@functools.cache
def status() -> NativeStatus:
    """Finds and loads the library once; never raises."""
    chosen = os.environ.get("PYMAGPIE_NATIVE", "")
    if chosen == "0":
        return NativeStatus(None, None, "switched off by PYMAGPIE_NATIVE=0")
    candidates = [Path(chosen)] if chosen else _candidates()
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        return NativeStatus(None, None, f"{candidates[0]} does not exist" if chosen else "not built")
    try:
        library = ffi().dlopen(str(path))
        version = library.pymagpie_abi_version()
    except (OSError, AttributeError, ImportError) as error:
        return _refuse(path, str(error))
    if version != ABI_VERSION:
        return _refuse(path, f"interface version {version}, this package needs {ABI_VERSION}: build it again")
    return NativeStatus(library, path, "")


def dequantize(codes: np.ndarray, levels: tuple[int, ...] | list[int]) -> np.ndarray:
    """FSQ codes to latents: digit ``j`` of a code in the mixed radix ``levels``, as ``(digit - half) / half``.

    ``half`` is ``levels[j] // 2`` and the least significant digit comes first (NeMo's finite scalar quantiser).

    codes: integers (frames, codebooks), each in ``[0, prod(levels))``.
    Returns float32 (frames, codebooks * len(levels)), contiguous; in ggml's order ``ne = [channels, frames]``.
    The native and the numpy version give the same bits. Raises ValueError for codes or levels out of range.
    """
    codes, radix = _checked(codes, levels)
    library = load()
    if library is None:
        return dequantize_numpy(codes, radix)
    latents = np.empty((codes.shape[0], codes.shape[1] * radix.size), np.float32)
    cast = ffi().cast
    library.pymagpie_fsq_dequantize(
        cast("int32_t *", codes.ctypes.data), codes.shape[0], codes.shape[1],
        cast("int32_t *", radix.ctypes.data), radix.size, cast("float *", latents.ctypes.data),
    )
    return latents


def dequantize_numpy(codes: np.ndarray, levels: tuple[int, ...] | list[int] | np.ndarray) -> np.ndarray:
    """The same as ``dequantize`` on numpy alone."""
    codes, radix = _checked(codes, levels)
    base = np.cumprod(np.concatenate(([1], radix[:-1]))).astype(np.int32)
    half = radix // 2
    digits = codes[:, :, None] // base % radix
    latents = (digits - half).astype(np.float32) / half.astype(np.float32)
    return latents.reshape(codes.shape[0], codes.shape[1] * radix.size)


def _checked(codes: np.ndarray, levels: Any) -> tuple[np.ndarray, np.ndarray]:
    sizes = [int(level) for level in levels]
    if not sizes or min(sizes) < 2:
        raise ValueError(f"levels must be one or more integers of at least 2, got {sizes}")
    size = 1
    for level in sizes:
        size *= level
    if size > 2**31 - 1:
        raise ValueError(f"levels {sizes} make {size} codes, more than int32 holds")
    codes = np.asarray(codes)
    if codes.ndim != 2 or not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(f"codes must be integers (frames, codebooks), got {codes.dtype} {codes.shape}")
    if codes.size and (codes.min() < 0 or codes.max() >= size):
        frame, book = np.argwhere((codes < 0) | (codes >= size))[0]
        raise ValueError(f"code {codes[frame, book]} at frame {frame}, codebook {book} is outside 0..{size - 1}")
    return np.ascontiguousarray(codes, np.int32), np.array(sizes, np.int32)


def _candidates() -> list[Path]:
    package = Path(__file__).resolve().parent
    name = "_native.dll" if os.name == "nt" else "_native.so"
    return [package / name, package.parent / "build" / "native" / name]


def _refuse(path: Path, reason: str) -> NativeStatus:
    log.warning("native library %s not used: %s", path, reason)
    return NativeStatus(None, path, reason)
