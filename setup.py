"""Builds native/ with CMake into the package file ``pymagpie/_native.*``; pyproject.toml holds everything else.

The library is loaded by cffi in ABI mode, so one wheel (py3-none-PLATFORM) serves every Python. Without a C++ compiler
the package installs all the same and runs on numpy and ggml's stock ops. ``PYMAGPIE_BUILD_NATIVE=0`` skips the build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SUFFIX = ".dll" if os.name == "nt" else ".so"


class BuildNative(build_ext):
    """Runs CMake in place of the compiler that setuptools would call."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + SUFFIX

    def build_extension(self, ext: Extension) -> None:
        if os.environ.get("PYMAGPIE_BUILD_NATIVE") == "0":
            return self.skip("PYMAGPIE_BUILD_NATIVE=0")
        cmake = shutil.which("cmake")
        if cmake is None:
            return self.skip("cmake was not found")
        build = Path(self.build_temp).resolve() / "native"
        output = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        configure = [cmake, "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
                     f"-DPYMAGPIE_OUTPUT={output}"]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        done = subprocess.run(configure, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode and "CMAKE_CXX_COMPILER" in done.stdout:
            return self.skip("no C++ compiler was found")
        if done.returncode == 0:
            done = subprocess.run([cmake, "--build", str(build), "--config", "Release"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\npymagpie: native/ did not build; "
                             "PYMAGPIE_BUILD_NATIVE=0 installs without it")

    def skip(self, reason: str) -> None:
        print(f"pymagpie: {reason}: installing without native kernels (numpy and ggml's stock ops serve)",
              file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform alone: the library does not touch Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        built = any(Path(self.bdist_dir).glob("pymagpie/_native.*[!h]"))
        return "py3", "none", super().get_tag()[2] if built else "any"


# optional: setuptools then accepts that the file may be missing.
setup(
    ext_modules=[Extension("pymagpie._native", sources=[], optional=True)],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
