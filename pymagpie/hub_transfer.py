"""The part of the download that speaks to the hub; the only module that imports `huggingface_hub`.

`huggingface_hub` gives the cache's place, the credentials, the requests with their retries and progress bar, and the
finished entry in its cache. Ours is one thing: a transfer that was cut off, by a broken connection or by Ctrl-C, is
kept as ``NAME.incomplete`` and goes on from there in the next run (`huggingface_hub` itself starts anew in each run).
"""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymagpie.errors import CapabilityError, MagpieError, ModelError, ModelNotFoundError
from pymagpie.hub import HubFile, file_sha256

try:
    import huggingface_hub
    from filelock import FileLock
    from huggingface_hub import constants, errors, file_download
    from huggingface_hub.utils import build_hf_headers
except ImportError as error:
    raise CapabilityError(
        'downloading a model needs huggingface_hub: pip install "pymagpie[download]" (or give the path of a local file)'
    ) from error

logger = logging.getLogger(__name__)


def cached_file(file: HubFile) -> Path | None:
    """Where `file` lies in the hub's cache, or None."""
    found = huggingface_hub.try_to_load_from_cache(file.repo, file.filename, revision=file.revision)
    return Path(found) if isinstance(found, str) else None


def assets_folder(file: HubFile) -> Path:
    """The folder for what is unpacked from `file`; its parent exists."""
    return huggingface_hub.cached_assets_path("pymagpie", file.repo, file.revision) / "tokenizer"


def require_online(file: HubFile) -> None:
    """Raise ModelNotFoundError when HF_HUB_OFFLINE forbids the download that is needed now."""
    if constants.HF_HUB_OFFLINE:
        raise ModelNotFoundError(
            f"no sound copy of {file.filename} in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set: "
            "run `pymagpie download` once with network access"
        )


def forget(cached: Path) -> None:
    """Remove a damaged cache entry: the link that stands for it and the content that it points to."""
    cached.resolve().unlink(missing_ok=True)
    cached.unlink(missing_ok=True)


def download(file: HubFile) -> Path:
    """Bring all of `file` into the hub's cache and return its path there."""
    with _one_line_errors(file):
        etag = _check_remote(file)
        folder = Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(repo_id=file.repo, repo_type="model")
        blob = folder / "blobs" / etag
        blob.parent.mkdir(parents=True, exist_ok=True)
        with locked(blob):
            transfer(file, blob)
        # With the content in place this only enters it into the cache under its name.
        return Path(huggingface_hub.hf_hub_download(file.repo, file.filename, revision=file.revision))


def transfer(file: HubFile, target: Path) -> None:
    """Bring the bytes of `file` to `target`, going on from ``target.incomplete`` where an earlier call was cut off.

    Raises MagpieError when the transfer broke off, with what arrived kept, and ModelError when the bytes are not the
    pinned ones, with nothing kept.
    """
    if target.exists():
        return
    partial = target.with_name(target.name + ".incomplete")
    headers = build_hf_headers(library_name="pymagpie")
    headers["Accept-Encoding"] = "identity"  # a compressed body has no ranges
    if file.head:
        headers["Range"] = f"bytes=0-{file.size - 1}"
    with _one_line_errors(file), _LimitedFile(partial, file.size) as output:
        arrived = output.tell()
        _require_space(target.parent, file.size - arrived)
        try:
            file_download.http_get(
                huggingface_hub.hf_hub_url(file.repo, file.filename, revision=file.revision),
                output,
                resume_size=arrived,
                headers=headers,
                expected_size=file.size,
                displayed_filename=file.filename,
            )
        except _LimitReached:
            pass
    found = file_sha256(partial)
    if found != file.sha256:
        partial.unlink()
        raise ModelError(f"{file.filename}: what was downloaded has sha256 {found}, expected {file.sha256}")
    partial.replace(target)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Keep other processes from writing `target`; they wait, then find it there."""
    locks = Path(constants.HF_HUB_CACHE) / ".locks" / "pymagpie"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{target.parent.parent.name}-{target.name}.lock"):
        yield


class _LimitReached(Exception):
    """All bytes that were asked for are there, and the server goes on sending."""


class _LimitedFile(io.FileIO):
    """A file opened for appending that takes `limit` bytes and no more: a server may ignore the range asked for."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path, "ab")
        self.limit = limit
        if self.tell() > limit:
            self.truncate(0)
            self.seek(0)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        room = self.limit - self.tell()
        written = 0
        view = memoryview(data)[:room]
        while written < len(view):
            written += super().write(view[written:]) or 0
        if len(data) > room:
            raise _LimitReached
        return written


def _check_remote(file: HubFile) -> str:
    """Ask the hub for the file's size and content tag before the transfer; return the tag, the content's name in the
    cache. A file with another size or digest is refused at once instead of after all its bytes."""
    remote = file_download.get_hf_file_metadata(
        huggingface_hub.hf_hub_url(file.repo, file.filename, revision=file.revision), library_name="pymagpie"
    )
    etag = remote.etag or file.sha256
    if remote.size is not None and remote.size != file.size:
        raise ModelError(f"{file.filename}: the hub has {remote.size:,} bytes, expected {file.size:,}")
    if len(etag) == len(file.sha256) and etag != file.sha256:
        raise ModelError(f"{file.filename}: the hub has sha256 {etag}, expected {file.sha256}")
    return etag


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise MagpieError(f"{folder} has {free:,} bytes free; the download needs {size:,}")


@contextmanager
def _one_line_errors(file: HubFile) -> Iterator[None]:
    """Turn what `huggingface_hub` and its HTTP client raise into errors of ours.

    The client's classes depend on the hub's version (httpx, httpx2), so everything else that is an Exception counts as
    a failed transfer.
    """
    try:
        yield
    except (MagpieError, _LimitReached):
        raise
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise MagpieError(
            f"{file.repo}: access refused, or no such repository; where it asks for consent, give it on its page "
            "and set HF_TOKEN"
        ) from error
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise ModelNotFoundError(f"{file.repo} has no {file.filename} at revision {file.revision}") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise MagpieError(
            f"downloading {file.filename} failed: {type(error).__name__}: {reason} "
            "(what has arrived is kept; run it again to go on)"
        ) from error
