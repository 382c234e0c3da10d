"""The arrays that hold the pool's keys and values, a few thousand tokens each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

KeysAndValues = tuple[mx.array, mx.array]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one pageable cache keeps of a token: ``kv_heads`` keys and values.

    Keys and values may differ in width, and either may be 0 wide (latent attention).
    """

    kv_heads: int
    key_width: int
    value_width: int
    key_dtype: mx.Dtype
    value_dtype: mx.Dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        keys = self.key_width * int(self.key_dtype.size)
        values = self.value_width * int(self.value_dtype.size)
        return self.kv_heads * (keys + values)


class Slab:
    """Room for ``tokens`` tokens of every layer: one array for keys and one for values a layer.

    Head-major, ``[kv_heads, tokens, width]``, so that neighbouring tokens are one strided view.
    A write happens in place only while nothing else reads the array: no view of it may be alive
    and no unevaluated graph may hold one, or the whole array is copied.
    """

    def __init__(self, shapes: Sequence[LayerShape], tokens: int) -> None:
        self.tokens = tokens
        self._keys = [mx.zeros([s.kv_heads, tokens, s.key_width], s.key_dtype) for s in shapes]
        self._values = [
            mx.zeros([s.kv_heads, tokens, s.value_width], s.value_dtype) for s in shapes
        ]
        mx.eval(self._keys, self._values)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in (*self._keys, *self._values))

    def arrays(self, layer: int) -> KeysAndValues:
        """The whole arrays of one layer: to be evaluated, never kept."""
        return self._keys[layer], self._values[layer]

    def write(self, layer: int, start: int, keys: mx.array, values: mx.array) -> None:
        """Put ``[kv_heads, n, width]`` at token ``start``; done when :meth:`arrays` is evaluated.

        Casts to the slab's type without a word: the caller compares types.
        """
        _put(self._keys[layer], start, keys)
        _put(self._values[layer], start, values)

    def view(self, layer: int, start: int, stop: int) -> KeysAndValues:
        """Keys and values of tokens ``start`` to ``stop``, ``[kv_heads, n, width]``, not copied.

        To be gone before the next write.
        """
        return self._keys[layer][:, start:stop], self._values[layer][:, start:stop]


def _put(array: mx.array, start: int, rows: mx.array) -> None:
    """Assign ``rows`` to the tokens of ``array`` from ``start`` on."""
    count = rows.shape[1]
    if count < array.shape[1]:
        array[:, start : start + count] = rows
    elif count == 1:
        array[:] = copied([rows])
    else:
        # An assignment to everything copies nothing: the array would become a view of the rows,
        # keep whatever they are cut from, and be copied whole at the next write.
        half = count // 2
        array[:, :half] = rows[:, :half]
        array[:, half:] = rows[:, half:]


def copied(pieces: Sequence[mx.array]) -> mx.array:
    """Views ``[kv_heads, n, width]`` joined along the tokens, in memory of their own.

    At least one piece. Not evaluated; afterwards it pins none of the pieces' arrays.
    """
    # One view alone would be returned as it is, and mx.contiguous keeps the view where it is
    # contiguous already (one head) and little would be saved. Joined with nothing, it is copied.
    return mx.concatenate([*pieces, pieces[0][:, :0]], axis=1)
