"""One adapter a class, and nobody else who tells classes apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mlx_lm.models import cache as mlx_caches
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.registry import (
    ADAPTERS,
    adapter_of,
    is_registered,
    kind_of,
    leaves,
    map_leaves,
)

SOURCES = Path(mlx_caches.__file__).parents[0]
PACKAGE = Path(__file__).parents[3] / "mlxceld"
CLASSES = {
    name
    for name, value in vars(mlx_caches).items()
    if isinstance(value, type) and name.endswith(("Cache", "CacheList"))
}
# Shared prefixes are read through a cache of our own, which inherits from mlx-lm's.
OWN_SUBCLASSES = {("kv/shared_attention.py", "BatchKVCache")}


def test_no_other_module_names_a_class_of_mlx_lms_caches() -> None:
    named = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith("models/caches/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
            if isinstance(node, ast.alias):
                name = node.name
            if name in CLASSES:
                named.add((place, name))
    assert named == OWN_SUBCLASSES


def test_the_classes_are_those_of_the_installed_mlx_lm() -> None:
    assert {kind.__name__ for kind in ADAPTERS} <= CLASSES
    assert len(CLASSES) > 6


def test_the_nearest_class_has_the_adapter_but_only_its_own_is_known() -> None:
    class Odd(RotatingKVCache):  # type: ignore[misc]
        pass

    odd = Odd(max_size=8)
    assert adapter_of(odd) is ADAPTERS[RotatingKVCache]
    assert not is_registered(odd)
    assert kind_of(odd) is CacheKind.OPAQUE
    assert kind_of(object()) is CacheKind.OPAQUE
    with pytest.raises(TypeError, match="object does not keep every token"):
        adapter_of(object()).position(object())


def test_composite_caches_are_walked_and_built_anew() -> None:
    inner = CacheList(KVCache(), ArraysCache(2))
    whole = [KVCache(), CacheList(inner, RotatingKVCache(max_size=8))]
    kinds = [CacheKind.PAGEABLE, CacheKind.PAGEABLE, CacheKind.RECURRENT, CacheKind.WINDOWED]
    assert [kind_of(leaf) for leaf in leaves(whole)] == kinds
    assert kind_of(whole[1]) is CacheKind.COMPOSITE
    assert kind_of(CacheList(KVCache(), KVCache())) is CacheKind.PAGEABLE
    found: list[object] = []

    def change(leaf: object) -> object:
        found.append(leaf)
        return leaf

    again = [map_leaves(change, cache) for cache in whole]
    assert found == list(leaves(whole)) == list(leaves(again))
    assert again[1] is not whole[1]
