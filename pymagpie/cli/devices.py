"""``pymagpie devices``: what this installation can compute on, and what its build of ggml lacks."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import Any

from pymagpie.cli.common import add_json_option, print_json

HELP = "devices and build features of this installation"

# Features that ready-made builds of ggml lack, by device family: ggml's name of each, ours, and what it is good for.
_WANTED = {
    "cpu": [("LLAMAFILE", "llamafile", "faster matrix products on the CPU")],
    "cuda": [
        ("USE_GRAPHS", "cuda_graphs", "a third less time a chunk or step on the GPU"),
        ("BLOCK_REDUCE_BARRIER", "reduce_barrier", "attention that stays exact beside other work on the GPU"),
    ],
}


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
    from pymagpie.support import graph_support

    devices, missing = [], {}
    for device in ggml.list_devices():
        free, total = device.memory()
        features = device.features()
        for feature, name, use in _WANTED.get(device.family, []):
            if features.get(feature) != "1":
                missing[name] = {"use": use, "command": f"python tools/build_ggml.py --backend {device.family}"}
        devices.append(
            {
                "name": device.name,
                "description": device.description,
                "type": device.type,
                "memory_free": free,
                "memory_total": total,
                "features": _features(device.family, features),
                "graphs": [asdict(graph) | {"supported": graph.supported} for graph in graph_support(device)],
            }
        )
    with ggml.Backend("cpu", 1) as backend:
        reason = unavailable(backend)
    return {
        "devices": devices,
        "default_device": ggml.find_device("auto").name,
        "default_threads": ggml.default_threads(),
        "ggml_version": ggml.ggml_version(),
        "ggml_python_version": ggml.GGML_PYTHON_VERSION,
        "cpu_features": [name for name, present in ggml.cpu_features().items() if present],
        "missing_features": missing,
        "native_kernels": {
            "in_use": not reason,
            "path": None if reason else str(native.status().path),
            "instruction_set": None if reason else native.choose_instruction_set(),
            "instruction_sets": list(native.instruction_sets()),
            "reason": reason,
        },
    }


def _features(family: str, build: dict[str, str]) -> dict[str, Any]:
    """What ggml says of a device's backend, and the switches by which a user turns parts of it off."""
    report: dict[str, Any] = {"build": build}
    if family == "cuda":
        report["cuda_graphs"] = build.get("USE_GRAPHS") == "1" and "GGML_CUDA_DISABLE_GRAPHS" not in os.environ
        report["fusion"] = "GGML_CUDA_DISABLE_FUSION" not in os.environ
    elif family == "vulkan":
        report["f16_products"] = "GGML_VK_DISABLE_F16" not in os.environ
        report["fusion"] = "GGML_VK_DISABLE_FUSION" not in os.environ
    return report


def _print(report: dict[str, Any]) -> None:
    from pymagpie.ggml import format_bytes

    for device in report["devices"]:
        mark = "*" if device["name"] == report["default_device"] else " "
        memory = f"{format_bytes(device['memory_free'])} free of {format_bytes(device['memory_total'])}"
        print(f"{mark} {device['name']:<10} {device['type']:<5} {device['description']} ({memory})")
        switches = [f"{name.replace('_', ' ')} {'on' if on else 'off'}"
                    for name, on in device["features"].items() if name != "build"]
        lacking = [graph for graph in device["graphs"] if not graph["supported"]]
        graphs = f"{len(device['graphs']) - len(lacking)} of {len(device['graphs'])} graphs supported"
        print(f"  {', '.join([*switches, graphs])}")
        for graph in lacking:
            print(f"  no {graph['graph']} with {graph['weights']} weights: {graph['unsupported'][0]}")
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
