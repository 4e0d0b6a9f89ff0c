"""What ``tools/build_ggml.py`` checks and would run; nothing is compiled here."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import build_ggml
import pytest

Install = Callable[[str, str], Path]


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A machine with nothing on PATH but the programs that a test puts there, and no system headers."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    for name in ("CXX", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "VULKAN_SDK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build_ggml, "SYSTEM", [])

    def install(name: str, prints: str = "") -> Path:
        path = programs / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n".replace("cat", "/bin/cat"))
        path.chmod(0o755)
        return path

    return install


def put(path: Path, content: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def toolkit(folder: Path, only: Install, release: str = "12.8", cublas: bool = True) -> None:
    only("nvcc", f"Cuda compilation tools, release {release}, V{release}.61\n#$ TOP={folder}/bin/..")
    put(folder / "bin" / "nvcc")
    if cublas:
        put(folder / "targets" / "x86_64-linux" / "include" / "cublas_v2.h")


def vulkan(prefix: Path, structs: str = "struct LayerSettingEXT;") -> None:
    put(prefix / "include/vulkan/vulkan.hpp")
    put(prefix / "include/vulkan/vulkan_structs.hpp", structs)
    put(prefix / "share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake")
    put(prefix / "lib/x86_64-linux-gnu/libvulkan.so")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    code = build_ggml.main([*arguments, "--dry-run"])
    out, err = capsys.readouterr()
    return code, shlex.split(out), err


def settings(words: list[str]) -> dict[str, str]:
    """The CMake defines of a printed command."""
    prefix = "--config-settings=cmake.define."
    pairs = [word[len(prefix) :].split("=", 1) for word in words if word.startswith(prefix)]
    return {name: value for name, value in pairs}


def test_cpu_command(only: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    only("g++", "")
    monkeypatch.setattr(sys, "platform", "linux")
    code, words, err = run(capsys, "--backend", "cpu")
    assert code == 0 and err == ""
    assert words[:4] == [sys.executable, "-m", "pip", "install"] and "ggml-python==0.0.45" in words
    for flag in ("--no-cache-dir", "--force-reinstall", "--no-deps"):
        assert flag in words
    assert words[words.index("--no-binary") + 1] == "ggml-python"
    assert settings(words) == {"GGML_LLAMAFILE": "ON"}


def test_no_compiler(only: Install, capsys: pytest.CaptureFixture[str]) -> None:
    code, words, err = run(capsys, "--backend", "cpu")
    assert code == 4 and "missing: no C++17 compiler: apt-get install g++" in err and words


def test_the_named_compiler_counts(only: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    path = only("my-c++", "")
    monkeypatch.setenv("CXX", f"{path} -O2")
    assert build_ggml.compiler() == str(path)


def test_without_a_dry_run_nothing_starts_when_something_is_missing(
    only: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []
    real = build_ggml.subprocess.run
    monkeypatch.setattr(build_ggml.subprocess, "run", lambda argv, **kw: commands.append(argv) or real(argv, **kw))
    assert build_ggml.main(["--backend", "vulkan"]) == 4
    assert not any("install" in argv for argv in commands)
    assert capsys.readouterr().err.count("build_ggml: missing: ") == 5


@pytest.mark.parametrize("architectures", [None, "80;90"])
def test_cuda_command(
    architectures: str | None, only: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only("g++", "")
    toolkit(tmp_path / "cuda", only)
    more = ["--cuda-architectures", architectures] if architectures else []
    code, words, err = run(capsys, "--backend", "cuda", *more)
    assert code == 0 and err == ""
    expected = {"GGML_LLAMAFILE": "ON", "GGML_CUDA": "ON", "GGML_CUDA_GRAPHS": "ON"}
    assert settings(words) == expected | ({"CMAKE_CUDA_ARCHITECTURES": architectures} if architectures else {})
    assert "PATCHED_SOURCE" in words and "ggml-python==0.0.45" not in words


@pytest.mark.parametrize(
    ("release", "cublas", "message"),
    [
        ("11.8", True, "not CUDA 12 or later"),
        ("13.0", False, "no cublas_v2.h in .*cuda: install"),
        ("x", True, "not CUDA"),
    ],
)
def test_cuda_toolkit_too_old_or_incomplete(
    release: str, cublas: bool, message: str, only: Install, tmp_path: Path
) -> None:
    toolkit(tmp_path / "cuda", only, release, cublas)
    (lack,) = build_ggml.missing_cuda()
    assert re.search(message, lack)


def test_vulkan_command_names_the_headers(only: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only("g++", "")
    only("glslc", "")
    prefix = tmp_path / "newer" / "usr"
    vulkan(prefix)
    code, words, err = run(capsys, "--backend", "vulkan", "--prefix", str(prefix))
    assert code == 0 and err == ""
    assert settings(words) == {
        "GGML_LLAMAFILE": "ON",
        "GGML_VULKAN": "ON",
        "CMAKE_PREFIX_PATH": str(prefix),
        "Vulkan_INCLUDE_DIR": str(prefix / "include"),
    }


def test_vulkan_of_the_system_needs_no_prefix(only: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only("glslc", "")
    vulkan(tmp_path / "usr")
    monkeypatch.setattr(build_ggml, "SYSTEM", [tmp_path / "usr"])
    assert build_ggml.missing_vulkan([]) == []
    assert set(build_ggml.cmake_defines("vulkan", [], None)) == {"GGML_LLAMAFILE", "GGML_VULKAN"}


def test_vulkan_each_lack_is_named(only: Install, tmp_path: Path) -> None:
    def lacks() -> str:
        return "\n".join(build_ggml.missing_vulkan([tmp_path]))

    assert all(name in lacks() for name in ("glslc", "vulkan.hpp", "SPIRV-HeadersConfig.cmake", "libvulkan.so"))
    vulkan(tmp_path, structs="struct LayerProperties;")
    assert "too old (no vk::LayerSettingEXT)" in lacks() and "dpkg-deb -x" in lacks()
    only("glslc", "")
    vulkan(tmp_path)
    assert lacks() == ""
    loader = tmp_path / "lib/x86_64-linux-gnu/libvulkan.so"
    loader.unlink()
    loader.symlink_to("libvulkan.so.1")  # as a development package without its library leaves it
    assert "no Vulkan loader" in lacks()


def test_metal(only: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    only("clang++", "")
    monkeypatch.setattr(sys, "platform", "linux")
    assert "Metal exists on macOS only" in run(capsys, "--backend", "metal")[2]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "xcode-select --install" in run(capsys, "--backend", "metal")[2]
    only("xcrun", "")
    code, words, _ = run(capsys, "--backend", "metal")
    assert code == 0 and settings(words)["GGML_METAL"] == "ON"
    assert settings(run(capsys, "--backend", "cpu")[1])["GGML_METAL"] == "OFF"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--backend", "opencl"],
        ["--backend", "cpu", "--jobs", "0"],
        ["--backend", "vulkan", "--prefix", "/nonexistent"],
    ],
)
def test_bad_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_ggml.main(arguments)
    assert stop.value.code == 2


def test_patches_go_before_their_anchors(tmp_path: Path) -> None:
    patches = build_ggml.PATCHES["cuda"]
    for patch in patches:
        put(tmp_path / patch.file, f"before\n{patch.anchor}after\n")
    build_ggml.patch_source(tmp_path, patches)
    for patch in patches:
        assert (tmp_path / patch.file).read_text() == f"before\n{patch.insertion}{patch.anchor}after\n"


@pytest.mark.parametrize("text", [None, "", "anchor anchor"])
def test_a_patch_that_does_not_fit(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        put(tmp_path / "a/b.cu", text)
    with pytest.raises(RuntimeError, match="the patch of a/b.cu does not fit this source"):
        build_ggml.patch_source(tmp_path, [build_ggml.Patch("a/b.cu", "anchor", "x")])
    assert text is None or (tmp_path / "a/b.cu").read_text() == text


def test_devices_of_an_installed_build() -> None:
    pytest.importorskip("ggml", reason="needs ggml-python")
    assert "CPU" in str(build_ggml.installed_devices())


def test_build_before_the_rest_of_pymagpie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "gguf.py", "raise ModuleNotFoundError(\"No module named 'gguf'\")")
    monkeypatch.setattr(build_ggml, "REPOSITORY", f"{tmp_path}{os.pathsep}{build_ggml.REPOSITORY}")
    assert build_ggml.installed_devices() is None


def test_a_build_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "ggml.py", "raise OSError('undefined symbol: x')")
    monkeypatch.setattr(build_ggml, "REPOSITORY", f"{tmp_path}{os.pathsep}{build_ggml.REPOSITORY}")
    with pytest.raises(RuntimeError, match="undefined symbol: x"):
        build_ggml.installed_devices()


@pytest.mark.parametrize(("backend", "message"), [("cpu", "the build failed"), ("cuda", "cannot be downloaded")])
def test_a_failed_build_is_reported(
    backend: str, message: str, only: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """pip itself, with an index that does not exist: the exit code and the last line say that it failed."""
    only("g++", "")
    toolkit(tmp_path / "cuda", only)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert build_ggml.main(["--backend", backend]) == 1
    assert message in capsys.readouterr().err
