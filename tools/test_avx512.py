"""Tests the AVX-512 kernels on a CPU that has no AVX-512.

Their source is compiled with SIMDe's portable versions of the intrinsics, so that what is tested is everything but the
compiler's own AVX-512 code. (qemu's user-mode emulation has no AVX-512.) Needs, on Debian: apt install libsimde-dev.
Run from the source tree: python tools/test_avx512.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIMDE = Path("/usr/include/simde/x86/avx512.h")

HEADER = """
#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_NATIVE
#include <simde/x86/avx512.h>
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC
#define __m512 simde__m512
#define __mmask16 simde__mmask16
"""


def main() -> int:
    if not SIMDE.exists():
        print("SIMDe is missing; run: apt install libsimde-dev", file=sys.stderr)
        return 4
    build = ROOT / "build" / "avx512"
    build.mkdir(parents=True, exist_ok=True)
    (build / "immintrin.h").write_text(HEADER)
    runner, kernels = build / "runner", build / "kernels.o"
    flags = ["g++", "-std=c++17", "-O2", "-ffp-contract=off", "-I", ROOT / "native"]
    # The macro stands for the instruction set in the kernels' file alone.
    subprocess.run([*flags, "-I", build, "-D__AVX512F__", "-w", "-c", ROOT / "native/kernels_avx512.cpp",
                    "-o", kernels], check=True)
    sources = [ROOT / "tests/native/runner.cpp", ROOT / "tests/native/emulated_avx512.cpp", ROOT / "native/ops.cpp"]
    subprocess.run([*flags, "-Wall", "-Wextra", "-o", runner, *sources, kernels], check=True)
    environment = os.environ | {"PYMAGPIE_TEST_RUNNER": str(runner)}
    tests = [sys.executable, "-m", "pytest", "-v", "tests/native/test_kernels.py", *sys.argv[1:]]
    return subprocess.run(tests, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
