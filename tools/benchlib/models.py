"""Which models are timed: those given, or synthetic ones of the true size."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Models:
    """Paths for the timed programs, None where a program finds its own, and what to say of them."""

    model: str | None
    codec: str | None
    assets: str | None
    description: str


OUTTYPES = ("f16", "q8_0")


def models_given(model: str | None, codec: str | None) -> bool:
    """Whether arguments or the environment name a model."""
    return any((model, codec, os.environ.get("PYMAGPIE_MODEL"), os.environ.get("PYMAGPIE_CODEC")))


def choose_models(
    model: str | None,
    codec: str | None,
    assets: str | None,
    outtype: str | None,
    own: bool,
    folder: Path,
    say: Callable[[str], None],
) -> Models:
    """The models given as arguments or in the environment, else synthetic ones of `outtype` (default f16) written to
    `folder`; with `own`, the timed program's own."""
    model = model or os.environ.get("PYMAGPIE_MODEL")
    codec = codec or os.environ.get("PYMAGPIE_CODEC")
    assets = assets or os.environ.get("PYMAGPIE_ASSETS")
    if own or models_given(model, codec):
        names = [Path(path).name for path in (model, codec) if path]
        description = ", ".join(names) or "those of the timed program"
        return Models(_absolute(model), _absolute(codec), _absolute(assets), description)
    say("no models given: making synthetic ones of full size")
    return write_synthetic(folder, outtype=outtype or OUTTYPES[0])


def write_synthetic(
    folder: Path,
    size: Literal["tiny", "v2602", "v2607"] = "v2602",
    base_channels: int = 864,
    outtype: str = OUTTYPES[0],
) -> Models:
    """Random models with the topology of the published ones, and a small dictionary; by default of full size.
    Speech takes about as long as that of a person: 1.5 codec frames (70 ms) a phoneme or letter."""
    from pymagpie.synthetic import write_magpie, write_nanocodec
    from pymagpie.text.demo_assets import write_demo_assets

    write_magpie(folder / "magpie.gguf", size=size, outtype=outtype, frames_per_token=1.5)
    write_nanocodec(folder / "nano-codec.gguf", base_channels=base_channels)
    assets = write_demo_assets(folder / "magpie.assets")
    return Models(
        str(folder / "magpie.gguf"),
        str(folder / "nano-codec.gguf"),
        str(assets),
        f"synthetic: random weights, true topology ({size} {outtype}, codec of {base_channels} channels); "
        "the audio is noise",
    )


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None
