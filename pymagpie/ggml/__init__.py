"""ggml, the way its C API has it, with owners, types and exceptions.

What ggml calls a device, backend, context, tensor, buffer and graph is called so here, and the life cycle stays
visible: build a graph, allocate it, set its inputs, compute, get its outputs. Added are owners that free what they own
once, bounds that are checked before ggml would abort the process, and errors that say what was wrong.

Importing this package loads ggml's native libraries.
"""

from . import ops
from .backend import Backend, check_threads, cpu_features, default_threads, format_bytes
from .bindings import GGML_PYTHON_VERSION, ggml_version
from .context import BF16, DTYPES, F16, F32, I32, I64, Q8_0, Buffer, Context, Tensor, host_copies, type_name
from .device import Device, find_device, list_devices
from .gguf import GGUFFile, TensorInfo
from .graph import Graph

__all__ = [
    "BF16", "DTYPES", "F16", "F32", "GGML_PYTHON_VERSION", "I32", "I64", "Q8_0", "Backend", "Buffer", "Context",
    "Device", "GGUFFile", "Graph", "Tensor", "TensorInfo", "check_threads", "cpu_features", "default_threads",
    "find_device", "format_bytes", "ggml_version", "host_copies", "list_devices", "ops", "type_name"]
