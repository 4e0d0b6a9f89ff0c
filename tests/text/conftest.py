"""Fixtures of the text tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_files import small_tokenizer

from pymagpie.text import Tokenizer
from pymagpie.text.demo_assets import write_demo_assets


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A model of six languages with small hand-made dictionaries."""
    return small_tokenizer(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def demo_assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_assets(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def v2602(demo_assets: Path) -> Tokenizer:
    """The published v2602 layout with the demo dictionary as its English."""
    return Tokenizer.load(demo_assets, vocab_size=2362)
