"""The dictionaries out of a truncated ``.nemo`` archive."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hub_files import Published, make_archive, noise

from pymagpie import hub
from pymagpie.errors import ModelError


def unpack(content: bytes, tmp_path: Path) -> Path:
    head, folder = tmp_path / "head.tar", tmp_path / "tokenizer"
    head.write_bytes(content)
    hub.unpack_assets(head, folder)
    return folder


@pytest.mark.parametrize("cut", ["head", "whole", "gzip"])
def test_unpacks(cut: str, published: Published, tmp_path: Path) -> None:
    content = {
        "head": published.archive[:64_000],
        "whole": published.archive,
        "gzip": gzip.compress(published.archive),
    }[cut]
    folder = unpack(content, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"} == {
        name: data for name, data in published.members.items() if not name.endswith(".json")
    }
    assert folder.stat().st_mode & 0o777 == 0o755


def test_replaces_an_older_folder(published: Published, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "stale").write_text("x")
    assert not (unpack(published.archive, tmp_path) / "stale").exists()


def broken_digest(published: Published) -> bytes:
    return make_archive({**published.members, "de_nv230119.dict": b"other", published.config[0]: published.config[1]})


def broken_config(published: Published) -> bytes:
    return make_archive({**published.members, published.config[0]: b"model_type: other\n"})


def missing_member(published: Published) -> bytes:
    members = {name: data for name, data in published.members.items() if name != "heteronyms-052722"}
    return make_archive({**members, published.config[0]: published.config[1]})


def cut_short(published: Published) -> bytes:
    return published.archive[:20_000]


def garbage(published: Published) -> bytes:
    return noise(4, 50_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken_digest, "de_nv230119.dict in .* has sha256 .*, expected"),
        (broken_config, "model_config.yaml in .* has sha256"),
        (missing_member, "lacks heteronyms-052722 before its weights"),
        (cut_short, "not the head of a .nemo archive|lacks"),
        (garbage, "not the head of a .nemo archive"),
    ],
)
def test_refuses_and_leaves_nothing(
    make: Callable[[Published], bytes], message: str, published: Published, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        unpack(make(published), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["head.tar"]


def test_members_cannot_leave_the_folder(published: Published, tmp_path: Path) -> None:
    """Only the last part of a member's name counts, and only pinned names are written."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in [
            ("../../outside", b"x"),
            *[(f"/tmp/../{'0' * 32}_{key}", value) for key, value in published.members.items()],
            published.config,
        ]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    folder = unpack(buffer.getvalue(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head.tar", "tokenizer"]
    assert {path.name for path in folder.iterdir()} == {*published.members, "manifest.json"}


def test_head_of_an_archive_saved_by_nemo(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known answer: a file that NeMo's own ``save_to`` wrote, cut off inside its weights."""
    with tarfile.open(golden("magpie-tiny.nemo")) as archive:
        data = {member.name[2:]: archive.extractfile(member).read() for member in archive if member.isfile()}
    names = {name[33:]: name for name in data if name[32:33] == "_"}
    assert {"heteronyms-052722", "magpie-tiny.nemo.speakers.json"} < set(names)
    monkeypatch.setattr(hub, "ASSETS", {short: sha256(data[name]).hexdigest() for short, name in names.items()})
    config = data["model_config.yaml"]
    monkeypatch.setattr(hub, "CONFIG_MEMBER", ("model_config.yaml", sha256(config).hexdigest()))
    with golden("magpie-tiny.nemo").open("rb") as file:
        folder = unpack(file.read(1 << 20), tmp_path)
    assert all((folder / short).read_bytes() == data[name] for short, name in names.items())
