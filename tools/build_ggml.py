#!/usr/bin/env python3
"""Build ggml-python with a backend and install it into the current Python environment.

    python tools/build_ggml.py --backend cpu
    python tools/build_ggml.py --backend cuda --cuda-architectures 90
    python tools/build_ggml.py --backend vulkan [--prefix DIR]
    python tools/build_ggml.py --backend metal

Ready-made wheels lack what pymagpie's speed rests on: the fast CPU matrix kernels (GGML_LLAMAFILE) and CUDA graphs. pip
keeps one wheel of a version whatever options it was built with, so its cache is left aside. Headers and compilers are
looked for first; what is missing is listed together with the way to get it (exit code 4). For CUDA a fault of ggml's is
mended in the source before it is compiled: PATCHES says where and why.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.0.45"
REPOSITORY = Path(__file__).resolve().parents[1]

DEFINES = {
    "cpu": {},
    "cuda": {"GGML_CUDA": "ON", "GGML_CUDA_GRAPHS": "ON"},
    "vulkan": {"GGML_VULKAN": "ON"},
    "metal": {"GGML_METAL": "ON", "GGML_METAL_EMBED_LIBRARY": "ON"},
}
# How ggml names a backend's devices.
DEVICES = {"cpu": "CPU", "cuda": "CUDA", "vulkan": "Vulkan", "metal": "MTL"}


@dataclass(frozen=True)
class Patch:
    """A change to ggml's source before the build: `insertion` before the one place where `anchor` stands."""

    file: str
    anchor: str
    insertion: str


PATCHES = {
    "cuda": (
        # soft_max reduces twice through the same shared memory: without a barrier a fast warp overwrites the row's
        # maximum while a slow one has yet to read it. Beside other work on the GPU, one pre-fill in twenty was wrong.
        Patch(
            "vendor/ggml/src/ggml-cuda/common.cuh",
            "        if (lane_id == 0) {\n            shared_vals[warp_id] = val;\n",
            "        __syncthreads();\n",
        ),
        # So that pymagpie can tell that a build has the barrier.
        Patch(
            "vendor/ggml/src/ggml-cuda/ggml-cuda.cu",
            "    #ifdef GGML_CUDA_USE_GRAPHS\n        features.push_back(",
            '        features.push_back({ "BLOCK_REDUCE_BARRIER", "1" });\n\n',
        ),
    ),
}


def patch_source(source: Path, patches: Sequence[Patch]) -> None:
    """Apply `patches` to an unpacked source distribution. Raises RuntimeError when one does not fit."""
    for patch in patches:
        path = source / patch.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(patch.anchor) != 1:
            raise RuntimeError(f"the patch of {patch.file} does not fit this source of ggml-python")
        path.write_text(text.replace(patch.anchor, patch.insertion + patch.anchor), encoding="utf-8")


def cmake_defines(backend: str, prefixes: Sequence[Path], cuda_architectures: str | None) -> dict[str, str]:
    """The CMake settings of a build; the first of `prefixes` that has Vulkan's headers gives them."""
    defines = {"GGML_LLAMAFILE": "ON", **DEFINES[backend]}
    if backend == "cpu" and sys.platform == "darwin":
        defines["GGML_METAL"] = "OFF"  # on by default there
    if backend == "cuda" and cuda_architectures:
        defines["CMAKE_CUDA_ARCHITECTURES"] = cuda_architectures
    if prefixes:
        defines["CMAKE_PREFIX_PATH"] = ";".join(str(prefix) for prefix in prefixes)
    if backend == "vulkan" and (headers := find(prefixes, "include/vulkan/vulkan.hpp")):
        # Named outright, because FindVulkan prefers the system's, which may be older.
        defines["Vulkan_INCLUDE_DIR"] = str(headers.parents[1])
    return defines


SOURCE = ["--no-deps", "--no-binary", "ggml-python", f"ggml-python=={VERSION}"]


def pip_command(defines: dict[str, str], source: str | None = None) -> list[str]:
    """The command that builds and installs an unpacked source, by default the package index's; each define is a setting
    of its own, since a value may hold semicolons."""
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--no-cache-dir", "--force-reinstall"]
    command += ["--no-deps", source] if source else SOURCE
    return command + [f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()]


def download_source(folder: Path) -> Path:
    """The unpacked source distribution below `folder`. Raises RuntimeError when pip cannot get it."""
    command = [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--dest", str(folder), *SOURCE]
    print(f"build_ggml: {shlex.join(command)}", file=sys.stderr)
    if subprocess.run(command).returncode:
        raise RuntimeError("the source of ggml-python cannot be downloaded; pip's message is above")
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def missing(backend: str, prefixes: Sequence[Path]) -> list[str]:
    """What the build lacks on this machine, each with the way to get it; empty when it can start."""
    lacks = []
    if not compiler():
        lacks.append(
            "no C++17 compiler: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), "
            "xcode-select --install (macOS), the C++ build tools of Visual Studio (Windows)"
        )
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        lacks.append(f"no pip for {sys.executable}: {sys.executable} -m ensurepip")
    checks = {"cpu": list, "cuda": missing_cuda, "vulkan": lambda: missing_vulkan(prefixes), "metal": missing_metal}
    return lacks + checks[backend]()


def compiler() -> str | None:
    """The C++ compiler that CMake would take."""
    names = [os.environ.get("CXX", "").split(" ")[0], "c++", "g++", "clang++", "cl"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def missing_cuda() -> list[str]:
    """What a CUDA build lacks: the toolkit's compiler and the headers of cuBLAS."""
    get = "install the CUDA toolkit 12 or later (the driver alone is not enough) and put its bin folder on PATH"
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [os.environ.get("CUDACXX"), "nvcc", *(str(root / "bin" / "nvcc") for root in roots)]
    candidates.append("/usr/local/cuda/bin/nvcc")
    nvcc = next((found for name in candidates if name and (found := shutil.which(name))), None)
    if nvcc is None:
        return [f"no nvcc (CUDACXX, PATH, CUDA_HOME): {get}"]
    version = run_output(nvcc, "--version")
    release = re.search(r"release (\d+)\.", version)
    if release is None or int(release[1]) < 12:
        return [f"{nvcc} is not CUDA 12 or later: {get}"]
    # nvcc may be a script or a link; a dry run names the toolkit that it belongs to.
    top = re.search(r"^#\$ TOP=(.+)$", run_output(nvcc, "--dryrun", "-x", "cu", os.devnull), re.MULTILINE)
    root = Path(top[1].strip()).resolve() if top else Path(nvcc).resolve().parents[1]
    headers = [root / "include", *root.glob("targets/*/include"), Path("/usr/include")]
    if not any((folder / "cublas_v2.h").is_file() for folder in headers):
        return [f"no cublas_v2.h in {root}: install the toolkit's cuBLAS development package (libcublas-dev-*)"]
    return []


def missing_vulkan(prefixes: Sequence[Path]) -> list[str]:
    """What a Vulkan build lacks: the shader compiler, headers of 1.3.272 or later, SPIR-V headers and the loader."""
    lacks = []
    if not shutil.which("glslc"):
        lacks.append("no glslc: apt-get install glslc, or the Vulkan SDK")
    newer = (
        "Debian 13, Ubuntu 24.10 or the Vulkan SDK have newer ones. On an older system download libvulkan-dev and "
        "spirv-headers of the newer release, unpack both with `dpkg-deb -x FILE.deb DIR` and pass --prefix DIR/usr"
    )
    headers = find(prefixes, "include/vulkan/vulkan.hpp") or find(SYSTEM, "include/vulkan/vulkan.hpp")
    if headers is None:
        lacks.append(f"no vulkan/vulkan.hpp: apt-get install libvulkan-dev. {newer}")
    elif "LayerSettingEXT" not in (headers.parent / "vulkan_structs.hpp").read_text(errors="replace"):
        lacks.append(f"{headers.parent} is too old (no vk::LayerSettingEXT): {newer}")
    where = [*prefixes, *SYSTEM]
    if not any(find(where, f"{folder}/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake") for folder in ("share", "lib")):
        lacks.append(f"no SPIRV-HeadersConfig.cmake: apt-get install spirv-headers. {newer}")
    names = ("lib/libvulkan.so", "lib64/libvulkan.so", "lib/*/libvulkan.so", "lib/libvulkan.dylib", "Lib/vulkan-1.lib")
    if not any(find(where, name) for name in names):
        lacks.append("no Vulkan loader to link with (libvulkan.so): apt-get install libvulkan-dev")
    return lacks


def missing_metal() -> list[str]:
    """What a Metal build lacks."""
    if sys.platform != "darwin":
        return [f"Metal exists on macOS only; this is {sys.platform}: use --backend cuda, vulkan or cpu"]
    return [] if shutil.which("xcrun") else ["no Xcode command line tools: xcode-select --install"]


SYSTEM = [Path("/usr"), Path("/usr/local"), Path("/opt/homebrew")]


def find(prefixes: Sequence[Path], pattern: str) -> Path | None:
    """The first file of this name below one of `prefixes`; a link that leads nowhere is none."""
    return next((path for prefix in prefixes for path in sorted(prefix.glob(pattern)) if path.is_file()), None)


def run_output(*command: str) -> str:
    """All that a command prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def installed_devices() -> str | None:
    """The devices of the build just installed, read in a fresh process; None where what else pymagpie needs is not
    installed yet; RuntimeError when the build cannot be loaded."""
    code = "from pymagpie.ggml import list_devices; print(', '.join(device.name for device in list_devices()))"
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if last.startswith("ModuleNotFoundError: ") and "'ggml'" not in last:
        return None
    if done.returncode:
        raise RuntimeError(last)
    return done.stdout.strip()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--backend", required=True, choices=sorted(DEFINES))
    parser.add_argument(
        "--prefix",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="look for headers below DIR first (again for more; VULKAN_SDK is one of them)",
    )
    parser.add_argument("--cuda-architectures", metavar="LIST", help="like 80;90 (default: the GPUs of this machine)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at once")
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs} is not a positive integer")
    for prefix in args.prefix:
        if not prefix.is_dir():
            parser.error(f"--prefix {prefix}: no such folder")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    prefixes = [prefix.resolve() for prefix in args.prefix]
    if os.environ.get("VULKAN_SDK"):
        prefixes.append(Path(os.environ["VULKAN_SDK"]))
    lacks = missing(args.backend, prefixes)
    for lack in lacks:
        print(f"build_ggml: missing: {lack}", file=sys.stderr)
    defines = cmake_defines(args.backend, prefixes, args.cuda_architectures)
    patches = PATCHES.get(args.backend, ())
    if args.dry_run:
        print(shlex.join(pip_command(defines, "PATCHED_SOURCE" if patches else None)))
    if args.dry_run or lacks:
        return 4 if lacks else 0
    environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": str(args.jobs)}
    with tempfile.TemporaryDirectory() as scratch:
        source = None
        if patches:
            try:
                source = download_source(Path(scratch))
                patch_source(source, patches)
            except RuntimeError as error:
                print(f"build_ggml: {error}", file=sys.stderr)
                return 1
        # The second command adds what ggml-python needs to run where that is not there yet.
        requirements = [sys.executable, "-m", "pip", "install", f"ggml-python=={VERSION}"]
        for step in (pip_command(defines, source and str(source)), requirements):
            print(f"build_ggml: {shlex.join(step)}", file=sys.stderr)
            if subprocess.run(step, env=environment).returncode:
                print("build_ggml: the build failed; the compiler's message is above", file=sys.stderr)
                return 1
    try:
        devices = installed_devices()
    except RuntimeError as error:
        print(f"build_ggml: built, but it does not load: {error}", file=sys.stderr)
        return 1
    if devices is None:
        print(f"build_ggml: built; pip install {REPOSITORY}, then `pymagpie devices` shows what it finds")
        return 0
    print(f"build_ggml: devices: {devices}")
    if DEVICES[args.backend] not in devices:
        print(f"build_ggml: this machine has no {args.backend} device (or its driver is missing)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
