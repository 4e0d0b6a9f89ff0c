"""Converts NeMo checkpoints to GGUF: ``convert("model.nemo", "model.gguf")``.

The kind of model is read from the checkpoint's configuration. Reading its weights is the only step that needs torch.
A GGUF file as the source is written again with other tensor types.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pymagpie.convert.archive import Checkpoint
from pymagpie.convert.assets import AssetsOutput, assets_path
from pymagpie.convert.checkpoint import read_config, read_weights
from pymagpie.convert.magpie import convert_magpie, is_magpie, read_speakers
from pymagpie.convert.magpie import read_topology as read_magpie_topology
from pymagpie.convert.nanocodec import convert_nanocodec, is_nanocodec
from pymagpie.convert.requantize import is_gguf, requantize
from pymagpie.convert.writer import OUTTYPES
from pymagpie.errors import ModelError


@dataclass(frozen=True)
class Conversion:
    """What was written: the file, the kind of model (``nanocodec`` or ``magpietts``), its size, and its assets."""

    path: Path
    kind: str
    outtype: str
    tensors: int
    bytes: int
    assets: Path | None = None


def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    outtype: str = "f16",
    local_transformer_outtype: str | None = None,
) -> Conversion:
    """Convert a NanoCodec or MagpieTTS checkpoint to GGUF.

    Args:
        source: a ``.nemo`` archive (tar, gzip too), a directory extracted from one, or a GGUF file of either model,
            whose tensors then get other types.
        output: the GGUF file to write. A MagpieTTS checkpoint's tokeniser files go to `output` without its suffix plus
            ``.assets``. Both appear when they are complete; a failure leaves what was there.
        outtype: ``f16``, ``f32`` or, for MagpieTTS, ``q8_0`` (matrices whose rows are a multiple of 32; others f16).
        local_transformer_outtype: another type for the audio embeddings and the local transformer of a MagpieTTS model.

    Raises:
        ValueError: an unknown `outtype`, or one that this kind of model does not have.
        ModelNotFoundError: no such `source`.
        ModelError: `source` is damaged, hostile, of another kind, or lacks tensors.
        CapabilityError: torch is not installed, or too old to load weights safely.
        OSError: `output` cannot be written.
    """
    output = Path(output)
    local_outtype = local_transformer_outtype or outtype
    for name in (outtype, local_outtype):
        if name not in OUTTYPES:
            raise ValueError(f"unknown outtype {name!r}, allowed: {', '.join(OUTTYPES)}")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent}: no such directory to write {output.name} to")
    if is_gguf(Path(source)):
        kind, tensors, assets = requantize(Path(source), output, outtype, local_outtype)
        return Conversion(output, kind, outtype, tensors, output.stat().st_size, assets)
    with Checkpoint(source) as checkpoint:
        config = read_config(checkpoint)
        if is_magpie(config):
            return _convert_magpie(checkpoint, config, output, outtype, local_outtype)
        if is_nanocodec(config):
            if local_transformer_outtype is not None:
                raise ValueError("local_transformer_outtype is for MagpieTTS models, this is a NanoCodec")
            tensors = convert_nanocodec(config, read_weights(checkpoint), output, outtype)
            return Conversion(output, "nanocodec", outtype, tensors, output.stat().st_size)
        raise ModelError(
            f"{checkpoint.path}: target is {config.get('target')!r}; only MagpieTTS and NanoCodec "
            "checkpoints can be converted"
        )


def _convert_magpie(
    checkpoint: Checkpoint, config: dict[str, object], output: Path, outtype: str, local_outtype: str
) -> Conversion:
    with AssetsOutput(checkpoint, config, assets_path(output)) as assets:
        state = read_weights(checkpoint)
        topology = read_magpie_topology(config, state, read_speakers(checkpoint, config))
        tensors = convert_magpie(topology, state, output, outtype, local_outtype)
        assets.publish(topology.text_vocab_size)
    return Conversion(output, "magpietts", outtype, tensors, output.stat().st_size, assets.path)


__all__ = ["Conversion", "convert"]
