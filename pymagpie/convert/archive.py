"""Reads a ``.nemo`` checkpoint as what it is: a file from somebody else.

A checkpoint is a tar file, a gzipped tar file, or a directory into which one was extracted. Members are looked up by
name and read into memory; nothing is ever written to the path that a member carries, and only regular files count.
Every size is capped before memory is asked for.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO

from pymagpie.errors import ModelError, ModelNotFoundError

MAX_ARCHIVE_BYTES = 16 << 30
MAX_MEMBERS = 10_000
# Real checkpoints are float32 weights, which gzip shrinks by a tenth; the causal masks bring that to a third.
MAX_GZIP_RATIO = 50
_GZIP_MAGIC = b"\x1f\x8b"
_COPY_BYTES = 1 << 20


class Checkpoint:
    """The members of a ``.nemo`` archive or of a directory extracted from one.

    Only members at the top level are seen, under their base names (``./model_config.yaml`` and ``model_config.yaml``
    are the same). Links, devices, sparse members and members in subdirectories are left out, which makes them missing
    for whoever asks. Owns the open file; use it as a context manager.
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        """Open `source`.

        Raises:
            ModelNotFoundError: there is no such file or directory.
            ModelError: not a tar or gzipped tar file, truncated, or larger than the limits of this module.
        """
        self.path = Path(source)
        self._file: BinaryIO | None = None
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}
        self._files: dict[str, Path] = {}
        try:
            if self.path.is_dir():
                self._files = _regular_files(self.path)
            elif self.path.is_file():
                self._open_tar()
            elif self.path.exists():
                raise ModelError(f"{self.path}: neither a regular file nor a directory")
            else:
                raise ModelNotFoundError(f"{self.path}: no such checkpoint")
        except OSError as error:
            self.close()
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def _open_tar(self) -> None:
        self._file = _plain_file(self.path)
        size = os.fstat(self._file.fileno()).st_size
        try:
            self._tar = tarfile.open(fileobj=self._file, mode="r:")
            for count, member in enumerate(self._tar):
                if count >= MAX_MEMBERS:
                    raise ModelError(f"{self.path}: more than {MAX_MEMBERS} members")
                name = member.name[2:] if member.name.startswith("./") else member.name
                if not member.isreg() or member.issparse() or not name or "/" in name:
                    continue
                if member.size < 0 or member.offset_data + member.size > size:
                    raise ModelError(
                        f"{self.path}: member {name!r} of {member.size} bytes runs past the end "
                        f"of the archive ({size} bytes): truncated or damaged"
                    )
                self._members[name] = member
        # tarfile lets errors of int(), of its decoders and of its recursion through on damaged headers.
        except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError, IndexError) as error:
            raise ModelError(
                f"{self.path}: not a .nemo checkpoint (a tar file, a gzipped tar file or a directory "
                f"extracted from one): {error}"
            ) from error

    @property
    def names(self) -> list[str]:
        """Base names of the readable members, in the order of the archive (sorted for a directory)."""
        return list(self._members) + list(self._files)

    def size(self, name: str) -> int:
        """Size in bytes of the member `name`; ModelError when it is missing."""
        if name in self._members:
            return self._members[name].size
        if name in self._files:
            return self._files[name].stat().st_size
        raise ModelError(f"{self.path}: no regular member {name!r}")

    def open(self, name: str, limit: int) -> BinaryIO:
        """Open the member `name`, of at most `limit` bytes, as a seekable binary file."""
        size = self.size(name)
        if size > limit:
            raise ModelError(f"{self.path}: member {name!r} has {size} bytes, at most {limit} are allowed")
        if name in self._files:
            return open(self._files[name], "rb")
        if self._tar is None:
            raise ValueError("the checkpoint is closed")
        stream = self._tar.extractfile(self._members[name])
        assert stream is not None  # only regular members are listed
        return stream  # type: ignore[return-value]

    def read(self, name: str, limit: int) -> bytes:
        """The contents of the member `name`, of at most `limit` bytes."""
        try:
            with self.open(name, limit) as stream:
                data = stream.read(limit + 1)
        except (OSError, tarfile.TarError) as error:
            raise ModelError(f"{self.path}: member {name!r} cannot be read: {error}") from error
        if len(data) != self.size(name) or len(data) > limit:
            raise ModelError(f"{self.path}: member {name!r} is truncated")
        return data

    def close(self) -> None:
        """Close the archive; harmless when closed already."""
        for owned in (self._tar, self._file):
            if owned is not None:
                owned.close()
        self._tar = self._file = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _regular_files(directory: Path) -> dict[str, Path]:
    """Regular files of `directory`; a link in an extracted archive may point anywhere, so links do not count."""
    with os.scandir(directory) as entries:
        found = sorted((entry.name, Path(entry.path)) for entry in entries if entry.is_file(follow_symlinks=False))
    if len(found) > MAX_MEMBERS:
        raise ModelError(f"{directory}: more than {MAX_MEMBERS} files")
    return dict(found)


def _plain_file(path: Path) -> BinaryIO:
    """Open `path`, unpacked to an anonymous temporary file when it is gzipped, so that members can be sought."""
    source = open(path, "rb")
    try:
        size = os.fstat(source.fileno()).st_size
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode) or size > MAX_ARCHIVE_BYTES:
            raise ModelError(f"{path}: {size} bytes, at most {MAX_ARCHIVE_BYTES} are allowed")
        magic = source.read(2)
        source.seek(0)
        if magic != _GZIP_MAGIC:
            return source
        limit = min(MAX_ARCHIVE_BYTES, max(size * MAX_GZIP_RATIO, _COPY_BYTES))
        unpacked: BinaryIO = tempfile.TemporaryFile()
        try:
            _gunzip(source, unpacked, limit, path)
        except BaseException:
            unpacked.close()
            raise
        source.close()
        return unpacked
    except BaseException:
        source.close()
        raise


def _gunzip(source: BinaryIO, target: BinaryIO, limit: int, path: Path) -> None:
    total = 0
    try:
        with gzip.GzipFile(fileobj=source, mode="rb") as stream:
            while block := stream.read(_COPY_BYTES):
                total += len(block)
                if total > limit:
                    raise ModelError(
                        f"{path}: unpacks to more than {limit} bytes, the limit for a gzipped archive of its size"
                    )
                target.write(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ModelError(f"{path}: damaged gzip data: {error}") from error
    target.seek(0)
