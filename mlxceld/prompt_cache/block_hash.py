"""Hashes that name a block by all that comes before it: equal chains, equal beginnings.

They are for counting and for telling beginnings apart in reports. What is adopted is decided by
comparing tokens, so a collision does no harm.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence

_DOMAIN = b"mlxcel:apc:block:v1"
_NO_PARENT = bytes(32)

_ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=32).digest(),
}

Chain = tuple[bytes, ...]
"""One hash a block."""


def extend_chain(
    chain: Sequence[bytes], tokens: array[int], block_size: int, algorithm: str, media: str = ""
) -> Chain:
    """The hash of each block of ``tokens``, a last partial one included.

    Args:
        chain: hashes of the first blocks, known already; all of them whole blocks.
        tokens: the whole sequence.
        block_size: tokens a block.
        algorithm: sha256 or blake2b; each hash has 32 bytes.
        media: digest of images and audio in the prompt, mixed into every block.
    """
    digest = _ALGORITHMS[algorithm]
    extra = digest(media.encode())
    hashes = list(chain)
    parent = hashes[-1] if hashes else _NO_PARENT
    for start in range(len(hashes) * block_size, len(tokens), block_size):
        block = tokens[start : start + block_size]
        count = len(block).to_bytes(8, "little")
        parent = digest(b"".join((_DOMAIN, parent, count, block.tobytes(), extra)))
        hashes.append(parent)
    return tuple(hashes)
