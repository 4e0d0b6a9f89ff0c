"""Files for tests: assets that fit the golden models, and damaged models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from pymagpie.ggml import GGUFFile
from pymagpie.text.demo_assets import write_demo_assets


def write_assets(folder: Path, model: Path, order: tuple[str, ...]) -> Path:
    """The demo dictionary for a ``model`` whose file has lost the ``order`` of its text tokenisers."""
    write_demo_assets(folder)
    with GGUFFile.open(model) as file:
        config = json.loads(file.metadata["magpietts.config_json"])
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["text_tokenizers"] = {name: config["text_tokenizers"][name] for name in order}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def poison(source: Path, target: Path, tensor: str) -> Path:
    """A copy of a GGUF whose ``tensor`` (float32) begins with NaN."""
    with GGUFFile.open(source) as file:
        offset = file.info(tensor).offset
    data = bytearray(source.read_bytes())
    data[offset : offset + 4] = struct.pack("<f", float("nan"))
    target.write_bytes(data)
    return target
