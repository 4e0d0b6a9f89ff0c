"""Small stand-ins for the published files."""

from __future__ import annotations

import io
import random
import tarfile
from hashlib import sha256

from hub_server import HubServer

from pymagpie import hub
from pymagpie.hub import HubFile


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def make_archive(members: dict[str, bytes], weights: int = 200_000) -> bytes:
    """A ``.nemo`` archive as NeMo saves it: folder entry, assets with a hex prefix, config, weights last."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for index, (name, data) in enumerate([*members.items(), ("model_weights.ckpt", noise(9, weights))]):
            prefix = "" if name.startswith("model_") else f"{index:032x}_"
            info = tarfile.TarInfo(f"./{prefix}{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Published:
    """Small stand-ins for the published files, put on a server and pinned in `pymagpie.hub`."""

    def __init__(self, server: HubServer) -> None:
        self.server = server
        self.members = {name: noise(i, 3_000 + i) for i, name in enumerate(hub.ASSETS)}
        self.config = ("model_config.yaml", b"model_type: decoder_ce\n")
        self.archive = make_archive({**self.members, self.config[0]: self.config[1]})
        self.magpie = self.publish(hub.MAGPIE, noise(1, 100_000))
        self.codec = self.publish(hub.CODEC, noise(2, 50_000))
        self.head = self.publish(hub.ASSETS_HEAD, self.archive, head=64_000)

    def publish(self, pinned: HubFile, content: bytes, head: int | None = None) -> HubFile:
        self.server.files[pinned.repo, pinned.revision, pinned.filename] = content
        wanted = content if head is None else content[:head]
        digest = sha256(wanted).hexdigest()
        return HubFile(pinned.repo, pinned.revision, pinned.filename, len(wanted), digest, head is not None)

    def content(self, file: HubFile) -> bytes:
        return self.server.files[file.repo, file.revision, file.filename]

    def pins(self) -> dict[str, object]:
        """The names of `pymagpie.hub` that hold pins, with the values of these files."""
        name, data = self.config
        return {
            "MAGPIE": self.magpie,
            "CODEC": self.codec,
            "ASSETS_HEAD": self.head,
            "ASSETS": {key: sha256(value).hexdigest() for key, value in self.members.items()},
            "CONFIG_MEMBER": (name, sha256(data).hexdigest()),
        }
