"""Owners, bounds and rules: what would abort or crash in ggml is an exception here."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pymagpie.errors import BackendError, DeviceError, ModelError
from pymagpie.ggml import (
    BF16,
    F16,
    F32,
    I32,
    Backend,
    Buffer,
    Context,
    Graph,
    check_threads,
    default_threads,
    find_device,
    ggml_version,
    list_devices,
    ops,
    vulkan,
)
from pymagpie.ggml.bindings import ggml
from pymagpie.ggml.limits import broken_limit


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Backend("cpu", 1) as backend, Graph(backend, 64) as made:
        yield made


def test_the_version_is_the_pinned_one() -> None:
    assert ggml_version() == "0.15.3"


def test_build_allocate_set_compute_get(device: str) -> None:
    with Backend(device, 2) as backend, Graph(backend, 16) as graph:
        a, b = graph.input(F32, (3, 2), "a"), graph.input(F32, (3, 4), "b")
        product = graph.output(ops.mul_mat(graph.context, a, b), "product")
        graph.allocate()
        left, right = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3)
        for factor in (1, 2):
            a.set(left * factor)
            b.set(right)
            graph.compute()
            assert np.array_equal(product.get(), right @ left.T * factor)


def test_devices_are_found_by_every_name() -> None:
    cpu = find_device("cpu")
    assert cpu in list_devices() and cpu.is_cpu and cpu.family == "cpu"
    for name in ("CPU", "Cpu", " cpu ", "cpu:0", "cpu0", cpu):
        assert find_device(name) == cpu
    free, total = cpu.memory()
    assert 0 < free <= total


@pytest.mark.parametrize(("name", "error", "message"), [
    ("cuda:99", DeviceError, "CPU|of cuda"), ("cpu:1", DeviceError, "there are 1 of cpu"),
    ("abacus", ValueError, "CPU"),
    ("", ValueError, "use auto"), (3, ValueError, "must be a name"), ("cuda;0", ValueError, "unknown device")])
def test_unknown_devices_are_errors_that_list_the_known(name: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        find_device(name)  # type: ignore[arg-type]


def test_an_absent_backend_names_the_tool_that_builds_it() -> None:
    absent = {"cuda", "vulkan", "metal"} - {device.family for device in list_devices()}
    for name in absent:
        with pytest.raises(DeviceError, match=f"tools/build_ggml.py --backend {name}"):
            find_device(name)


def test_threads() -> None:
    assert 1 <= default_threads() <= 8 and check_threads(None) == default_threads() and check_threads(3) == 3
    for wrong in (0, -1, 513, 1.0, True, "2"):
        with pytest.raises(ValueError, match="from 1 to 512"):
            check_threads(wrong)  # type: ignore[arg-type]


def test_a_full_context_is_an_exception() -> None:
    with Context(2) as context:
        context.new_tensor(F32, (1,))
        context.new_tensor(F32, (1,))
        with pytest.raises(BackendError, match="full"):
            context.new_tensor(F32, (1,))


@pytest.mark.parametrize("ne", [(0,), (-1, 2), (1 << 40, 1 << 40), (), (1, 1, 1, 1, 1)])
def test_impossible_shapes_are_refused(ne: tuple[int, ...]) -> None:
    with Context(1) as context, pytest.raises(ModelError):
        context.new_tensor(F32, ne)


def test_closed_owners_say_so() -> None:
    backend = Backend("cpu", 1)
    context = Context(2)
    tensor = context.new_tensor(F32, (4,))
    with pytest.raises(ValueError, match="no memory"):
        tensor.get()
    buffer = Buffer(context, backend)
    buffer.clear()
    assert tensor.get().tolist() == [0, 0, 0, 0]
    graph = Graph(backend, 4)
    node = graph.output(ops.scale(graph.context, tensor, 2.0))
    with pytest.raises(ValueError, match="not allocated"):
        graph.compute()
    graph.allocate()
    with pytest.raises(ValueError, match="already allocated"):
        graph.allocate()
    with pytest.raises(ValueError, match="nothing can be added"):
        graph.expand(node)
    graph.close()
    for use in (graph.compute, node.get, graph.allocate):
        with pytest.raises(ValueError, match="closed"):
            use()
    for _ in range(2):  # closing twice is fine
        buffer.close()
        backend.close()
    for use in (tensor.get, buffer.clear, lambda: backend.handle, lambda: tensor.name):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert repr(tensor) == "Tensor(closed)"


def test_set_and_get_stay_inside_the_tensor() -> None:
    with Backend("cpu", 1) as backend:
        context = Context(1)
        tensor = context.new_tensor(F32, (4,), "t")
        with Buffer(context, backend):
            with pytest.raises(ValueError, match="do not fit"):
                tensor.set(np.zeros(5, np.float32))
            with pytest.raises(ValueError, match="do not fit"):
                tensor.set(np.zeros(1, np.float32), offset=16)
            with pytest.raises(ValueError, match="is f32; the data is float64"):
                tensor.set(np.zeros(4))
            with pytest.raises(ValueError, match="bytes"):
                tensor.get_into(np.zeros(3, np.float32))


def test_more_memory_than_free_is_refused(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> None:
    huge = graph.input(F32, (1 << 20, 1 << 20), "huge")
    graph.output(ops.scale(graph.context, huge, 2.0))
    with pytest.raises(BackendError, match=r"needs 4\.0 TiB on CPU, which has .* free|needs 8\.0 TiB"):
        graph.allocate()
    assert not graph.allocated


@pytest.mark.parametrize("build", [
    lambda c, t: ops.mul_mat(c, t(4, 2), t(3, 2)),
    lambda c, t: ops.mul_mat(c, t(4, 2, 3), t(4, 2, 4)),
    lambda c, t: ops.mul_mat(c, ops.transpose(c, t(4, 4)), t(4, 2)),
    lambda c, t: ops.mul_mat(c, t(4, 2), t(4, 2, kind=I32)),
    lambda c, t: ops.add(c, t(4, 2), t(3)),
    lambda c, t: ops.add(c, t(4), t(4, kind=I32)),
    lambda c, t: ops.sin(c, t(4, kind=F16)),
    lambda c, t: ops.leaky_relu(c, ops.transpose(c, t(4, 3)), 0.1),
    lambda c, t: ops.get_rows(c, t(4, 2), t(2)),
    lambda c, t: ops.get_rows(c, t(4, 2), t(2, 2, kind=I32)),
    lambda c, t: ops.set_rows(c, t(4, 8), t(3, 2), t(2, kind=I32)),
    lambda c, t: ops.reshape(c, t(4, 2), 7),
    lambda c, t: ops.view(c, t(4), (5,)),
    lambda c, t: ops.view(c, t(4), (2,), offset=12),
    lambda c, t: ops.view(c, t(4), (4, 4), (4,)),
    lambda c, t: ops.view(c, t(4), (4,), offset=-4),
    lambda c, t: ops.permute(c, t(4), 0, 1, 2, 2),
    lambda c, t: ops.concat(c, t(4, 2), t(3, 2), 1),
    lambda c, t: ops.concat(c, t(4, 2), t(4, 2, kind=F16), 1),
    lambda c, t: ops.concat(c, t(4), t(4), 4),
    lambda c, t: ops.repeat(c, t(3), t(4)),
    lambda c, t: ops.cpy(c, t(3), t(4)),
    lambda c, t: ops.im2col_1d(c, t(3, 2, 2), t(8, 3), 1),
    lambda c, t: ops.im2col_1d(c, t(3, 2, 2), t(4, 2), 2),
    lambda c, t: ops.conv_transpose_1d(c, t(3, 2, 2, kind=BF16), t(4, 2), 2),
    lambda c, t: ops.conv_transpose_1d(c, t(3, 2, 2), t(4, 3), 2),
    lambda c, t: ops.soft_max_ext(c, t(4, 2), t(4, 1), 1.0),
    lambda c, t: ops.top_k(c, t(4), 5),
    lambda c, t: ops.top_k(c, t(4), 0),
    lambda c, t: ops.argmax(c, t(4, 2, 2)),
])
def test_broken_rules_are_model_errors(graph: Graph, build) -> None:
    def tensor(*ne: int, kind: int = F32):
        return graph.input(kind, ne, "t")

    with pytest.raises(ModelError, match="t|must|operand"):
        build(graph.context, tensor)


def test_ggml_log_lines_reach_logging(caplog: pytest.LogCaptureFixture) -> None:
    from pymagpie.ggml.bindings import _log_callback

    with caplog.at_level(logging.DEBUG, "pymagpie.ggml"):
        _log_callback(3, b"half a ", None)
        _log_callback(5, b"line\nand another\n", None)
    lines = [(record.levelname, record.message) for record in caplog.records]
    assert lines == [("WARNING", "half a line"), ("WARNING", "and another")]


def run(script: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_a_malformed_vulkan_device_list_is_refused_before_ggml_sees_it() -> None:
    done = run("import pymagpie.ggml", GGML_VK_VISIBLE_DEVICES="first")
    assert done.returncode == 1 and "GGML_VK_VISIBLE_DEVICES is 'first'" in done.stderr


@pytest.mark.parametrize(("present", "message"), [(2, "devices 0 to 1"), (1, "device 0 here"), (0, "no device here")])
def test_a_vulkan_device_that_does_not_exist_is_refused_before_ggml_sees_it(
        present: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vulkan.VISIBLE_DEVICES, "0,2")
    monkeypatch.setattr(vulkan, "physical_device_count", lambda: present)
    vulkan.check_visible_devices(tmp_path)  # a build without Vulkan looks at no such list
    (tmp_path / "libggml-vulkan.so").touch()
    with pytest.raises(ValueError, match=f"GGML_VK_VISIBLE_DEVICES is 0,2, but Vulkan has .*{message}"):
        vulkan.check_visible_devices(tmp_path)
    monkeypatch.setenv(vulkan.VISIBLE_DEVICES, ",".join(map(str, range(present))))
    vulkan.check_visible_devices(tmp_path)


def test_the_vulkan_loader_is_asked_how_many_devices_there_are() -> None:
    visible = {device.name for device in list_devices() if device.family == "vulkan"}
    count = vulkan.physical_device_count()
    assert count is None and not visible or count is not None and count >= len(visible)


def test_vulkan_products_keep_full_precision_unless_the_user_says_no() -> None:
    script = "import os; import pymagpie.ggml; print(os.environ.get('GGML_VK_DISABLE_F16'))"
    assert run(script, GGML_VK_DISABLE_F16="0").stdout == "None\n"
    assert run("import os; os.environ.pop('GGML_VK_DISABLE_F16', None)\n" + script).stdout == "1\n"


def test_a_view_at_an_odd_byte_is_no_operand_of_a_vulkan_product() -> None:
    """Vulkan would assert it when the graph runs; a sum may begin anywhere."""
    with Backend("cpu", 1) as backend, Context(16) as context:
        table, x = context.new_tensor(F32, (32, 9)), context.new_tensor(F32, (28, 2))
        odd = ops.view(context, table, (28, 4), offset=4)
        product, total = ops.mul_mat(context, odd, x).pointer, ops.add(context, odd, odd).pointer
        assert broken_limit(backend, product) is None
        backend.device = replace(backend.device, name="Vulkan0")
        assert "starts at byte 4 of its memory, not at a multiple of" in (broken_limit(backend, product) or "")
        assert broken_limit(backend, total) is None
        aligned = ops.view(context, table, (28, 4), offset=128)
        assert broken_limit(backend, ops.mul_mat(context, aligned, x).pointer) is None


def test_strided_operands_of_a_vulkan_product_are_copied(device: str) -> None:
    """They would be rounded to f16: 3e-4."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((24, 3, 64), np.float32), rng.standard_normal((20, 3, 64), np.float32)
    with Backend(device, 1) as backend, Graph(backend, 32) as graph:
        first, second = graph.input(F32, (64, 3, 24), "a"), graph.input(F32, (64, 3, 20), "b")
        ctx = graph.context
        product = graph.output(ops.mul_mat(ctx, *(ops.permute(ctx, x, 0, 2, 1, 3) for x in (first, second))))
        graph.allocate()
        first.set(a)
        second.set(b)
        graph.compute()
        np.testing.assert_allclose(product.get(), np.einsum("mhk,nhk->hnm", a, b), rtol=0, atol=2e-5)


def test_memory_on_llvmpipe_is_freed_with_the_backend() -> None:
    """Its driver looks at freed buffers; elsewhere memory goes at once."""
    freed: list[int] = []
    with Backend("cpu", 1) as backend:
        backend.free_memory(freed.append, 1)
        assert freed == [1]
        backend.device = replace(backend.device, description="llvmpipe (LLVM 15.0.6, 256 bits)")
        backend.free_memory(freed.append, 2)
        assert freed == [1]
    assert freed == [1, 2]


def test_the_spin_count_is_set_unless_the_user_did() -> None:
    script = "import os; import pymagpie.ggml; print(os.environ['GOMP_SPINCOUNT'])"
    assert run(script, GOMP_SPINCOUNT="7").stdout == "7\n"
    script = "import os; os.environ.pop('GOMP_SPINCOUNT', None)\n" + script
    assert run(script).stdout == "1000\n"


def test_a_cuda_builds_missing_symbol_does_not_stop_the_import() -> None:
    done = run("""
        import ctypes
        from pymagpie.ggml.bindings import _MissingSymbol
        library = ctypes.CDLL(None)
        original = ctypes.CDLL.__getattr__
        with _MissingSymbol():
            stand_in = library.ggml_backend_cuda_allreduce_tensor
            stand_in.argtypes = [ctypes.c_void_p]
            try:
                library.another_missing_function
            except AttributeError:
                print("others still fail")
        assert ctypes.CDLL.__getattr__ is original
        """)
    assert done.stdout == "others still fail\n", done.stderr


def test_import_is_fast_and_light() -> None:
    done = run("""
        import sys
        import pymagpie
        print(sorted({"numpy", "ggml", "gguf", "torch", "soundfile", "cffi", "huggingface_hub"} & set(sys.modules)))
        """)
    assert done.stdout == "[]\n"


def test_only_the_ggml_package_imports_ggml_python() -> None:
    from pathlib import Path

    import pymagpie
    package = Path(pymagpie.__file__).parent
    lines = ((path, line.strip()) for path in package.rglob("*.py") if path.parent.name != "ggml"
             for line in path.read_text().splitlines())
    offenders = [str(path) for path, line in lines if line.startswith(("import ggml", "from ggml"))]
    assert offenders == []
    assert ggml.__name__ == "ggml"
