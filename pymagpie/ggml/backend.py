"""The owner of a ``ggml_backend_t``: one device, its threads, and the calls that move data and compute."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BackendError
from .bindings import ggml
from .device import REDUCE_BARRIER, Device, find_device

log = logging.getLogger(__name__)

MAX_THREADS = 512
"""ggml's own limit (``GGML_MAX_N_THREADS``)."""


def _physical_cores() -> int:
    """Cores that this process may run on, hyper-threads of one core counted once."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
    cores = set()
    for cpu in allowed:
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def _cgroup_quota() -> int:
    """Whole CPUs that the control group allows; a large number when it sets no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period)) if quota != "max" else MAX_THREADS
    except (OSError, ValueError, ZeroDivisionError):
        return MAX_THREADS


def default_threads() -> int:
    """min(8, physical cores, cgroup quota): beyond that, ggml's spinning threads only get in each other's way."""
    return min(8, _physical_cores(), _cgroup_quota())


def check_threads(threads: int | None) -> int:
    """*threads*, or the default for None. Raises ``ValueError`` unless it is an integer from 1 to 512."""
    if threads is None:
        return default_threads()
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be a whole number from 1 to {MAX_THREADS}, not {threads!r}")
    return threads


@functools.cache
def _warn_of_race(device: Device) -> None:
    if device.features().get(REDUCE_BARRIER) != "1":
        log.warning("this build of ggml has a race in CUDA's soft_max: beside other work on %s, speech may differ from "
                    "run to run; `python tools/build_ggml.py --backend cuda` builds one without it", device.name)


class Backend:
    """Owns one ``ggml_backend_t``.

    One backend object must be used by one thread at a time; two objects of one device may work side by side.
    """

    def __init__(self, device: str | Device = "auto", threads: int | None = None) -> None:
        """*threads* counts for the CPU only. Raises as :func:`find_device` and :func:`check_threads` do, and
        :class:`BackendError` when the device cannot be opened."""
        self.threads = check_threads(threads)
        self.device = find_device(device)
        handle = ggml.ggml_backend_dev_init(self.device.handle, None)
        if not handle:
            raise BackendError(f"ggml could not open device {self.device.name}")
        self._handle: Any = handle
        self._freed_late: list[tuple[Callable[[Any], None], Any]] = []
        self._finalizer = weakref.finalize(self, _free_backend, handle, self._freed_late)
        if self.device.is_cpu:
            ggml.ggml_backend_cpu_set_n_threads(handle, self.threads)
        elif self.device.family == "cuda":
            _warn_of_race(self.device)

    @property
    def handle(self) -> Any:
        """ggml's pointer. Raises ``ValueError`` once the backend is closed."""
        if self._handle is None:
            raise ValueError("the backend is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def synchronize(self) -> None:
        """Wait until everything queued on the device is done."""
        ggml.ggml_backend_synchronize(self.handle)

    def supports_op(self, node: Any) -> bool:
        """Whether the device says that it can run *node* (a raw tensor pointer). On the CPU the answer is not to be
        trusted; :mod:`pymagpie.ggml.ops` applies the rules itself."""
        return bool(ggml.ggml_backend_supports_op(self.handle, node))

    @property
    def alignment(self) -> int:
        """Tensors of the device's memory begin at multiples of so many bytes."""
        return ggml.ggml_backend_buft_get_alignment(ggml.ggml_backend_get_default_buffer_type(self.handle))

    def require_memory(self, size: int, what: str) -> None:
        """Raise :class:`BackendError`, stating both figures, when *size* bytes are more than the device has free."""
        free, _total = self.device.memory()
        if free and size > free:
            raise BackendError(f"{what} needs {format_bytes(size)} on {self.device.name}, "
                               f"which has {format_bytes(free)} free")

    def free_memory(self, free: Callable[[Any], None], handle: Any) -> None:
        """Call *free* with *handle*, which frees memory that graphs of this backend may have used.

        Mesa's llvmpipe, at least up to 22.3, still looks at buffers that an earlier graph had bound, and corrupts the
        heap when they are gone. What is on it is freed with the backend.
        """
        if self._handle is not None and self.device.in_software:
            self._freed_late.append((free, handle))
        else:
            free(handle)

    def close(self) -> None:
        """Free the backend. Buffers and graphs made on it must be closed before."""
        if self._handle is not None:
            self._handle = None
            self._finalizer()

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _free_backend(handle: Any, freed_late: list[tuple[Callable[[Any], None], Any]]) -> None:
    ggml.ggml_backend_free(handle)
    for free, memory in freed_late:
        free(memory)


def format_bytes(size: int) -> str:
    """*size* in bytes as a person reads it: ``714.0 KiB``."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def cpu_features() -> dict[str, bool]:
    """The instruction sets and options that this build of ggml's CPU backend was compiled with, by ggml's names."""
    names = ("sse3", "ssse3", "avx", "avx2", "avx512", "f16c", "fma", "neon", "llamafile")
    features = {}
    for name in names:
        query = getattr(ggml, f"ggml_cpu_has_{name}", None)
        if query is not None:
            query.restype = ctypes.c_int
            features[name] = bool(query())
    return features
