"""What ggml's Vulkan backend leaves to its caller: a device number that does not exist ends the process.

It throws a C++ exception through C for a bad entry of ``GGML_VK_VISIBLE_DEVICES``, so the list is checked here first,
and the Vulkan loader is asked how many devices there are.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

VISIBLE_DEVICES = "GGML_VK_VISIBLE_DEVICES"
DISABLE_F16 = "GGML_VK_DISABLE_F16"

_NUMBERS = re.compile(r"\d{1,4}(,\d{1,4})*")
_LOADERS = {"win32": ("vulkan-1.dll",), "darwin": ("libvulkan.1.dylib", "libMoltenVK.dylib")}


class _InstanceCreateInfo(ctypes.Structure):
    """``VkInstanceCreateInfo`` without layers and extensions."""

    _fields_ = [("sType", ctypes.c_int), ("pNext", ctypes.c_void_p), ("flags", ctypes.c_uint32),
                ("pApplicationInfo", ctypes.c_void_p), ("enabledLayerCount", ctypes.c_uint32),
                ("ppEnabledLayerNames", ctypes.c_void_p), ("enabledExtensionCount", ctypes.c_uint32),
                ("ppEnabledExtensionNames", ctypes.c_void_p)]


def prepare_environment() -> None:
    """Check the form of ``GGML_VK_VISIBLE_DEVICES`` and choose full precision; before ggml is loaded.

    On a GPU with f16 arithmetic ggml rounds the operands of a matrix product to f16, f32 ones too, unless the product
    has at most 8 columns. An f32 codec falls to 58 dB that way, and a chunk's samples depend on its size. Hence
    ``GGML_VK_DISABLE_F16`` is set; a user who prefers speed sets it to 0 (ggml itself would take any value for yes).

    Raises ``ValueError``.
    """
    visible = os.environ.get(VISIBLE_DEVICES)
    if visible and not _NUMBERS.fullmatch(visible):
        raise ValueError(f"{VISIBLE_DEVICES} is {visible!r}; use device numbers like 0,1")
    if os.environ.setdefault(DISABLE_F16, "1") == "0":
        del os.environ[DISABLE_F16]


def check_visible_devices(library_folder: Path) -> None:
    """Raise ``ValueError`` when ``GGML_VK_VISIBLE_DEVICES`` names a device that the Vulkan loader does not know.

    Nothing is asked where the variable is not set, this build of ggml (its libraries are in *library_folder*) has no
    Vulkan backend, or there is no loader.
    """
    visible = os.environ.get(VISIBLE_DEVICES)
    if not visible or not any(library_folder.glob("*ggml-vulkan*")):
        return
    count = physical_device_count()
    if count is not None and max(map(int, visible.split(","))) >= count:
        found = f"devices 0 to {count - 1}" if count > 1 else "device 0" if count else "no device"
        raise ValueError(f"{VISIBLE_DEVICES} is {visible}, but Vulkan has {found} here")


def physical_device_count() -> int | None:
    """How many devices the Vulkan loader has; None where there is no loader or it gives no answer."""
    for name in _LOADERS.get(sys.platform, ("libvulkan.so.1", "libvulkan.so")):
        try:
            loader = ctypes.CDLL(name)
        except OSError:
            continue
        break
    else:
        return None
    instance, count = ctypes.c_void_p(), ctypes.c_uint32()
    info = _InstanceCreateInfo(sType=1)
    if loader.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)):
        return None
    try:
        failed = loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        return None if failed else count.value
    finally:
        loader.vkDestroyInstance(instance, None)
