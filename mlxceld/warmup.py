"""Prefilling the prompts of ``warm_files`` once the daemon serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlxceld.config.promptfile import PromptFileError, read_prompt_file
from mlxceld.engine.errors import EngineError
from mlxceld.engine.warming import WarmError, render, warm
from mlxceld.models.errors import ChatTemplateError
from mlxceld.prompt_cache.reports import PinError

if TYPE_CHECKING:
    from mlxceld.engine.client import EngineClient

log = logging.getLogger(__name__)


async def warm_files(
    engine: EngineClient, files: Sequence[Path], *, volatile_heads: bool = True
) -> int:
    """Prefill and pin each file's prompt, one after another; returns how many were kept.

    One that fails is logged by name, and the others go on. ``volatile_heads`` is the setting.
    """
    kept = 0
    for number, file in enumerate(files):
        try:
            order = await asyncio.to_thread(read_prompt_file, file)
            request = await asyncio.to_thread(
                render,
                engine,
                request_id=f"warm-file-{number}",
                messages=order.get("messages"),
                tools=order.get("tools"),
                prompt=order.get("prompt"),
                session=order.get("session"),
                volatile_heads=volatile_heads,
            )
            done = await warm(engine, request, pin=True)
        except (
            PromptFileError,
            ChatTemplateError,
            WarmError,
            PinError,
            EngineError,
        ) as error:
            log.warning("warm_files: %s: %s", file, error)
            continue
        kept += 1
        log.info("warm_files: %s: %d tokens are kept, pinned as %s", file, done.tokens, done.digest)
    return kept
