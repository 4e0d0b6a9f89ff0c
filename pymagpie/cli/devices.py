"""``pymagpie devices``: what this installation can compute on, and what its build of ggml lacks."""

from __future__ import annotations

import argparse
from typing import Any

from pymagpie.cli.common import add_json_option, print_json

HELP = "devices and build features of this installation"

# ggml options that its default build leaves out: name -> (what it is good for, the cmake option)
_OPTIONAL = {"llamafile": ("faster matrix products on the CPU", "-DGGML_LLAMAFILE=ON")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    report = _report()
    if args.json:
        print_json(report)
    else:
        _print(report)
    return 0


def _report() -> dict[str, Any]:
    from pymagpie import ggml, native
    from pymagpie.nanocodec.native_layers import unavailable

    devices = []
    for device in ggml.list_devices():
        free, total = device.memory()
        devices.append(
            {
                "name": device.name,
                "description": device.description,
                "type": device.type,
                "memory_free": free,
                "memory_total": total,
            }
        )
    features = ggml.cpu_features()
    with ggml.Backend("cpu", 1) as backend:
        reason = unavailable(backend)
    return {
        "devices": devices,
        "default_device": ggml.find_device("auto").name,
        "default_threads": ggml.default_threads(),
        "ggml_version": ggml.ggml_version(),
        "ggml_python_version": ggml.GGML_PYTHON_VERSION,
        "cpu_features": [name for name, present in features.items() if present],
        "missing_features": {
            name: {"use": use, "command": _rebuild(option)}
            for name, (use, option) in _OPTIONAL.items()
            if features.get(name) is False
        },
        "native_kernels": {
            "in_use": not reason,
            "path": None if reason else str(native.status().path),
            "instruction_set": None if reason else native.choose_instruction_set(),
            "instruction_sets": list(native.instruction_sets()),
            "reason": reason,
        },
    }


def _rebuild(option: str) -> str:
    from pymagpie.ggml import GGML_PYTHON_VERSION

    return (
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary ggml-python "
        f"ggml-python=={GGML_PYTHON_VERSION} --config-settings=cmake.args='{option}'"
    )


def _print(report: dict[str, Any]) -> None:
    from pymagpie.ggml import format_bytes

    for device in report["devices"]:
        mark = "*" if device["name"] == report["default_device"] else " "
        memory = f"{format_bytes(device['memory_free'])} free of {format_bytes(device['memory_total'])}"
        print(f"{mark} {device['name']:<10} {device['type']:<5} {device['description']} ({memory})")
    print("* is what --device auto takes")
    print(f"threads: {report['default_threads']} by default")
    print(f"ggml {report['ggml_version']} (ggml-python {report['ggml_python_version']})")
    print(f"CPU features of this build: {' '.join(report['cpu_features']) or 'none'}")
    kernels = report["native_kernels"]
    if kernels["in_use"]:
        others = [name for name in kernels["instruction_sets"] if name != kernels["instruction_set"]]
        print(f"native kernels: {kernels['instruction_set']} in use, {', '.join(others) or 'no other'} available "
              f"({kernels['path']})")
    else:
        print(f"native kernels: not in use, {kernels['reason']}; numpy and ggml's own ops serve instead")
    for name, missing in report["missing_features"].items():
        print(f"this build of ggml lacks {name.upper()} ({missing['use']}); to add it:\n  {missing['command']}")
