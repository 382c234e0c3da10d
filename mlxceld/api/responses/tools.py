"""The tools of a request as functions for the model, and back to what the client knows them as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.api.responses.content import string_of, wrong

Kind = Literal["function", "custom", "local_shell", "shell", "apply_patch", "tool_search"]

DEFAULT_NAMESPACE = "functions"
"""The namespace that means none: its members go by their own names."""

_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_COUNT: dict[str, Any] = {"type": "integer"}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the client runs.

    ``kind`` decides which item a call of it becomes; ``name`` and ``namespace`` are the client's;
    ``function`` is what the model is shown. ``environment`` is where a shell runs.
    """

    kind: Kind
    name: str
    function: dict[str, Any]
    namespace: str | None = None
    environment: dict[str, Any] | None = None

    @property
    def shown_name(self) -> str:
        """The name by which the model calls it."""
        name: str = self.function["name"]
        return name


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that a request offers to the model, in order, by the names that it is shown."""

    tools: Sequence[OfferedTool] = field(default=())

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools in the shape of chat completions."""
        return [{"type": "function", "function": tool.function} for tool in self.tools]

    def called(self, name: str) -> OfferedTool | None:
        """What the model means by a name; None if nothing of that name is offered.

        A member of a namespace is also found by its own name alone, if no other tool has it.
        """
        for tool in self.tools:
            if tool.shown_name == name:
                return tool
        own = [tool for tool in self.tools if tool.name == name]
        return own[0] if len(own) == 1 else None

    def find(self, kind: str, name: str, namespace: str | None) -> OfferedTool | None:
        """The tool that the client means by a type and a name."""
        same = [
            tool
            for tool in self.tools
            if tool.kind == kind and name in (tool.name, tool.shown_name)
        ]
        exact = [tool for tool in same if tool.namespace == namespace]
        return next(iter(exact or same), None)


def shown_name(namespace: str | None, name: str) -> str:
    """The one name for a member of a namespace, as Codex writes it where it has to be one."""
    if not namespace or namespace == DEFAULT_NAMESPACE:
        return name
    joint = "" if namespace.endswith("_") or name.startswith("_") else "__"
    return f"{namespace}{joint}{name}"


def offered_tools(given: Iterable[tuple[str, Any]], notes: Notes) -> OfferedTools:
    """The tools of a request, each with its path; what the client does not run is noted.

    Raises a 400 ApiError for a tool without what its type needs.
    """
    found: dict[str, OfferedTool] = {}
    for where, spec in given:
        for path, tool in _tools(spec, where, notes):
            known = found.setdefault(tool.shown_name, tool)
            if known != tool:
                notes.skip(
                    path, f"another tool has the name {describe(tool.shown_name)}; not offered"
                )
    return OfferedTools(tuple(found.values()))


def _tools(spec: Any, where: str, notes: Notes) -> list[tuple[str, OfferedTool]]:
    if not isinstance(spec, dict):
        raise invalid(where, f"{where} is {describe(spec)}, expected an object")
    match spec.get("type"):
        case "namespace":
            return _namespace(spec, where, notes)
        case "function" | "custom":
            return [(where, _named(spec, where, None))]
        case None:
            raise wrong(spec, "type", where, "the type of a tool")
        case kind:
            tool = _native(spec, kind)
            if tool is None:
                notes.skip(where, f"a tool of type {describe(kind)} is not run here; not offered")
            return [] if tool is None else [(where, tool)]


def _namespace(spec: dict[str, Any], where: str, notes: Notes) -> list[tuple[str, OfferedTool]]:
    name = string_of(spec, "name", where)
    members = spec.get("tools")
    if not isinstance(members, list):
        raise wrong(spec, "tools", where, "a list of tools")
    about = spec.get("description")
    found: list[tuple[str, OfferedTool]] = []
    for index, member in enumerate(members):
        path = f"{where}.tools[{index}]"
        if not isinstance(member, dict):
            raise invalid(path, f"{path} is {describe(member)}, expected an object")
        if member.get("type") not in ("function", "custom"):
            notes.skip(path, f"a tool of type {describe(member.get('type'))} is not offered")
            continue
        # What is said of all members is said once.
        found.append((path, _named(member, path, name, about if not found else None)))
    return found


def _named(
    spec: dict[str, Any], where: str, namespace: str | None, about: str | None = None
) -> OfferedTool:
    """A function or a custom tool, which takes a text."""
    nested = spec.get("function")
    if isinstance(nested, dict) and "name" not in spec:
        # The shape of chat completions, in which some clients send functions.
        spec = {**nested, "type": "function"}
    name = string_of(spec, "name", where)
    if not name:
        raise wrong(spec, "name", where, "text that is not empty")
    description = spec.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong(spec, "description", where, "a string")
    if spec["type"] == "custom":
        parameters: Any = _object({"input": _TEXT})
        description = _with_grammar(description, spec.get("format"))
    else:
        parameters = spec.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise wrong(spec, "parameters", where, "an object")
    texts = [text for text in (about, description) if isinstance(text, str) and text]
    function: dict[str, Any] = {"name": shown_name(namespace, name)}
    if texts or description is not None:
        function["description"] = "\n\n".join(texts)
    if parameters is not None:
        function["parameters"] = parameters
    return OfferedTool(spec["type"], name, function, namespace)


def _with_grammar(description: str | None, form: Any) -> str:
    """The description of a custom tool with the grammar of its input, which is not enforced."""
    texts = [description] if description else []
    if isinstance(form, dict) and form.get("type") == "grammar":
        # Older clients send the grammar itself, newer ones nest it.
        grammar = form["grammar"] if isinstance(form.get("grammar"), dict) else form
        if isinstance(grammar.get("definition"), str):
            syntax, definition = grammar.get("syntax"), grammar["definition"]
            texts.append(f"The input has to match this {syntax} grammar:\n{definition}")
    return "\n\n".join(texts)


def _native(spec: dict[str, Any], kind: str) -> OfferedTool | None:
    """A tool with a meaning of its own that the client runs; None if it does not run it."""
    environment = spec.get("environment")
    match kind:
        case "local_shell":
            description = "Runs a command on the user's machine and returns its output."
            parameters = _object(
                {"command": _TEXTS}, timeout_ms=_COUNT, working_directory=_TEXT, user=_TEXT
            )
        case "shell":
            if isinstance(environment, dict) and environment.get("type") != "local":
                return None
            description = "Runs shell commands on the user's machine and returns their output."
            parameters = _object({"commands": _TEXTS}, timeout_ms=_COUNT, max_output_length=_COUNT)
        case "apply_patch":
            description = (
                "Creates, updates or deletes one file. diff is in the V4A format: lines that begin"
                " with '+', '-' or a space; it is left out to delete a file."
            )
            kinds = {"enum": ["create_file", "update_file", "delete_file"]}
            parameters = _object({"type": kinds, "path": _TEXT}, diff=_TEXT)
        case "tool_search" if spec.get("execution") == "client":
            given, schema = spec.get("description"), spec.get("parameters")
            description = given if isinstance(given, str) else "Searches for tools."
            parameters = schema if isinstance(schema, dict) else _object({"query": _TEXT})
        case _:
            return None
    function = {"name": kind, "description": description, "parameters": parameters}
    return OfferedTool(
        kind,
        kind,
        function,
        environment=environment if isinstance(environment, dict) else None,
    )


def _object(needed: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**needed, **optional},
        "required": list(needed),
        "additionalProperties": False,
    }
