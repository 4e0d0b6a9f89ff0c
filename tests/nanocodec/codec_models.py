"""Tiny NanoCodec files for the codec's tests: odd topologies and damaged copies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

TINY = dict(base_channels=8, up_sample_rates=(2, 2), resblock_kernel_sizes=(3,), resblock_dilation_sizes=(1,),
            num_levels=(4, 3), num_codebooks=2, outtype="f32")
SMALL = dict(base_channels=8, up_sample_rates=(2, 2), resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=(1, 2))


@dataclasses.dataclass(frozen=True)
class Utterance:
    """A golden utterance: codes (frames, 8) and audio (frames * 1024,), computed in float64."""

    codes: np.ndarray
    latents: np.ndarray
    audio: np.ndarray


def copy_gguf(source: Path, target: Path, *, replace: dict[str, np.ndarray] | None = None, drop: tuple[str, ...] = (),
              keys: dict[str, object] | None = None) -> Path:
    """A copy of a GGUF with tensors replaced or dropped and metadata values changed."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.get_field("general.architecture").contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or (keys or {}).get(name, 0) is None:
            continue
        kind = field.types[0]
        element = field.types[1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, (keys or {}).get(name, field.contents()), kind, element)
    for tensor in reader.tensors:
        if tensor.name in drop:
            continue
        data = (replace or {}).get(tensor.name, np.array(tensor.data))
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def snr(reference: np.ndarray, signal: np.ndarray) -> float:
    """Signal-to-noise ratio in dB."""
    reference = reference.astype(np.float64)
    return float(10 * np.log10((reference**2).sum() / ((signal - reference)**2).sum()))
