"""The GGUF reader refuses what would make ggml abort, and reads the rest as it is."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from pymagpie.errors import ModelError, ModelNotFoundError
from pymagpie.ggml import F32, Backend, Buffer, Context, GGUFFile


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(*, keys: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: bytes = b"", version: int = 3,
         counts: tuple[int, int] | None = None, magic: bytes = b"GGUF") -> bytes:
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


GOOD = gguf(keys=(key(b"a", 4, struct.pack("<I", 7)),), tensors=(tensor(b"w", (4, 2)),), data=bytes(32))
UINT32 = struct.pack("<I", 1)


@pytest.mark.parametrize(("blob", "message"), [
    (b"", "not a GGUF file"),
    (b"GGUF", "not a GGUF file"),
    (b"garbage" * 100, "starts with b'garb'"),
    (gguf(magic=b"GGML", data=bytes(32)), "not a GGUF file"),
    (gguf(version=1, data=bytes(32)), "version 1 is not supported"),
    (gguf(version=0x03000000, data=bytes(32)), "version"),
    (gguf(counts=(1 << 60, 0), data=bytes(32)), "at most"),
    (gguf(counts=(0, 1 << 60), data=bytes(32)), "at most"),
    (gguf(counts=(0, 9), data=bytes(8)), "ends inside its header|empty metadata key"),
    (gguf(keys=(key(b"", 4, UINT32),)), "an empty metadata key"),
    (gguf(keys=(key(b"a", 4, UINT32), key(b"a", 4, UINT32))), "'a' appears twice"),
    (gguf(keys=(key(b"a", 99, UINT32),)), "unknown value type 99"),
    (gguf(keys=(key(b"\xff\xfe", 4, UINT32),)), "not UTF-8"),
    (gguf(keys=(key(b"a", 8, struct.pack("<Q", 1 << 62)),)), "a string of"),
    (gguf(keys=(key(b"a", 9, struct.pack("<IQ", 4, 1 << 62)),)), "an array of"),
    (gguf(keys=(key(b"a", 9, struct.pack("<IQ", 4, 1 << 20)),)), "ends inside its header"),
    (gguf(keys=(key(b"a", 9, struct.pack("<IQ", 8, 1 << 20)),)), "longer than the file"),
    (gguf(keys=(key(b"a", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 0)),)), "nested arrays|longer than"),
    (gguf(keys=(key(b"general.alignment", 4, struct.pack("<I", 3)),)), "power of two"),
    (gguf(keys=(key(b"general.alignment", 8, string(b"32")),)), "power of two"),
    (gguf(tensors=(tensor(b"", (4,)),), data=bytes(32)), "must have 1 to 63 bytes"),
    (gguf(tensors=(tensor(b"x" * 64, (4,)),), data=bytes(32)), "must have 1 to 63 bytes"),
    (gguf(tensors=(tensor(b"w", (0, 2)),), data=bytes(32)), "impossible shape"),
    (gguf(tensors=(tensor(b"w", (1 << 40, 1 << 40)),), data=bytes(32)), "impossibly large"),
    (gguf(tensors=(tensor(b"w", (2,) * 5),), data=bytes(256)), "at most 4"),
    (gguf(tensors=(tensor(b"w", (4,), kind=77),), data=bytes(32)), "unknown type 77"),
    (gguf(tensors=(tensor(b"w", (33,), kind=8),), data=bytes(64)), "impossible shape"),
    (gguf(tensors=(tensor(b"w", (4, 2), offset=32),), data=bytes(32)), "outside the file"),
    (gguf(tensors=(tensor(b"w", (4, 2), offset=8),), data=bytes(64)), "outside the file"),
    (gguf(tensors=(tensor(b"w", (4,)), tensor(b"w", (4,))), data=bytes(32)), "'w' appears twice"),
    (GOOD[:-1], "outside the file")])
def test_damage_is_named(tmp_path: Path, blob: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(blob)
    with pytest.raises(ModelError, match=message) as caught:
        GGUFFile.open(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for end in range(len(GOOD)):
        path.write_bytes(GOOD[:end])
        with pytest.raises(ModelError):
            GGUFFile.open(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFoundError, match="is not a file"):
        GGUFFile.open(tmp_path)


def test_known_values_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(0)
    arrays = {"f32": rng.standard_normal((2, 3, 4)).astype(np.float32),
              "f16": rng.standard_normal((5, 7)).astype(np.float16), "i32": np.arange(6, dtype=np.int32)}
    blocks = rng.standard_normal((2, 64)).astype(np.float32)
    writer = GGUFWriter(path, "test")
    writer.add_string("text", "grüße")
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("words", ["a", "", "b"])
    writer.add_bool("yes", True)
    writer.add_float32("x", 0.5)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.add_tensor("q8_0", quantize(blocks, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as file, Backend("cpu", 1) as backend:
        assert file.metadata == {"general.architecture": "test", "text": "grüße", "numbers": [1, -2, 3],
                                 "words": ["a", "", "b"], "yes": True, "x": 0.5}
        assert file.tensors["f32"].ne == (4, 3, 2) and file.tensors["f32"].shape == (2, 3, 4)
        for name, array in arrays.items():
            assert np.array_equal(file.read(name), array)
        assert np.abs(file.read("q8_0") - blocks).max() < 0.05
        with pytest.raises(ModelError, match="'none' is missing"):
            file.read("none")
        context = Context(3)
        loaded = context.new_tensor(F32, (7, 5))
        wrong = context.new_tensor(F32, (7, 4))
        with Buffer(context, backend):
            file.load("f16", loaded)
            assert np.array_equal(loaded.get(), arrays["f16"].astype(np.float32))
            with pytest.raises(ModelError, match="has shape"):
                file.load("f16", wrong)
    with pytest.raises(ValueError, match="closed"):
        file.read("f32")
