"""The directory with a model's dictionaries: finding files by pattern, checking them against a manifest."""

from __future__ import annotations

import hashlib
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pymagpie.errors import ModelError, ModelNotFoundError

MANIFEST = "manifest.json"
DICTIONARY, HETERONYMS = "dictionary", "heteronyms"
PATTERNS = {
    ("en", DICTIONARY): "*ipa_cmudict*",
    ("en", HETERONYMS): "*heteronyms-*",
    ("es", DICTIONARY): "*es_ES*.dict",
    ("de", DICTIONARY): "*de_*.dict",
    ("de", HETERONYMS): "*de_*.heteronym",
    ("zh", DICTIONARY): "*ipa_dict_nv*.txt",
    ("pt", DICTIONARY): "*prondict*",
    ("hi", DICTIONARY): "*hindi*dict*",
}
_PREFIX = re.compile(r"^(nemo:)?[0-9a-f]{32}_")


class Assets:
    """An assets directory; nothing but its manifest is read before a file is asked for."""

    def __init__(self, directory: Path | None) -> None:
        """Raises ``ModelNotFoundError`` without the directory, ``ModelError`` for a damaged manifest."""
        self.directory = directory
        self.manifest: dict[str, Any] = {}
        if directory is None:
            return
        if not directory.is_dir():
            raise ModelNotFoundError(f"{directory}: no such directory of tokeniser dictionaries")
        path = directory / MANIFEST
        if not path.is_file():
            return
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: not readable as JSON: {error}") from None
        if not isinstance(manifest, dict):
            raise ModelError(f"{path}: not a JSON object")
        self.manifest = manifest

    def find(self, language: str, role: str, named: str | None = None, required: bool = True) -> Path | None:
        """The checked file of a language.

        *named* is what the model's configuration calls it; a file of that name comes first, then one that fits the
        language's pattern, each with or without the 32 hexadecimal digits that NeMo puts before a name. Raises
        ``ModelNotFoundError`` when there is none, unless it is not *required*, and ``ModelError`` when it is damaged or
        there are several.
        """
        pattern = PATTERNS.get((language, role))
        wanted = _PREFIX.sub("", Path(named).name) if named else None
        files = sorted(p for p in self.directory.iterdir() if p.is_file()) if self.directory is not None else []
        names = {path: _PREFIX.sub("", path.name) for path in files}
        found = [path for path, name in names.items() if name == wanted]
        if len(found) > 1 and named:
            found = [path for path in found if path.name == named.removeprefix("nemo:")] or found
        if not found and pattern is not None:
            found = [path for path, name in names.items() if fnmatchcase(name, pattern)]
        if not found:
            if not required:
                return None
            expected = " or ".join(filter(None, (wanted, pattern)))
            raise ModelNotFoundError(
                f"{self.directory or 'no assets directory given'}: no {role} for {language!r} there ({expected})"
            )
        if len(found) > 1:
            raise ModelError(
                f"{self.directory}: several files could be the {role} for {language!r}: "
                f"{', '.join(path.name for path in found)}; keep one"
            )
        self._check(found[0], names[found[0]])
        return found[0]

    def _check(self, path: Path, name: str) -> None:
        """Compare with the manifest's digest; without one, a file cut short shows by its missing last line end."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
        if not data.strip():
            raise ModelError(f"{path}: is empty")
        digests = self.manifest.get("files")
        expected = digests.get(name, digests.get(path.name)) if isinstance(digests, dict) else None
        if isinstance(expected, str):
            if hashlib.sha256(data).hexdigest() != expected.lower():
                raise ModelError(f"{path}: differs from its sha256 in {MANIFEST}: damaged, cut short or replaced")
        elif not data.endswith((b"\n", b"\r")) and not _is_published(name, data):
            raise ModelError(f"{path}: its last line has no end: the file is cut short (if it is not, end the line)")


def _is_published(name: str, data: bytes) -> bool:
    from pymagpie.hub import ASSETS

    return ASSETS.get(name) == hashlib.sha256(data).hexdigest()
