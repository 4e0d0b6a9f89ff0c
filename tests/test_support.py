"""Which graphs a device can run; and that all of them keep to the limits of Metal, which no test machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import metal_rules
import numpy as np
import pytest

from pymagpie import NanoCodec
from pymagpie.ggml import F16, F32, Backend, Context, custom, find_device, ops
from pymagpie.ggml.device import Device
from pymagpie.magpie import AcousticModel
from pymagpie.support import graph_builders, graph_support

GRAPHS = {"codec streaming", "codec offline", "encoder", "cross-attention projection", "blank prefill",
          "prefill, greedy", "prefill, top-k", "prefill, codes on the host",
          "step, greedy", "step, top-k", "step, codes on the host", "slot", "sequence"}


def test_a_device_supports_every_graph(device: str) -> None:
    found = graph_support(device)
    assert {(graph.graph, graph.weights) for graph in found} == set(product(GRAPHS, ("f32", "f16")))
    assert [graph for graph in found if not graph.supported or graph.nodes < 20] == []


def test_a_node_that_the_device_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    metal = metal_device()
    monkeypatch.setattr(Backend, "supports_op", lambda self, node: metal_rules.supports(node)
                        and b"TOP_K" not in metal_rules.ggml.ggml_op_desc(node))
    lacking = {graph.graph: graph.unsupported for graph in graph_support(metal, ("f32",)) if not graph.supported}
    assert set(lacking) == {"prefill, top-k", "step, top-k"}
    assert len(lacking["step, top-k"]) == 8 and "TOP_K" in lacking["step, top-k"][0]
    assert lacking["step, top-k"][0].endswith("is not supported by MTL0")


# -- Metal -----------------------------------------------------------------------------------------------------------

def metal_device() -> Device:
    """The CPU by Metal's name: graphs are built as for Metal, and can be computed."""
    return replace(find_device("cpu"), name="MTL0", type="gpu", description="the CPU by Metal's rules")


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(Backend, "supports_op", lambda self, node: metal_rules.supports(node))
    monkeypatch.setattr(custom, "on_cpu", lambda tensor: False)
    yield metal_device()


@pytest.mark.parametrize("outtype", ["f32", "f16"])
@pytest.mark.parametrize("kernels", ["auto", "stock", "dense"])
def test_every_graph_keeps_to_metals_limits(metal: Device, outtype: str, kernels: str) -> None:
    with ExitStack() as stack:
        for name, build in graph_builders(metal, outtype, stack, kernels):
            with build() as graph:
                used = {metal_rules.ggml.ggml_op_desc(node).decode() for node in graph.nodes()}
                assert graph.unsupported() == [], name
                assert not used & {"PAD", "COL2IM_1D"}


def test_without_filling_up_rows_metals_limits_are_broken(metal: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymagpie.nanocodec.decoder.CHANNEL_MULTIPLES", {})
    monkeypatch.setattr("pymagpie.magpie.encoder.ROW_MULTIPLES", {})
    broken = {graph.graph for graph in graph_support(metal, ("f32",)) if not graph.supported}
    assert broken == {"codec streaming", "codec offline"}  # the text of this model fills its rows anyway


def test_the_rules_know_what_metal_refuses() -> None:
    """One known answer each, so that the test above can fail."""
    with Context(32) as ctx:
        x = ctx.new_tensor(F32, (40, 6, 3))
        kernel = ctx.new_tensor(F32, (3, 6, 2))
        strided = ops.permute(ctx, ctx.new_tensor(F32, (40, 3, 6)), 0, 2, 1, 3)
        matrix = ctx.new_tensor(F32, (81, 16))
        refused = [ops.im2col_1d(ctx, kernel, strided, 1),
                   ops.mul_mat(ctx, matrix, ctx.new_tensor(F32, (81, 9))),
                   ops.add(ctx, ops.transpose(ctx, ctx.new_tensor(F32, (4, 5))), ctx.new_tensor(F32, (5, 4))),
                   ops.add(ctx, ctx.new_tensor(F16, (4, 4)), ctx.new_tensor(F16, (4, 4)))]
        taken = [ops.im2col_1d(ctx, kernel, x, 1), ops.mul_mat(ctx, matrix, ctx.new_tensor(F32, (81, 8))),
                 ops.mul_mat(ctx, ctx.new_tensor(F32, (96, 16)), ctx.new_tensor(F32, (96, 9)))]
        assert [metal_rules.supports(tensor.pointer) for tensor in refused] == [False] * len(refused)
        assert [metal_rules.supports(tensor.pointer) for tensor in taken] == [True] * len(taken)


@pytest.mark.parametrize("kernels", ["auto", "stock"])
def test_the_codec_built_for_metal_computes_the_same(golden: Callable[[str], Path], metal: Device,
                                                     kernels: str) -> None:
    path, arrays = golden("nanocodec-tiny.f32.gguf"), np.load(golden("nanocodec-tiny.npz"))
    codes, expected = arrays["t37_codes"][:6], arrays["t37_audio_f64"][:6 * 1024]
    with NanoCodec.load(path, metal, kernels=kernels) as codec:
        audio = codec.decode(codes)
        np.testing.assert_allclose(audio, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(np.concatenate(list(codec.stream(codes, 1))), audio, rtol=0, atol=2e-5)


@pytest.mark.parametrize("cached", [True, False])
def test_the_acoustic_model_built_for_metal_computes_the_same(golden: Callable[[str], Path], metal: Device,
                                                              cached: bool) -> None:
    path, options = golden("magpie-tiny.f32.gguf"), {"temperature": 0, "max_steps": 8, "use_kv_cache": cached}
    text = np.load(golden("magpie-tiny.npz"))["text/A"]
    found: list[Any] = []
    for device in ("cpu", metal):
        with AcousticModel.load(path, device) as model:
            found.append(np.stack(list(model.generate(text, **options))))
    np.testing.assert_array_equal(*found)
