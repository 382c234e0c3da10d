from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer

from mlxceld.models.text import TextCodec
from tiny_models import TinyModels, write_tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_model_folders(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny-models"))


@pytest.fixture
def make_codec(tmp_path: Path) -> Callable[..., TextCodec]:
    """Makes a codec over the byte-level tokenizer, with a chat template of the test's own."""

    def make(chat_template: str | None = None) -> TextCodec:
        write_tiny_tokenizer(tmp_path, chat_template=chat_template)
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        return TextCodec(load_tokenizer(tmp_path), 320)

    return make


@pytest.fixture(scope="session")
def codec_for_texts(tiny_model_folders: TinyModels) -> TextCodec:
    return TextCodec(load_tokenizer(tiny_model_folders.folder("llama")), 320)
