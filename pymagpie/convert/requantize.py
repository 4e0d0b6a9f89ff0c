"""GGUF -> GGUF with other tensor types: a published f16 file to q8_0, or a float32 one to either. Needs no torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from pymagpie.convert import codec_layout, magpie_layout
from pymagpie.convert.assets import MANIFEST, assets_path
from pymagpie.convert.writer import GGUFOutput
from pymagpie.errors import ModelError
from pymagpie.ggml.gguf import GGUFFile

_MAGIC = b"GGUF"
_KINDS = {codec_layout.ARCHITECTURE: "nanocodec", magpie_layout.ARCHITECTURE: "magpietts"}


def is_gguf(path: Path) -> bool:
    """Whether `path` is a file that starts like a GGUF."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def requantize(source: Path, output: Path, outtype: str, local_outtype: str) -> tuple[str, int, Path | None]:
    """Write `source` to `output` with the tensor types that converting the checkpoint would have given.

    Metadata stay as they are. The tokeniser files of `source`, if it has any, are copied. Returns the kind of model,
    the number of tensors, and the copy of the tokeniser files.

    Raises:
        ValueError: `output` is `source`, or the kind of model does not have that `outtype`.
        ModelError: `source` is damaged or of another architecture.
    """
    if output.exists() and output.samefile(source):
        raise ValueError(f"{output}: is the source; name another output")
    with GGUFFile.open(source) as file:
        architecture = file.metadata.get("general.architecture")
        if architecture not in _KINDS:
            raise ModelError(f"{source}: architecture {architecture!r}, allowed: {', '.join(_KINDS)}")
        if architecture == codec_layout.ARCHITECTURE and outtype not in codec_layout.OUTTYPES:
            raise ValueError(
                f"outtype {outtype!r} is not available for a NanoCodec, allowed: {', '.join(codec_layout.OUTTYPES)}"
            )
        if architecture == codec_layout.ARCHITECTURE and local_outtype != outtype:
            raise ValueError("local_transformer_outtype is for MagpieTTS models, this is a NanoCodec")
        with GGUFOutput(output, architecture) as out:
            for key, value in file.metadata.items():
                if key not in ("general.architecture", "general.alignment"):
                    out.put(key, value)
            for name, info in file.tensors.items():
                array = file.read(name)
                if array.dtype == np.float16:
                    array = array.astype(np.float32)
                if architecture == magpie_layout.ARCHITECTURE:
                    kind = magpie_layout.tensor_outtype(name, len(info.shape), outtype, local_outtype)
                else:
                    kind = outtype if name.endswith(".w") else "f32"
                out.add(name, array, kind)
    return _KINDS[architecture], out.tensor_count, _copy_assets(assets_path(source), assets_path(output))


def _copy_assets(source: Path, target: Path) -> Path | None:
    """Copy the assets directory, if there is one; returns the copy."""
    if not (source / MANIFEST).is_file():
        return None
    if source != target:
        if target.exists() and not (target / MANIFEST).is_file():
            raise ModelError(f"{target}: is in the way of the tokeniser files and has no {MANIFEST}; remove it")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    return target
