"""Tiny models of mlx-lm's families, loaded as the daemon loads a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from family_configs import family_config
from mlx_lm import utils as mlx_lm_utils

from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import LoadedModel, load_model
from tiny_models import EOS_ID, write_tiny_model, write_tiny_tokenizer


def load_family(family: str, root: Path, **changes: Any) -> LoadedModel:
    """A tiny model of ``family``, written below ``root``; ``changes`` are for its configuration.

    Transformers checks the configuration that lies beside a tokenizer more strictly than mlx-lm, so
    the tokenizer has a folder of its own. Raises ModelError as the daemon's load does.
    """
    config = {**family_config(family), "eos_token_id": EOS_ID, **changes}
    folder = write_tiny_model(root / family, family, config=config)
    tokenizer = root / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    write_tiny_tokenizer(tokenizer)
    theirs = mlx_lm_utils.load_tokenizer

    def load_tokenizer(_: Path, *args: Any, **options: Any) -> Any:
        return theirs(tokenizer, *args, **options)

    with patch.object(mlx_lm_utils, "load_tokenizer", load_tokenizer):
        return load_model(
            ModelFolder(path=folder, id=family, origin="folder"), progress=lambda _: None
        )
