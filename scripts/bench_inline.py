"""The sides of ``bench_overhead.py`` that have no server: mlx-lm's own loops, and the model alone.

Run as ``bench_inline.py loop|bare MODEL``: "loop" is mlx-lm's own way of generating,
``BatchGenerator`` for several prompts and ``stream_generate`` for one; "bare" is model call, argmax
and evaluation. Answers one line of JSON on standard input, ``{"prompts": [...], "tokens": n}``,
after another.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def run_worker(kind: str, model: str) -> None:
    """Answer until no more lines come; of "bare" all seconds are those of one decode step."""
    from mlxceld.models import blas

    blas.interpose()
    from mlx_lm.utils import load_tokenizer

    if kind == "bare":
        module = _daemons_module(model)
    else:
        from mlx_lm.utils import load_model

        module = load_model(Path(model))[0]
    tokenizer = load_tokenizer(Path(model))
    # Every stream runs to its number of tokens.
    tokenizer.eos_token_ids = set()
    _reply({})
    for line in sys.stdin:
        order = json.loads(line)
        rendered = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True
            )
            for text in order["prompts"]
        ]
        if kind == "bare":
            seconds, cpu, tokens = _bare(module, rendered, order["tokens"])
        else:
            cpu = 0.0
            started = time.perf_counter()
            if len(rendered) > 1:
                tokens = _batch(module, rendered, order["tokens"])
            else:
                tokens = _single(module, tokenizer, rendered[0], order["tokens"])
            seconds = time.perf_counter() - started
        found = {
            "prompt_tokens": sum(map(len, rendered)),
            "tokens": sum(map(len, tokens)),
            "seconds": seconds,
            "server_cpu": cpu,
            "texts": [tokenizer.decode(one, skip_special_tokens=True) for one in tokens],
        }
        _reply(found)


def _reply(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def _batch(module: Any, rendered: list[list[int]], count: int) -> list[list[int]]:
    """All prompts through one ``BatchGenerator``; only the tokens."""
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(module, max_tokens=count)
    places = {uid: i for i, uid in enumerate(generator.insert(rendered))}
    tokens: list[list[int]] = [[] for _ in rendered]
    while responses := generator.next_generated():
        for response in responses:
            tokens[places[response.uid]].append(response.token)
    generator.close()
    return tokens


def _single(module: Any, tokenizer: Any, prompt: list[int], count: int) -> list[list[int]]:
    """One prompt through ``stream_generate``, which makes text of each token."""
    from mlx_lm import stream_generate

    found = stream_generate(module, tokenizer, prompt, max_tokens=count)
    return [[response.token for response in found]]


def _daemons_module(model: str) -> Any:
    """The model with what the daemon puts in place of mlx-lm's functions."""
    from mlxceld.kv import shared_attention
    from mlxceld.models.folder import ModelFolder
    from mlxceld.models.loading import load_model

    folder = ModelFolder(path=Path(model), id="bare", origin="folder")
    module = load_model(folder, progress=lambda _: None).module
    shared_attention.install(module)
    return module


def _bare(
    module: Any, rendered: list[list[int]], count: int
) -> tuple[float, float, list[list[int]]]:
    """Seconds and CPU seconds of a step of model call, argmax and evaluation, and the tokens.

    The next step is built and started before a step's tokens are read.
    """
    import mlx.core as mx

    from mlxceld.kv import row_caches

    rows = [row_caches.new_row(module) for _ in rendered]
    for row, prompt in zip(rows, rendered, strict=True):
        module(mx.array([prompt[:-1]]), cache=row)
        mx.eval(row_caches.arrays(row))
    caches = row_caches.merge(rows) if len(rows) > 1 else rows[0]
    inputs, steps = mx.array([prompt[-1] for prompt in rendered]), []
    started, cpu = time.perf_counter(), time.process_time()
    for step in range(count + 1):
        before, inputs = inputs, mx.argmax(module(inputs[:, None], cache=caches)[:, -1], axis=-1)
        mx.async_eval(inputs)  # type: ignore[no-untyped-call]
        if step:
            steps.append(before.tolist())
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return seconds / count, cpu / count, [list(row) for row in zip(*steps, strict=True)]


if __name__ == "__main__":
    run_worker(*sys.argv[1:])
