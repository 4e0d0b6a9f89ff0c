"""``pymagpie bench codec``: what it reports, never how fast it is."""

from __future__ import annotations

import json

import pytest

from pymagpie import native
from pymagpie.cli import main
from pymagpie.nanocodec.bench import MatrixProduct, flop_per_frame
from pymagpie.nanocodec.config import CodecConfig

PUBLIC = CodecConfig(sample_rate=22050, samples_per_frame=1024, num_codebooks=8, levels=(8, 7, 6, 6), base_channels=864,
                     in_kernel=7, out_kernel=3, up_rates=(8, 8, 4, 2, 2), kernels=(3, 7, 11), dilations=(1, 3, 5))


def test_operations_of_the_public_codec():
    # 2 * (7*32*864 + 3 blocks * 2 convs * 21 taps * sum(rows * channels^2) + 1024*3*27) + upsamplers 4 * rows * cin
    residual = sum(rows * channels**2 for rows, channels in ((8, 432), (64, 216), (256, 108), (512, 54), (1024, 27)))
    upsamplers = sum(4 * rows * cin for rows, cin in ((8, 864), (64, 432), (256, 216), (512, 108), (1024, 54)))
    assert flop_per_frame(PUBLIC) == 2 * (7 * 32 * 864 + 126 * residual + 1024 * 3 * 27) + upsamplers
    assert flop_per_frame(PUBLIC) / 2 == pytest.approx(1.22e9, rel=0.01)  # as published: 1.22 GMAC a frame


def test_matrix_product_reports_a_rate():
    with MatrixProduct(1) as product:
        assert product.gflops() > 0.01


@pytest.mark.skipif(native.load() is None, reason=f"native library: {native.status().reason}")
def test_json_report(golden, capsys):
    model = str(golden("nanocodec-tiny.f32.gguf"))
    code = main(["bench", "codec", "--model", model, "--chunks", "1,3", "--seconds", "0",
                 "--device", "cpu", "--threads", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0 and report["threads"] == 1 and report["instruction_set"] in native.instruction_sets()
    assert [chunk["frames"] for chunk in report["chunks"]] == [1, 3]
    for chunk in report["chunks"]:
        assert chunk["rounds"] >= 3 and set(chunk["kernels"]) == {"native", "stock"}
        for result in chunk["kernels"].values():
            seconds = result["ms"] / 1e3
            assert result["gflops"] == pytest.approx(report["gflop_per_frame"] * chunk["frames"] / seconds)
            assert result["rtfx"] == pytest.approx(chunk["frames"] * 1024 / 22050 / seconds)
            assert result["share_of_matmul"] == pytest.approx(result["gflops"] / chunk["matmul_gflops"])


def test_table(golden, capsys):
    code = main(["bench", "codec", "--model", str(golden("nanocodec-tiny.f32.gguf")), "--chunks", "1", "--seconds", "0",
                 "--kernels", "stock,dense", "--device", "cpu", "--threads", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and [line.split()[1] for line in lines[2:4]] == ["stock", "dense"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--chunks", "0"], "'0' is not a positive integer"), (["--kernels", "fast"], "unknown kernels 'fast'"),
    (["--seconds", "-1"], "--seconds must be from 0")])
def test_bad_arguments(arguments, message, golden, capsys):
    model = str(golden("nanocodec-tiny.f32.gguf"))
    assert main(["bench", "codec", "--model", model, "--device", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err
