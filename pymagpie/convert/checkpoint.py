"""The two members of a checkpoint that every converter needs: its configuration and its weights.

``model_config.yaml`` is parsed with a safe YAML loader into plain JSON values; OmegaConf interpolations such as
``${oc.env:HOME}`` stay text. ``model_weights.ckpt`` is loaded by torch with ``weights_only=True``, which refuses
pickled code; it is the only step of the package that needs torch.
"""

from __future__ import annotations

import math
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pymagpie.convert.archive import MAX_ARCHIVE_BYTES, Checkpoint
from pymagpie.errors import CapabilityError, ModelError

if TYPE_CHECKING:
    import torch

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
MAX_CONFIG_BYTES = 1 << 20
MAX_CONFIG_VALUES = 50_000
MAX_CONFIG_DEPTH = 40
# Older ones can be made to run code in spite of weights_only (CVE-2025-32434).
MIN_TORCH = (2, 6)
_INSTALL = 'install it with: pip install "pymagpie[convert]"'


def read_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The model configuration as plain JSON values (dict, list, str, int, float, bool, None).

    Raises:
        ModelError: the member is missing, too large, not YAML, or holds more than plain values.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe loader without dates, which JSON lacks, and with numbers such as 1e-3, as OmegaConf reads them."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
    )

    text = checkpoint.read(CONFIG_NAME, MAX_CONFIG_BYTES)
    where = f"{checkpoint.path}: {CONFIG_NAME}"
    try:
        config = _plain(yaml.load(text.decode("utf-8"), Loader=Loader), [0], 0)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise ModelError(f"{where}: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{where}: a mapping is expected, found {type(config).__name__}")
    return config


def _plain(value: Any, count: list[int], depth: int) -> Any:
    """`value` with string keys only; bounded, because YAML aliases can make a small file expand without end."""
    count[0] += 1
    if count[0] > MAX_CONFIG_VALUES or depth > MAX_CONFIG_DEPTH:
        raise ValueError(f"more than {MAX_CONFIG_VALUES} values or {MAX_CONFIG_DEPTH} levels")
    if isinstance(value, dict):
        return {str(key): _plain(item, count, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, count, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"a value of type {type(value).__name__} is not allowed")


def read_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The state dict, name to CPU tensor.

    Raises:
        CapabilityError: torch is not installed, or too old to load weights safely.
        ModelError: the member is missing, is not a zip-format torch checkpoint, holds anything but tensors, or its
            tensors claim more memory than the file holds.
    """
    size = checkpoint.size(WEIGHTS_NAME)
    try:
        import torch
    except ImportError as error:
        raise CapabilityError(f"reading checkpoint weights needs torch; {_INSTALL}") from error
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < MIN_TORCH:
        raise CapabilityError(f"torch {torch.__version__} loads untrusted weights unsafely, 2.6 is needed; {_INSTALL}")

    where = f"{checkpoint.path}: {WEIGHTS_NAME}"
    try:
        with checkpoint.open(WEIGHTS_NAME, MAX_ARCHIVE_BYTES) as stream:
            _check_zip(stream, size, where)
            # On the meta device torch reads the pickle alone: names, shapes and types come before any memory.
            _check_tensors(torch.load(stream, map_location="meta", weights_only=True), size, where)
            stream.seek(0)
            return dict(torch.load(stream, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        raise ModelError(f"{where}: holds more than weights, which is refused: {_first_line(error)}") from error
    except (
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        AssertionError,
        OverflowError,
        EOFError,
        OSError,
        MemoryError,
        RecursionError,
        zipfile.BadZipFile,
        NotImplementedError,
    ) as error:
        raise ModelError(f"{where}: not a readable torch checkpoint: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _check_zip(stream: BinaryIO, size: int, where: str) -> None:
    """Refuse the legacy (pure pickle) format, whose sizes cannot be checked, and compressed records."""
    if not zipfile.is_zipfile(stream):
        raise ModelError(f"{where}: not a zip-format torch checkpoint (torch 1.6 or newer writes that)")
    with zipfile.ZipFile(stream) as archive:
        records = archive.infolist()
    # torch stores its records plainly; a compressed one could unpack to anything.
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise ModelError(f"{where}: compressed records are not allowed")
    if sum(record.file_size for record in records) > size:
        raise ModelError(f"{where}: its records claim more than the file's {size} bytes")
    stream.seek(0)


def _check_tensors(state: Any, size: int, where: str) -> None:
    """Check a state dict on the meta device: plain dense tensors, not larger than the file together."""
    import torch

    if not isinstance(state, dict):
        raise ModelError(f"{where}: a state dict is expected, found {type(state).__name__}")
    total = 0
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ModelError(f"{where}: entry {str(name)[:100]!r} is not a tensor")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ModelError(f"{where}: tensor {name!r} is not a dense one")
        total += tensor.numel() * tensor.element_size()
        if total > size:
            raise ModelError(f"{where}: its tensors claim more than the file's {size} bytes (at {name!r})")


def to_numpy(name: str, tensor: torch.Tensor) -> np.ndarray:
    """`tensor` as a contiguous array: float32 for floating point types, int32 for integers.

    Raises ModelError when a value is not finite, or an integer does not fit, or the type is neither.
    """
    import torch

    if tensor.is_floating_point():
        array = np.ascontiguousarray(tensor.detach().to(torch.float32).numpy())
        if not np.isfinite(array).all():
            raise ModelError(f"tensor {name!r} holds NaN or infinity")
        return array.reshape(tuple(tensor.shape))
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ModelError(f"tensor {name!r} has type {tensor.dtype}, a real or integer type is needed")
    wide = tensor.detach().to(torch.int64).numpy()
    if wide.size and (wide.min() < -(2**31) or wide.max() >= 2**31):
        raise ModelError(f"tensor {name!r} holds integers outside 32 bits")
    return np.ascontiguousarray(wide.astype(np.int32)).reshape(tuple(tensor.shape))


def require_shapes(
    shapes: Mapping[str, tuple[int, ...]], expected: Iterable[tuple[str, tuple[int, ...]]], kind: str
) -> None:
    """Check that `shapes` has every tensor of `expected` in the expected (torch order) shape.

    Raises ModelError naming the first missing ones, or the first of another shape with both shapes.
    """
    expected = list(expected)
    missing = [name for name, _ in expected if name not in shapes]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(f"the {kind} checkpoint lacks {', '.join(missing[:3])}{more}")
    for name, shape in expected:
        if shapes[name] != shape:
            raise ModelError(f"tensor {name!r} has shape {shapes[name]}, the configuration asks for {shape}")
