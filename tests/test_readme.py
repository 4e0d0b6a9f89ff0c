"""The README's Python examples run as they stand, on small random models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pymagpie.cli import VERBS
from pymagpie.synthetic import write_magpie, write_nanocodec
from pymagpie.text.demo_assets import write_demo_assets

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    write_magpie(folder / "magpie.gguf", size="tiny", outtype="f32")
    write_nanocodec(folder / "nano-codec.gguf", base_channels=64)
    write_demo_assets(folder / "magpie.assets")
    return folder


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), {})


def test_there_are_examples_and_every_command_exists() -> None:
    assert len(EXAMPLES) >= 2
    mentioned = set(re.findall(r"pymagpie ([a-z]+)", "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))))
    assert mentioned and mentioned <= set(VERBS)
