"""Acoustic GGUF files for tests: a golden one with changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from pymagpie.ggml import GGUFFile

QUANTISED = {"f16": GGMLQuantizationType.F16, "q8_0": GGMLQuantizationType.Q8_0}


def rewrite(source: Path, target: Path, *, metadata: Mapping[str, Any] | None = None,
            tensors: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None = None,
            outtype: str = "f32") -> Path:
    """Copy *source* to *target* with changed *metadata* (None removes a key) and each tensor named in *tensors* passed
    through its function (None removes it); *outtype* converts the matrices."""
    changes = dict(metadata or {})
    with GGUFFile.open(source) as file:
        writer = GGUFWriter(target, file.metadata["general.architecture"])
        for key, value in {**file.metadata, **changes}.items():
            if value is not None and key != "general.architecture":
                _add(writer, key, value)
        for name in file.tensors:
            data = file.read(name)
            if tensors and name in tensors:
                changed = tensors[name](data)
                if changed is None:
                    continue
                data = changed
            kind = QUANTISED.get(outtype)
            if kind is not None and data.ndim == 2 and data.dtype == np.float32 and data.shape[-1] % 32 == 0:
                writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, np.ascontiguousarray(data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
