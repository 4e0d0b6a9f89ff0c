"""Writing a GGUF whole or not at all, and retyping one."""

from __future__ import annotations

import os

import numpy as np
import pytest
from checkpoints import read_gguf

from pymagpie.convert import convert
from pymagpie.convert.writer import GGUFOutput
from pymagpie.errors import ModelError
from pymagpie.synthetic import write_magpie, write_nanocodec


def test_types_and_values(tmp_path):
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    with GGUFOutput(tmp_path / "a.gguf", "test") as out:
        entries = {"s": "text", "empty": "", "b": True, "i": -3, "big": 1 << 40, "f": 0.5, "ints": [1, 2],
                   "strings": ("x", "y")}
        for key, value in entries.items():
            out.put(key, value)
        out.put("nothing", [])
        out.add("f32", values)
        out.add("f16", values, "f16")
        out.add("q8", values, "q8_0")
        out.add("narrow", values[:, :31], "q8_0")
        out.add("i32", np.array(7, np.int32))
        assert not (tmp_path / "a.gguf").exists()
    metadata, tensors, types = read_gguf(tmp_path / "a.gguf")
    assert {key: metadata[key] for key in entries} == {**entries, "strings": ["x", "y"]}
    assert "nothing" not in metadata
    assert types == {"f32": "F32", "f16": "F16", "q8": "Q8_0", "narrow": "F16", "i32": "I32"}
    np.testing.assert_array_equal(tensors["f32"], values)
    np.testing.assert_array_equal(tensors["narrow"], values[:, :31].astype(np.float16))
    assert tensors["i32"].tolist() == [7]
    assert os.listdir(tmp_path) == ["a.gguf"]


def test_failure_leaves_the_target_as_it_was(tmp_path):
    target = tmp_path / "a.gguf"
    target.write_bytes(b"before")
    with pytest.raises(ModelError, match="'t' holds NaN"), GGUFOutput(target, "test") as out:
        out.add("t", np.array([np.nan], np.float32))
    with pytest.raises(ValueError, match="float64 as 'f32'"), GGUFOutput(target, "test") as out:
        out.add("t", np.zeros(3))
    assert target.read_bytes() == b"before" and os.listdir(tmp_path) == ["a.gguf"]


@pytest.mark.parametrize(("outtype", "limit"), [("f16", 65504.0), ("q8_0", 65504.0 * 127)])
def test_values_that_a_type_cannot_hold(tmp_path, outtype, limit):
    with GGUFOutput(tmp_path / "a.gguf", "test") as out:
        out.add("t", np.full((1, 32), limit, np.float32), outtype)
    with pytest.raises(ModelError, match=f"which {outtype} cannot"), GGUFOutput(tmp_path / "b.gguf", "test") as out:
        out.add("t", np.full((1, 32), limit * 1.01, np.float32), outtype)


def test_failure_while_writing_leaves_the_target_as_it_was(tmp_path, monkeypatch):
    import gguf

    target = tmp_path / "a.gguf"
    target.write_bytes(b"before")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    with pytest.raises(OSError, match="No space"), GGUFOutput(target, "test") as out:
        out.add("t", np.zeros(3, np.float32))
    assert target.read_bytes() == b"before" and os.listdir(tmp_path) == ["a.gguf"]


def test_unwritable_targets(tmp_path):
    with pytest.raises(IsADirectoryError):
        GGUFOutput(tmp_path, "test")
    with pytest.raises(FileNotFoundError):
        GGUFOutput(tmp_path / "none" / "a.gguf", "test")


@pytest.mark.parametrize("outtype", ["f16", "q8_0", "f32"])
def test_retyped_file_equals_the_one_written_in_that_type(tmp_path, outtype):
    source = write_magpie(tmp_path / "f32.gguf", outtype="f32")
    expected = write_magpie(tmp_path / "expected.gguf", outtype=outtype)
    result = convert(source, tmp_path / "out.gguf", outtype)
    assert result.kind == "magpietts" and result.path.read_bytes() == expected.read_bytes()


def test_retyped_codec(tmp_path):
    source = write_nanocodec(tmp_path / "f32.gguf", outtype="f32", base_channels=64)
    expected = write_nanocodec(tmp_path / "expected.gguf", outtype="f16", base_channels=64)
    assert convert(source, tmp_path / "out.gguf").path.read_bytes() == expected.read_bytes()
    with pytest.raises(ValueError, match="not available for a NanoCodec"):
        convert(source, tmp_path / "out2.gguf", "q8_0")
    with pytest.raises(ValueError, match="is the source"):
        convert(source, source)


def test_retyping_copies_the_tokeniser_files(tmp_path):
    source = write_magpie(tmp_path / "a.gguf", outtype="f32")
    (tmp_path / "a.assets").mkdir()
    (tmp_path / "a.assets" / "manifest.json").write_text("{}")
    result = convert(source, tmp_path / "b.gguf", "q8_0", "f16")
    assert result.assets == tmp_path / "b.assets" and (result.assets / "manifest.json").read_text() == "{}"
    types = read_gguf(result.path)[2]
    assert types["audio_embeddings.0.weight"] == "F16" and types["text_embedding.weight"] == "Q8_0"


def test_retyping_refuses_other_files(tmp_path):
    with GGUFOutput(tmp_path / "llama.gguf", "llama") as out:
        out.add("t", np.zeros(3, np.float32))
    with pytest.raises(ModelError, match="architecture 'llama', allowed: nemo-nano-codec, magpietts"):
        convert(tmp_path / "llama.gguf", tmp_path / "out.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(10))
    with pytest.raises(ModelError):
        convert(tmp_path / "broken.gguf", tmp_path / "out.gguf")
    assert sorted(os.listdir(tmp_path)) == ["broken.gguf", "llama.gguf"]
