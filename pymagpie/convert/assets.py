"""The tokeniser's files of a MagpieTTS checkpoint: dictionaries and heteronym lists, beside the converted model.

``OUT.gguf`` gets a directory ``OUT.assets`` with the files under the names they had before NeMo packed them, and a
``manifest.json``: the configuration's ``text_tokenizers``, the text vocabulary's size, and the SHA-256 of each file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymagpie.convert.archive import Checkpoint
from pymagpie.errors import ModelError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
MAX_ASSET_BYTES = 256 << 20
MAX_ASSETS = 256
_REFERENCE = re.compile(r"nemo:([0-9a-f]{32})_(.+)", re.DOTALL)
# A name from a configuration becomes a file name: nothing that any file system reads as more than a name.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")


def assets_path(output: Path) -> Path:
    """``model.gguf`` -> ``model.assets``."""
    return output.with_suffix(".assets")


class AssetsOutput:
    """An assets directory in the making: filled beside its target, which it replaces when published.

    Use it as a context manager; what was not published is removed.
    """

    def __init__(self, checkpoint: Checkpoint, config: dict[str, Any], target: Path) -> None:
        """Copy the files that `config` refers to out of `checkpoint`.

        Raises ModelError when one is missing, too large or badly named, or when `target` exists and is not an assets
        directory.
        """
        if target.exists() and not (target / MANIFEST).is_file():
            raise ModelError(f"{target}: is in the way of the tokeniser files and has no {MANIFEST}; remove it")
        self.path = target
        self._tokenizers = config.get("text_tokenizers") or {}
        self._staging = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        self._digests: dict[str, str] = {}
        self._staging.mkdir()
        try:
            for name, member in _members(checkpoint, self._tokenizers).items():
                data = checkpoint.read(member, MAX_ASSET_BYTES)
                (self._staging / name).write_bytes(data)
                self._digests[name] = hashlib.sha256(data).hexdigest()
        except BaseException:
            self.discard()
            raise

    def publish(self, text_vocab_size: int) -> None:
        """Write the manifest and give the directory its name, in place of an earlier one."""
        manifest = {
            "text_tokenizers": self._tokenizers,
            "text_vocab_size": text_vocab_size,
            "files": dict(sorted(self._digests.items())),
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (self._staging / MANIFEST).write_text(text, encoding="utf-8")
        if self.path.exists():
            shutil.rmtree(self.path)
        self._staging.replace(self.path)

    def discard(self) -> None:
        """Remove what was not published."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def __enter__(self) -> AssetsOutput:
        return self

    def __exit__(self, *exc: object) -> None:
        self.discard()


def _members(checkpoint: Checkpoint, tokenizers: Any) -> dict[str, str]:
    """File name -> member name of every asset; a directory may hold them under a new prefix or under none."""
    found: dict[str, str] = {}
    for reference in _texts(tokenizers):
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            continue
        name = match[2]
        if not _SAFE_NAME.fullmatch(name) or name == MANIFEST:
            raise ModelError(
                f"{checkpoint.path}: the configuration names a tokeniser file {name[:100]!r}, "
                "which is not a plain file name"
            )
        exact = reference.removeprefix("nemo:")
        candidates = [
            member
            for member in checkpoint.names
            if member == exact or re.fullmatch(rf"([0-9a-f]{{32}}_)?{re.escape(name)}", member)
        ]
        if not candidates:
            raise ModelError(f"{checkpoint.path}: lacks the tokeniser file {exact}")
        member = exact if exact in candidates else candidates[0]
        if found.setdefault(name, member) != member:
            raise ModelError(f"{checkpoint.path}: two different tokeniser files are named {name!r}")
        if len(found) > MAX_ASSETS:
            raise ModelError(f"{checkpoint.path}: more than {MAX_ASSETS} tokeniser files")
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
