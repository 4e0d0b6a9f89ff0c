"""``pymagpie convert``: results on stdout, one line of error on stderr, exit codes."""

from __future__ import annotations

import json

import pytest
from checkpoints import (
    CODEC_CONFIG,
    PREFIX,
    codec_state,
    magpie_config,
    magpie_state,
    members,
    needs_torch,
    write_directory,
    write_tar,
)

from pymagpie.cli import main


@needs_torch
def test_codec_as_json(tmp_path, capsys):
    source = write_tar(tmp_path / "a.nemo", members(CODEC_CONFIG, codec_state()))
    assert main(["convert", str(source), "-o", str(tmp_path / "out.gguf"), "--outtype", "f32", "--json"]) == 0
    out, err = capsys.readouterr()
    size = (tmp_path / "out.gguf").stat().st_size
    assert json.loads(out) == {"output": str(tmp_path / "out.gguf"), "kind": "nanocodec", "outtype": "f32",
                               "tensors": 47, "bytes": size, "assets": None}
    assert err == ""


@needs_torch
def test_magpie_as_text(tmp_path, capsys):
    contents = {**members(magpie_config(), magpie_state()), f"{PREFIX}_english.dict": b"A  a\n"}
    source = write_directory(tmp_path / "model", contents)
    arguments = ["convert", str(source), "-o", str(tmp_path / "out.gguf"), "--outtype", "q8_0",
                 "--local-transformer-outtype", "f16"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "magpietts, q8_0" in lines[0] and lines[1] == f"{tmp_path / 'out.assets'}: tokeniser files"


@pytest.mark.parametrize(("arguments", "code"), [
    ([], 2),
    (["x.nemo"], 2),
    (["x.nemo", "-o", "{tmp}/out.gguf", "--outtype", "q2"], 2),
    (["{tmp}/none.nemo", "-o", "{tmp}/out.gguf"], 3),
    (["{tmp}", "-o", "{tmp}/none/out.gguf"], 1),
    (["{tmp}", "-o", "{tmp}/out.gguf"], 2),
])
def test_faults(tmp_path, capsys, arguments, code):
    assert main(["convert", *(argument.format(tmp=tmp_path) for argument in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("pymagpie: error: ") and err.count("\n") == 1
