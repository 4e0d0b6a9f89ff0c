from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_files import Published
from hub_server import HubServer

from pymagpie import hub

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def published(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Published:
    published = Published(server)
    for name, value in published.pins().items():
        monkeypatch.setattr(hub, name, value)
    return published


@pytest.fixture
def online(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Points `huggingface_hub`, whose settings are fixed at its import, at the server and at an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the download extra")
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "home" / "assets"))
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "home" / "assets"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    for variable in ("PYMAGPIE_MODEL", "PYMAGPIE_CODEC", "PYMAGPIE_ASSETS", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "home"


@pytest.fixture
def start(published: Published, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts ``pymagpie ARGUMENTS`` in a process of its own, with the small pins and an environment for the server."""
    script = tmp_path / "pymagpie_small.py"
    script.write_text(
        "import sys\nfrom pymagpie import cli, hub\nfrom pymagpie.hub import HubFile\n"
        + "".join(f"hub.{name} = {value!r}\n" for name, value in published.pins().items())
        + "if __name__ == '__main__':\n    sys.exit(cli.main(sys.argv[1:]))\n"
    )

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "PYMAGPIE_", "XDG_"))}
        home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": published.server.endpoint, "NO_PROXY": "*"}
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=clean | {"PYTHONPATH": str(REPOSITORY)} | home | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # a test run in the background of a shell ignores Ctrl-C, and so would its children
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    return start


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `start`, but waits for the end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    return run
