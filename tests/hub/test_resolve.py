"""Names to files without a network: explicit paths, the environment, the folder beside a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pymagpie import hub
from pymagpie.errors import CapabilityError, ModelNotFoundError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PYMAGPIE_MODEL", "PYMAGPIE_CODEC", "PYMAGPIE_ASSETS"):
        monkeypatch.delenv(variable, raising=False)


RESOLVERS = {"PYMAGPIE_MODEL": hub.resolve_magpie, "PYMAGPIE_CODEC": hub.resolve_codec}


@pytest.mark.parametrize("variable", RESOLVERS)
def test_local_file_is_returned_as_is(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    given.write_bytes(b"GGUF")
    other.write_bytes(b"GGUF")
    monkeypatch.setenv(variable, str(other))
    assert RESOLVERS[variable](None) == other
    assert RESOLVERS[variable](given) == given
    assert RESOLVERS[variable](str(given)) == given


@pytest.mark.parametrize("variable", RESOLVERS)
def test_missing_file_names_the_path_and_the_variable(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file: .*absent.gguf"):
        RESOLVERS[variable](tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        RESOLVERS[variable](tmp_path)
    monkeypatch.setenv(variable, str(tmp_path / "lost.gguf"))
    with pytest.raises(ModelNotFoundError, match=rf"\({variable}\): no such file: .*lost.gguf"):
        RESOLVERS[variable](None)


def test_assets_explicit_environment_and_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "own.v2602.f16.gguf"
    beside = tmp_path / "own.v2602.f16.assets"
    explicit, environment = tmp_path / "explicit", tmp_path / "environment"
    for folder in (beside, explicit, environment):
        folder.mkdir()
    assert hub.resolve_assets(None, model) == beside
    monkeypatch.setenv("PYMAGPIE_ASSETS", str(environment))
    assert hub.resolve_assets(None, model) == environment
    assert hub.resolve_assets(explicit, model) == explicit
    with pytest.raises(ModelNotFoundError, match="no such folder: .*absent"):
        hub.resolve_assets(tmp_path / "absent", model)


def test_local_paths_never_import_the_hub(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "m.assets").mkdir()
    code = (
        "import sys\nfrom pymagpie import hub\n"
        "hub.resolve_magpie('m.gguf'); hub.resolve_codec('m.gguf'); hub.resolve_assets(None, 'm.gguf')\n"
        "assert not any(name.startswith('huggingface_hub') for name in sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=60)


def test_without_huggingface_hub_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pymagpie.hub_transfer", raising=False)
    monkeypatch.delattr("pymagpie.hub_transfer", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CapabilityError, match=r'pip install "pymagpie\[download\]"'):
        hub.resolve_codec(None)
    with pytest.raises(CapabilityError, match=r"beside the model \(.*m.assets\).*pymagpie\[download\]"):
        hub.resolve_assets(None, tmp_path / "m.gguf")


def test_the_pins_are_the_published_ones() -> None:
    """Known answers: the repositories, sizes and digests that the runtime of the model's makers pins."""
    assert (hub.MAGPIE.repo, hub.MAGPIE.size) == ("nvidia/magpie_tts_multilingual_357m", 448_604_832)
    assert (hub.CODEC.repo, hub.CODEC.size) == ("nvidia/nemo-nano-codec-22khz-1.89kbps-21.5fps", 78_823_104)
    assert hub.ASSETS_HEAD.size == 33_554_432 and hub.ASSETS_HEAD.head
    digests = [hub.MAGPIE.sha256, hub.CODEC.sha256, hub.ASSETS_HEAD.sha256, hub.CONFIG_MEMBER[1], *hub.ASSETS.values()]
    assert len(set(digests)) == 13 and all(len(d) == 64 and int(d, 16) for d in digests)
