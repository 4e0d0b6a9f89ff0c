"""Names to files: local paths as they are, the published models from the Hugging Face cache or by download.

Only what is pinned here is ever downloaded: repository, revision, size and sha256 of each file are fixed, so that the
same pymagpie speaks the same model everywhere. `huggingface_hub` (``pip install "pymagpie[download]"``) is imported
only when a published model is asked for; a local path never needs it, a cached model never needs the network. It
decides where the cache lies and how to reach the hub, and so HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT mean
what they always mean.

The tokeniser's dictionaries are not published as files of their own. They lie in the head of a ``.nemo`` archive,
before its weights, and are unpacked from the first 32 MiB. That archive is of a newer generation than the acoustic
model: its ``model_config.yaml`` is checked but not kept, because the vocabulary has to come from the GGUF.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pymagpie.errors import CapabilityError, ModelError, ModelNotFoundError

logger = logging.getLogger(__name__)

LICENCE = "NVIDIA Open Model License"
LICENCE_URL = "https://www.nvidia.com/en-us/agreements/enterprise-software/nvidia-open-model-license/"


@dataclass(frozen=True)
class HubFile:
    """One pinned file of the hub, or its first ``size`` bytes where ``head`` is set; ``sha256`` is of those bytes."""

    repo: str
    revision: str
    filename: str
    size: int
    sha256: str
    head: bool = False


MAGPIE = HubFile(
    repo="nvidia/magpie_tts_multilingual_357m",
    revision="452ef560f972c38d5fc16476259aac9456453547",
    filename="magpie_tts_multilingual_357m.v2602.f16.gguf",
    size=448_604_832,
    sha256="901d299a8b1df016cf81cae0089a7a7c15627b9633d033357e15a47d9a219a75",
)
CODEC = HubFile(
    repo="nvidia/nemo-nano-codec-22khz-1.89kbps-21.5fps",
    revision="fc00890b604aa2de298d2641ffc6c5f6caf8c4d7",
    filename="nemo_nano_codec_22khz_1.89kbps_21.5fps.decoder.f16.gguf",
    size=78_823_104,
    sha256="cc86d36d821a27cdc1d4ef600a3e2b0dabe76e88fcc2a8652d9543134c07ef2d",
)
ASSETS_HEAD = HubFile(
    repo=MAGPIE.repo,
    revision=MAGPIE.revision,
    filename="magpie_tts_multilingual_357m.nemo",
    size=32 * 1024 * 1024,
    sha256="2b930b399933dd384b17ec16a5f1ebf921e2017b760c4fd608c11077a68793fc",
    head=True,
)
ASSETS = {
    "ipa_cmudict-0.7b_nv23.01.txt": "dd0927fffc89e8539ea0a26ccbc164a908f4b3de9613d924c90afa5300e00f72",
    "heteronyms-052722": "b701909aedf753172eff223950f8859cd4b9b4c80199cf0a6e9ac4a307c8f8ec",
    "es_ES_nv230301.dict": "94c9a25bb359f733cd863c887d0112e7ae19a744b0333ef64b6a88e576428669",
    "de_nv230119.dict": "7c5bbf3346ebd6dc57769b5cc805124215cb1bcc3b8174c4254e9e928c5d6094",
    "de_nv230119.heteronym": "771cc585a574fd35bd14f4ce6108edf1e0e512a8dbc810db7de4c1165ba9d0ef",
    "ipa_dict_nv23.05.txt": "252e8eaf60dfd891520759913dc8534393eebfa8d57192365f76f9229f294e9e",
    "hindi_phoneme_merged_phoneme_dict.dict": "978a7aa5a0e3334b13c19015cc61f3ff1b96ce6ac7a31c482e5c22a61f19586c",
    "pt_br_prondict-v1.0.dict": "6492abc404db16bbad83dd9d7f9a60eb617699f0a3ff54b3be6184e14507b745",
    "magpie_tts_multilingual_357m.nemo.speakers.json": (
        "36cdcf01ebc0afb506660ac71f2d0a211236374ad5c872d7d8d985a3f9f6ccaf"
    ),
}
CONFIG_MEMBER = ("model_config.yaml", "fda01948a40a04316b26553b53546cbd2103952b8d0e2813176ea33852bb96a2")
WEIGHTS_MEMBER = "model_weights.ckpt"


def resolve_magpie(path: str | os.PathLike[str] | None = None) -> Path:
    """The acoustic model's GGUF: `path`, else PYMAGPIE_MODEL, else the pinned file from the cache or the hub.

    The repository's name (``nvidia/magpie_tts_multilingual_357m``) stands for the pinned file.
    Raises ModelNotFoundError for a missing path and, when offline, for a missing cache; CapabilityError without
    `huggingface_hub`; MagpieError when the transfer failed; ModelError when the bytes are not the pinned ones.
    """
    return _resolve_file(path, "PYMAGPIE_MODEL", MAGPIE, "acoustic model")


def resolve_codec(path: str | os.PathLike[str] | None = None) -> Path:
    """The codec's GGUF: `path`, else PYMAGPIE_CODEC, else the pinned file; raises as `resolve_magpie`."""
    return _resolve_file(path, "PYMAGPIE_CODEC", CODEC, "codec")


def resolve_assets(
    path: str | os.PathLike[str] | None = None, model_path: str | os.PathLike[str] | None = None
) -> Path:
    """The folder of tokeniser dictionaries: `path`, else PYMAGPIE_ASSETS, else ``MODEL.assets`` beside a local
    `model_path` (its suffix ``.gguf`` taken off), else the pinned ones; raises as `resolve_magpie`."""
    path, name = _named(path, "PYMAGPIE_ASSETS", "tokeniser assets")
    if path is not None:
        if not path.is_dir():
            raise ModelNotFoundError(f"{name}: no such folder: {path}")
        return path
    if model_path is None:
        return fetch_assets()
    beside = Path(model_path).with_suffix(".assets")
    if beside.is_dir():
        return beside
    try:
        return fetch_assets()
    except (CapabilityError, ModelNotFoundError) as error:
        raise type(error)(f"no tokeniser assets beside the model ({beside}), and {error}") from error


def fetch(file: HubFile, verify: bool = False) -> Path:
    """The cached copy of `file`, downloaded first when there is none of its size.

    A download is always checked against the pinned sha256; `verify` checks a copy that was cached before too, and
    fetches a damaged one again.
    """
    from pymagpie import hub_transfer

    cached = hub_transfer.cached_file(file)
    if cached is not None:
        if cached.stat().st_size == file.size and not (verify and file_sha256(cached) != file.sha256):
            return cached
        logger.warning("%s is damaged: fetching it again", cached)
    hub_transfer.require_online(file)
    if cached is not None:
        hub_transfer.forget(cached)
    _announce(file)
    return hub_transfer.download(file)


def fetch_assets(verify: bool = False) -> Path:
    """The folder with the pinned dictionaries under their own names and a ``manifest.json``; see `fetch`."""
    from pymagpie import hub_transfer

    folder = hub_transfer.assets_folder(ASSETS_HEAD)
    if _assets_complete(folder, verify):
        return folder
    hub_transfer.require_online(ASSETS_HEAD)
    if folder.exists():
        logger.warning("%s is damaged: fetching it again", folder)
    _announce(ASSETS_HEAD)
    head = folder.parent / "archive-head.tar"
    with hub_transfer.locked(folder):
        if not _assets_complete(folder, verify):  # another process may have been here while we waited
            hub_transfer.transfer(ASSETS_HEAD, head)
            unpack_assets(head, folder)
            head.unlink()
    return folder


def unpack_assets(head: Path, folder: Path) -> None:
    """Unpack the pinned dictionaries from the truncated tar `head` into `folder`, which appears whole or not at all.

    Reading stops before the weights, where the truncated archive breaks off. Raises ModelError when a member is missing
    or has another digest.
    """
    temporary = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        _unpack_members(head, temporary)
        manifest = {
            "repo": ASSETS_HEAD.repo,
            "revision": ASSETS_HEAD.revision,
            "archive": ASSETS_HEAD.filename,
            "files": dict(sorted(ASSETS.items())),
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from its other users
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def file_sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _unpack_members(head: Path, folder: Path) -> None:
    wanted = ASSETS | dict([CONFIG_MEMBER])
    try:
        with tarfile.open(head, "r|*") as archive:
            for member in archive:
                # An asset is stored as 32 random hex digits, an underscore and its own name.
                name = re.sub(r"^[0-9a-f]{32}_", "", Path(member.name).name)
                if name == WEIGHTS_MEMBER:
                    break
                expected = wanted.pop(name, None)
                content = archive.extractfile(member)
                if expected is None or content is None:
                    continue
                data = content.read()
                found = sha256(data).hexdigest()
                if found != expected:
                    raise ModelError(f"{name} in {ASSETS_HEAD.filename} has sha256 {found}, expected {expected}")
                if name != CONFIG_MEMBER[0]:
                    (folder / name).write_bytes(data)
    except (tarfile.TarError, EOFError) as error:
        raise ModelError(f"{head.name}: not the head of a .nemo archive: {error}") from error
    if wanted:
        raise ModelError(f"{ASSETS_HEAD.filename} lacks {', '.join(sorted(wanted))} before its weights")


def _assets_complete(folder: Path, verify: bool) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return manifest["files"] == ASSETS and all(
            (folder / name).is_file() and not (verify and file_sha256(folder / name) != digest)
            for name, digest in ASSETS.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _resolve_file(path: str | os.PathLike[str] | None, variable: str, pinned: HubFile, role: str) -> Path:
    local, name = _named(path, variable, role)
    if local is None or (local == Path(pinned.repo) and not local.exists()):
        return fetch(pinned)
    if local.is_dir():
        raise ModelNotFoundError(f"{name}: {local} is a folder, not a GGUF file")
    if not local.exists():
        raise ModelNotFoundError(f"{name}: no such file: {local}")
    return local


def _named(path: str | os.PathLike[str] | None, variable: str, role: str) -> tuple[Path | None, str]:
    """The path given by the caller or else by the environment, and what to call it in an error."""
    if path is None and (value := os.environ.get(variable)):
        return Path(value).expanduser(), f"{role} ({variable})"
    return None if path is None else Path(path).expanduser(), role


def _announce(file: HubFile) -> None:
    part = f"the first {file.size:,} bytes of " if file.head else ""
    size = "" if file.head else f" ({file.size:,} bytes)"
    logger.warning(
        "downloading %s%s%s from %s; licence: %s, %s", part, file.filename, size, file.repo, LICENCE, LICENCE_URL
    )
