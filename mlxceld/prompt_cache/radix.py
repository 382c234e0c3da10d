"""A path-compressed trie over token ids, so that a lookup costs what its prompt is long."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
TYPE_CODE = "i"
"""A token is one C int in the compact arrays that the index works on."""


def as_tokens(ids: Iterable[int]) -> array[int]:
    """The ids as the compact array that the index works on; an array is taken as it is."""
    if isinstance(ids, array) and ids.typecode == TYPE_CODE:
        return ids
    return array(TYPE_CODE, ids)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items are equal."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # Bisect on slices: they compare in C, and the slices' lengths halve, so this stays linear.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class _Node(Generic[T]):
    __slots__ = ("children", "items", "label", "parent")

    def __init__(self, label: array[int], parent: _Node[T] | None) -> None:
        self.label = label
        self.parent = parent
        self.children: dict[int, _Node[T]] = {}
        self.items: dict[str, T] = {}


class RadixIndex(Generic[T]):
    """Items under (token sequence, tag); sequences are not empty, and pairs are unique."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(array(TYPE_CODE), None)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tokens: array[int], tag: str, item: T) -> None:
        """Store an item; raises KeyError if there is one under this pair already."""
        if not tokens:
            raise ValueError("an empty sequence cannot be stored")
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                child = _Node(tokens[depth:], node)
                node.children[tokens[depth]] = child
                node, depth = child, len(tokens)
                break
            rest = tokens[depth : depth + len(child.label)]
            shared = common_length(child.label, rest)
            if shared < len(child.label):
                child = self._split(child, shared)
            node, depth = child, depth + shared
        if tag in node.items:
            raise KeyError(f"an item is stored under {tag!r} at {len(tokens)} tokens already")
        node.items[tag] = item
        self._count += 1

    def get(self, tokens: array[int], tag: str) -> T | None:
        """The item under exactly this pair, or None."""
        node = self._exact(tokens)
        return None if node is None else node.items.get(tag)

    def remove(self, tokens: array[int], tag: str) -> T:
        """Take an item out and tidy the tree; raises KeyError if there is none."""
        node = self._exact(tokens)
        if node is None or tag not in node.items:
            raise KeyError(f"no item is stored under {tag!r} at {len(tokens)} tokens")
        item = node.items.pop(tag)
        self._count -= 1
        while node.parent is not None and not node.items and not node.children:
            del node.parent.children[node.label[0]]
            node = node.parent
        if node.parent is not None and not node.items and len(node.children) == 1:
            self._merge(node)
        return item

    def prefixes(self, tokens: array[int]) -> Iterator[tuple[int, dict[str, T]]]:
        """Every stored prefix of ``tokens`` with its items by tag, shortest first."""
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                return
            end = depth + len(child.label)
            if tokens[depth:end] != child.label:
                return
            node, depth = child, end
            if node.items:
                yield depth, node.items

    def longest(self, tokens: array[int]) -> tuple[int, T] | None:
        """How many leading tokens some stored sequence shares, and an item that shares them.

        The sequence may go on differently, or longer: None only if not even one token matches.
        """
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                break
            shared = common_length(child.label, tokens[depth : depth + len(child.label)])
            node, depth = child, depth + shared
            if shared < len(child.label):
                break
        if not depth:
            return None
        # Every node without items has children, so this ends at an item.
        while not node.items:
            node = next(reversed(node.children.values()))
        return depth, next(reversed(node.items.values()))

    def check(self) -> None:
        """Raise AssertionError if the tree is not in its canonical form."""
        seen = 0
        stack = [self._root]
        while stack:
            node = stack.pop()
            seen += len(node.items)
            if node is not self._root:
                assert node.label, "an empty edge"
                assert node.items or len(node.children) > 1, "a node that holds nothing"
            for first, child in node.children.items():
                assert child.label[0] == first, "an edge under the wrong token"
                assert child.parent is node, "a child of another parent"
                stack.append(child)
        assert seen == self._count, f"{seen} items are in the tree, {self._count} were counted"

    def _exact(self, tokens: array[int]) -> _Node[T] | None:
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None or tokens[depth : depth + len(child.label)] != child.label:
                return None
            node, depth = child, depth + len(child.label)
        return node

    @staticmethod
    def _split(node: _Node[T], at: int) -> _Node[T]:
        """Cut a node's edge after ``at`` tokens; returns the new upper half."""
        parent = node.parent
        assert parent is not None
        upper: _Node[T] = _Node(node.label[:at], parent)
        parent.children[upper.label[0]] = upper
        node.label = node.label[at:]
        node.parent = upper
        upper.children[node.label[0]] = node
        return upper

    @staticmethod
    def _merge(node: _Node[T]) -> None:
        """Join a node that holds nothing with its only child."""
        parent = node.parent
        assert parent is not None
        (child,) = node.children.values()
        child.label = node.label + child.label
        child.parent = parent
        parent.children[child.label[0]] = child
