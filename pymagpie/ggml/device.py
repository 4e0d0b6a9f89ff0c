"""Devices as ggml lists them, and how a user names one.

Names are ggml's own (``CPU``, ``CUDA0``, ``Vulkan0``, ``Metal``); ``cpu``, ``cuda``, ``cuda:1``, ``vulkan``, ``metal``,
``gpu`` and ``auto`` are accepted too, in any case. A device that is missing is an error that lists what there is:
there is no silent fall-back to the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DeviceError
from .bindings import ggml
from .vulkan import check_visible_devices

_TYPES = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}
_FAMILIES = ("cpu", "cuda", "vulkan", "metal", "rocm", "sycl", "opencl", "cann", "musa", "webgpu")
_ALIASES = {"mtl": "metal", "hip": "rocm"}
REDUCE_BARRIER = "BLOCK_REDUCE_BARRIER"
"""The feature by which a CUDA build of ours tells that its soft_max is free of a race (tools/build_ggml.py)."""


class _Feature(ctypes.Structure):
    """``ggml_backend_feature``."""

    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


@dataclass(frozen=True)
class Device:
    """One device of this machine that ggml can compute on."""

    name: str
    """ggml's name, for example ``CPU`` or ``CUDA0``."""
    description: str
    """The maker's name of the hardware."""
    type: str
    """``cpu``, ``gpu``, ``igpu`` or ``accel``."""
    handle: int
    """ggml's ``ggml_backend_dev_t``; valid for the life of the process."""

    @property
    def family(self) -> str:
        """The backend that serves it: ``cpu``, ``cuda``, ``vulkan``, ``metal`` ..."""
        stem = re.sub(r"\d+$", "", self.name).lower()
        return _ALIASES.get(stem, stem)

    @property
    def is_cpu(self) -> bool:
        return self.type == "cpu"

    @property
    def in_software(self) -> bool:
        """Whether the CPU stands in for a GPU: Mesa's llvmpipe."""
        return self.description.startswith("llvmpipe")

    def memory(self) -> tuple[int, int]:
        """Free and total memory in bytes, asked anew at each call."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml.ggml_backend_dev_memory(self.handle, ctypes.byref(free), ctypes.byref(total))
        if self.is_cpu and (available := _host_memory_available()) is not None:
            return min(available, total.value) if total.value else available, total.value
        return free.value, total.value

    def features(self) -> dict[str, str]:
        """What its backend was built with and found, by ggml's names and as ggml says it: ``AVX2``, ``LLAMAFILE``,
        ``USE_GRAPHS`` (CUDA graphs) ...; a backend that says nothing gives an empty dictionary."""
        registry = ggml.ggml_backend_dev_backend_reg(self.handle)
        query = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_get_features")
        if not query:
            return {}
        features = ctypes.CFUNCTYPE(ctypes.POINTER(_Feature), ctypes.c_void_p)(query)(registry)
        found, index = {}, 0
        while features[index].name:
            found[features[index].name.decode()] = (features[index].value or b"").decode()
            index += 1
        return found

    def __str__(self) -> str:
        return self.name


def _host_memory_available() -> int | None:
    """Bytes that the kernel would give us now, cgroup limit included; ggml reports the installed memory instead."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return available


@functools.cache
def _devices() -> tuple[Device, ...]:
    # Builds whose backends are separate libraries find them beside ggml's own, not beside Python's executable.
    library_folder = Path(str(ggml.__file__)).parent / "lib"
    check_visible_devices(library_folder)
    ggml.ggml_backend_load_all_from_path(str(library_folder).encode())
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        handle: Any = ggml.ggml_backend_dev_get(index)
        found.append(Device(
            name=ggml.ggml_backend_dev_name(handle).decode(),
            description=(ggml.ggml_backend_dev_description(handle) or b"").decode("utf-8", "replace").strip(),
            type=_TYPES.get(ggml.ggml_backend_dev_type(handle), "accel"),
            handle=handle))
    return tuple(found)


def list_devices() -> list[Device]:
    """Every device that this build of ggml sees on this machine."""
    return list(_devices())


def find_device(name: str | Device = "auto") -> Device:
    """The device that a user means by *name*.

    ``auto`` is the first discrete GPU, else the first integrated one, else the CPU; ``gpu`` is the same without the
    CPU; ``cuda`` is the first of its family and ``cuda:1`` the second; anything else is ggml's own name.

    Raises ``ValueError`` for a name of no known form and :class:`DeviceError` for one that this machine or this build
    of ggml lacks; both list the devices there are.
    """
    if isinstance(name, Device):
        return name
    if not isinstance(name, str):
        raise ValueError(f"device must be a name, not {type(name).__name__}")
    wanted = name.strip().lower()
    devices = _devices()
    listed = ", ".join(device.name for device in devices)
    if wanted in ("auto", "gpu"):
        order = ("gpu", "igpu") + (("cpu",) if wanted == "auto" else ())
        for kind in order:
            for device in devices:
                if device.type == kind:
                    return device
        raise DeviceError(f"no GPU in this build of ggml (devices: {listed}); tools/build_ggml.py builds one")
    for device in devices:
        if device.name.lower() == wanted:
            return device
    match = re.fullmatch(r"([a-z]+):?(\d*)", wanted)
    family = _ALIASES.get(match[1], match[1]) if match else ""
    if match is None or family not in _FAMILIES:
        raise ValueError(f"unknown device {name!r}; use auto, gpu, a backend like cpu, cuda, cuda:1, vulkan or metal, "
                         f"or one of: {listed}")
    siblings = [device for device in devices if device.family == family]
    if not siblings:
        raise DeviceError(f"device {name!r} is not in this build of ggml (devices: {listed}); "
                          f"tools/build_ggml.py --backend {family} builds it")
    index = int(match[2] or 0)
    if index >= len(siblings):
        raise DeviceError(f"device {name!r} does not exist; there are {len(siblings)} of {family}: "
                          f"{', '.join(device.name for device in siblings)}")
    return siblings[index]
