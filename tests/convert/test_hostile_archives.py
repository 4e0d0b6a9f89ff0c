"""A checkpoint is a file from somebody else: nothing in it may write, run, or take more memory than it has bytes."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from checkpoints import (
    CODEC_CONFIG,
    codec_state,
    edited,
    members,
    needs_torch,
    weights_bytes,
    write_directory,
    write_tar,
)

from pymagpie.convert import archive, convert
from pymagpie.convert.archive import Checkpoint
from pymagpie.convert.checkpoint import read_config
from pymagpie.errors import ModelError


def tar_of(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for entry, data in entries:
            tar.addfile(entry, io.BytesIO(data))
    return path


def regular(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    return entry, data


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def test_only_plain_top_level_files_are_members(tmp_path):
    path = tar_of(
        tmp_path / "a.nemo",
        regular("./model_config.yaml", b"a: 1"),
        regular("../outside.txt", b"x"),
        regular("/etc/absolute.txt", b"x"),
        regular("sub/inner.txt", b"x"),
        link("symlink.txt", "/etc/passwd", tarfile.SYMTYPE),
        link("hardlink.txt", "model_config.yaml", tarfile.LNKTYPE),
        link("device", "", tarfile.CHRTYPE),
        link("fifo", "", tarfile.FIFOTYPE),
    )
    with Checkpoint(path) as checkpoint:
        assert checkpoint.names == ["model_config.yaml"]
        assert checkpoint.read("model_config.yaml", 100) == b"a: 1"
        for name in ("symlink.txt", "../outside.txt", "outside.txt", "sub/inner.txt"):
            with pytest.raises(ModelError, match="no regular member"):
                checkpoint.read(name, 100)
    assert sorted(os.listdir(tmp_path)) == ["a.nemo"]


def test_symlinked_configuration_or_weights_are_missing(tmp_path):
    path = tar_of(tmp_path / "a.nemo", link("model_config.yaml", "/etc/passwd", tarfile.SYMTYPE))
    with pytest.raises(ModelError, match="no regular member 'model_config.yaml'"):
        convert(path, tmp_path / "out.gguf")


def test_links_in_a_directory_are_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("target: x")
    (tmp_path / "model").mkdir()
    try:
        (tmp_path / "model" / "model_config.yaml").symlink_to(secret)
    except OSError:
        pytest.skip("this file system has no symbolic links")
    with Checkpoint(tmp_path / "model") as checkpoint:
        assert checkpoint.names == []


def test_sparse_member_is_left_out(tmp_path):
    """A GNU sparse member may claim any size; the archive holds none of it."""
    entry = tarfile.TarInfo("model_config.yaml")
    entry.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"  # the real size, 8 GiB
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "a.nemo"
    path.write_bytes(bytes(header) + bytes(1024))
    with Checkpoint(path) as checkpoint:
        assert checkpoint.names == []


def test_member_past_the_end(tmp_path):
    entry = tarfile.TarInfo("model_weights.ckpt")
    entry.size = 1 << 40
    path = tmp_path / "a.nemo"
    path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + b"x" * 1000)
    with pytest.raises(ModelError, match="of 1099511627776 bytes runs past the end of the archive"):
        Checkpoint(path)


def test_gzip_bomb(tmp_path):
    entry = tarfile.TarInfo("model_weights.ckpt")
    entry.size = 64 << 20
    path = tmp_path / "a.nemo"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 17
    with pytest.raises(ModelError, match="unpacks to more than .* the limit for a gzipped archive"):
        Checkpoint(path)


def test_limits_are_stated(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.nemo", {"a": b"12345", "b": b"", "c": b""})
    with Checkpoint(path) as checkpoint, pytest.raises(ModelError, match="'a' has 5 bytes, at most 4 are allowed"):
        checkpoint.read("a", 4)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 2)
    with pytest.raises(ModelError, match="more than 2 members"):
        Checkpoint(path)
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(ModelError, match="at most 100 are allowed"):
        Checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"\x1f\x8b" + b"\x00" * 600, b"GG", b"PK\x03\x04" * 300,
                                     bytes(range(256)) * 8])
def test_garbage(tmp_path, content):
    path = tmp_path / "a.nemo"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        convert(path, tmp_path / "out.gguf")


@needs_torch
def test_truncated_at_many_offsets(tmp_path):
    whole = write_tar(tmp_path / "whole.nemo", members(CODEC_CONFIG, codec_state())).read_bytes()
    path = tmp_path / "cut.nemo"
    content_end = len(whole.rstrip(b"\0"))
    for size in range(0, content_end, content_end // 40):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            convert(path, tmp_path / "out.gguf")
    assert sorted(os.listdir(tmp_path)) == ["cut.nemo", "whole.nemo"]


@needs_torch
def test_mutated_archives_end_in_a_result_or_a_named_error(tmp_path):
    """Single bytes of header, configuration, pickle and zip directory replaced: never another kind of exception."""
    import random

    whole = write_tar(tmp_path / "whole.nemo", members(CODEC_CONFIG, codec_state())).read_bytes()
    chance = random.Random(5)
    path = tmp_path / "mutated.nemo"
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            convert(path, tmp_path / "out.gguf")
        except (ModelError, ValueError) as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 10
    assert {name for name in os.listdir(tmp_path) if name.endswith(".part")} == set()


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@needs_torch
def test_pickled_code_does_not_run(tmp_path):
    marker = tmp_path / "was-here"
    state = {**codec_state(), "payload": Payload(marker)}
    source = write_directory(tmp_path / "model", members(CODEC_CONFIG, state))
    with pytest.raises(ModelError, match="holds more than weights, which is refused"):
        convert(source, tmp_path / "out.gguf")
    contents = {**members(CODEC_CONFIG, {}), "model_weights.ckpt": pickle.dumps(Payload(marker))}
    source = write_directory(tmp_path / "pickle", contents)
    with pytest.raises(ModelError, match="not a zip-format torch checkpoint"):
        convert(source, tmp_path / "out.gguf")
    assert not marker.exists()


def rezip(data: bytes, change, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


@needs_torch
@pytest.mark.parametrize(
    "case", ["legacy", "compressed", "short record", "expanded", "not a dict", "sparse", "complex"])
def test_weights_that_claim_more_than_they_hold_or_are_no_weights(tmp_path, case):
    import torch

    state = codec_state()
    name = "audio_decoder.pre_conv.conv.bias"
    if case == "legacy":
        weights = weights_bytes(state, _use_new_zipfile_serialization=False)
    elif case == "compressed":
        weights = rezip(weights_bytes(state), lambda _, data: data, zipfile.ZIP_DEFLATED)
    elif case == "short record":
        weights = rezip(weights_bytes(state), lambda entry, data: data[:4] if entry.endswith("data/0") else data)
    elif case == "expanded":
        weights = weights_bytes({**state, name: torch.zeros(1).expand(1 << 40)})
    elif case == "sparse":
        weights = weights_bytes({**state, name: torch.eye(8).to_sparse()})
    elif case == "complex":
        weights = weights_bytes({**state, name: torch.zeros(8, dtype=torch.complex64)})
    else:
        weights = weights_bytes([state[name]])
    contents = {**members(CODEC_CONFIG, {}), "model_weights.ckpt": weights}
    message = {
        "legacy": "not a zip-format torch checkpoint",
        "compressed": "compressed records are not allowed",
        "short record": "not a readable torch checkpoint",
        "expanded": "claim more than the file",
        "not a dict": "a state dict is expected",
        "sparse": "is not a dense one",
        "complex": "a real or integer type is needed",
    }[case]
    with pytest.raises(ModelError, match=message):
        convert(write_directory(tmp_path / "model", contents), tmp_path / "out.gguf")


def config_of(tmp_path: Path, text: str | bytes) -> dict:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with Checkpoint(tmp_path / "model") as checkpoint:
        return read_config(checkpoint)


def test_configuration_values_are_plain(tmp_path):
    text = "a: ${oc.env:HOME}\nb: 1e-3\nc: 2024-01-01\nd: .inf\ne: [1, 2.5, null, true, x]\n7: y\nf: 1.5E+2\n"
    assert config_of(tmp_path, text) == {"a": "${oc.env:HOME}", "b": 0.001, "c": "2024-01-01", "d": "inf",
                                         "e": [1, 2.5, None, True, "x"], "7": "y", "f": 150.0}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))


@pytest.mark.parametrize("text", [
    "!!python/object/apply:os.system ['touch was-here']",
    "a: !!python/name:os.system",
    BOMB,
    "a: &a [*a]",
    "[" * 100_000,
    "a: !!binary aGVsbG8=",
    "- a list",
    "",
    "a: b: c",
    b"\xff\xfe\x00",
    "a: " + "x" * (1 << 20),
    "? [1, 2]\n: x",
], ids=["call", "name", "aliases", "recursive", "deep", "binary", "list", "empty", "syntax", "encoding", "huge", "key"])
def test_hostile_configurations(tmp_path, text):
    with pytest.raises(ModelError, match=r"model_config\.yaml"):
        config_of(tmp_path, text)


@needs_torch
def test_hostile_archive_in_a_process_of_its_own(tmp_path):
    """The command line: exit code 2, one line, no traceback."""
    config = edited(CODEC_CONFIG, "audio_decoder.base_channels", 1 << 16)
    source = write_tar(tmp_path / "a.nemo", members(config, codec_state()))
    done = subprocess.run([sys.executable, "-m", "pymagpie", "convert", str(source), "-o", str(tmp_path / "out.gguf")],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("pymagpie: error: ")
    assert not (tmp_path / "out.gguf").exists()
