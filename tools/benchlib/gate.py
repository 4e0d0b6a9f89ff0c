"""Nothing is timed on a busy machine: wait until the device that will be used is idle, or give up.

A GPU is read through ``nvidia-smi``, a CPU through its load average. Which GPU a device name means is resolved as CUDA
does it, through CUDA_VISIBLE_DEVICES; where that cannot be told from outside, the busiest GPU has to be idle.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

GPU_LIMIT = 3.0  # per cent
LOAD_LIMIT = 0.25  # 1-minute load average per core; decays to this within a minute and a half of a run on all cores
SAMPLES = 4

_QUERY = ["nvidia-smi", "--query-gpu=index,uuid,name,utilization.gpu", "--format=csv,noheader,nounits"]


class GateError(RuntimeError):
    """The device did not become idle in time, or its use cannot be read."""


@dataclass(frozen=True)
class Gpu:
    """One line of ``nvidia-smi``; `utilization` in per cent, None where the driver gives none."""

    index: int
    uuid: str
    name: str
    utilization: float | None


@dataclass
class IdleGate:
    """Waits for `SAMPLES` consecutive readings of at most `limit`.

    `probe` returns a reading and what was read. A failing probe raises GateError at once.
    """

    probe: Callable[[], tuple[float, str]]
    limit: float
    interval: float
    timeout: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def wait(self, when: str) -> str:
        """Return what was found idle; raise GateError when it is not within `timeout` seconds."""
        deadline = self.clock() + self.timeout
        calm = 0
        while True:
            reading, what = self.probe()
            calm = calm + 1 if reading <= self.limit else 0
            if calm == SAMPLES:
                return what
            if not calm and self.clock() >= deadline:  # idle readings that have begun may become enough
                raise GateError(
                    f"{when}: {what} reads {reading:g}, not <= {self.limit:g} for {SAMPLES} samples within "
                    f"{self.timeout:g} s; end what uses it, or pass --allow-busy-gpu"
                )
            self.sleep(self.interval)


def query_gpus() -> list[Gpu]:
    """Every GPU that ``nvidia-smi`` lists, in its order (that of the PCI bus); GateError when it cannot be asked."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        raise GateError("nvidia-smi is not on PATH: cannot tell whether the GPU is idle (--allow-busy-gpu)") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GateError(f"nvidia-smi does not answer: {error} (--allow-busy-gpu)") from None
    if answer.returncode:
        raise GateError(f"nvidia-smi failed: {(answer.stderr or answer.stdout).strip()[:200]!r} (--allow-busy-gpu)")
    gpus = [_parse(line) for line in answer.stdout.splitlines() if line.strip()]
    if not gpus:
        raise GateError("nvidia-smi lists no GPU (--allow-busy-gpu)")
    return gpus


def _parse(line: str) -> Gpu:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 4 or not fields[0].isdigit():
        raise GateError(f"cannot read this line of nvidia-smi: {line.strip()[:200]!r} (--allow-busy-gpu)")
    utilization = float(fields[-1]) if re.fullmatch(r"\d+(\.\d+)?", fields[-1]) else None
    return Gpu(int(fields[0]), fields[1], ",".join(fields[2:-1]), utilization)


def visible_gpus(gpus: list[Gpu], environment: Mapping[str, str]) -> list[Gpu] | None:
    """The GPUs in CUDA's order, CUDA0 first, or None when that order cannot be told.

    CUDA_VISIBLE_DEVICES lists indices, UUIDs or unambiguous beginnings of UUIDs; CUDA ignores the list from the first
    entry that names nothing. Indices count GPUs fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, so among GPUs of
    different kinds they say nothing to us.
    """
    ordered = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(gpus) if ordered else None
    visible = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.startswith("MIG-"):
            return None
        if entry.isdigit():
            if not ordered:
                return None
            found = [gpus[int(entry)]] if int(entry) < len(gpus) else []
        elif entry.lower().startswith("gpu-"):
            found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
        else:
            found = []
        if len(found) != 1:
            break
        visible += found
    return visible


def gpu_probe(devices: list[str], environment: Mapping[str, str]) -> Callable[[], tuple[float, str]]:
    """A probe of the busiest GPU behind `devices` ("cuda", "cuda:1", "CUDA1"; another name may mean any GPU)."""

    def probe() -> tuple[float, str]:
        gpus = query_gpus()
        busiest = max((gpu for device in devices for gpu in _behind(device, gpus, environment)), key=_utilization)
        return _utilization(busiest), f"GPU {busiest.index} ({busiest.name}, {busiest.uuid}), per cent of use,"

    return probe


def _behind(device: str, gpus: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that `device` may mean."""
    visible = visible_gpus(gpus, environment)
    number = cuda_index(device)
    if number is None or visible is None:
        return gpus
    if number >= len(visible):
        listed = environment.get("CUDA_VISIBLE_DEVICES")
        raise GateError(f"{device}: CUDA sees {len(visible)} GPUs here (CUDA_VISIBLE_DEVICES={listed})")
    return [visible[number]]


def _utilization(gpu: Gpu) -> float:
    if gpu.utilization is None:
        raise GateError(f"nvidia-smi gives no utilization of GPU {gpu.index} (--allow-busy-gpu)")
    return gpu.utilization


def load_probe(read: Callable[[], tuple[float, float, float]] | None = None) -> Callable[[], tuple[float, str]]:
    """A probe of the 1-minute load average per core; GateError on a system that has none."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = read or getattr(os, "getloadavg", None)

    def probe() -> tuple[float, str]:
        if load is None:
            raise GateError("this system has no load average: cannot tell whether it is idle (--allow-busy-gpu)")
        return load()[0] / cores, f"cpu: load average per core, {cores} cores,"

    return probe


def cuda_index(device: str) -> int | None:
    """0 for "cuda", 1 for "cuda:1" or "CUDA1", None for what is not named as a CUDA device."""
    match = re.fullmatch(r"cuda:?(\d*)", device.lower())
    return int(match[1] or 0) if match else None


def make_gate(devices: list[str], environment: Mapping[str, str], interval: float, timeout: float) -> IdleGate:
    """The gate for a run on `devices`: of their GPUs where they are CUDA devices, or may be an NVIDIA GPU under
    another name; else of the CPU."""
    gpus = [device for device in devices if cuda_index(device) is not None]
    if not gpus and shutil.which("nvidia-smi"):
        gpus = [device for device in devices if device.lower() not in ("cpu", "metal")]
    if gpus:
        return IdleGate(gpu_probe(gpus, environment), GPU_LIMIT, interval, timeout)
    return IdleGate(load_probe(), LOAD_LIMIT, interval, timeout)
