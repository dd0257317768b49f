"""``--config``: flags read from a file. What the command line or the environment says comes before it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import typer

from augury.cli.terminal import REFUSED, note
from augury.errors import AuguryError, InputError, MissingPackage, UnknownName, first_line, shown
from augury.texts import utf8


def configured(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of an eager option: what the file says becomes the defaults of the verb's other options."""
    if path is None:
        return None
    try:
        context.default_map = {**(context.default_map or {}), **_flags(context, path)}
    except AuguryError as error:
        note(f"augury: {' '.join(str(error).split())}")
        raise typer.Exit(REFUSED) from None
    return path


def _flags(context: typer.Context, path: Path) -> dict[str, object]:
    """The file's values by the names of parameters, as text where a flag would be given as text."""
    # What is hidden is there for its error alone.
    known = {
        p.name: p
        for p in context.command.params
        if p.name not in (None, "config", "help") and not getattr(p, "hidden", False)
    }
    found: dict[str, object] = {}
    for key, value in _mapping(path).items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UnknownName(f"name in {path}", str(key), [str(n).replace("_", "-") for n in known])
        if name in found:
            raise InputError(f"{path} names {key} twice")
        if value is None:
            continue
        several = getattr(known[name], "multiple", False)
        for one in value if isinstance(value, list) else [value] if several and not isinstance(value, bool) else []:
            if not isinstance(one, str):  # YAML reads 0755 as 493, and an empty place as null: no key is made of those
                raise InputError(f"{path}: {key} has {shown(one)}, which is no text; write it in quotes")
        if several:
            found[name] = value if isinstance(value, list) else [value]
        elif isinstance(value, dict):
            found[name] = json.dumps(value)
        elif isinstance(value, list):
            found[name] = ",".join(map(str, value))
        else:
            found[name] = value if isinstance(value, bool) else str(value)
        if isinstance(value, bool) != bool(getattr(known[name], "is_flag", False)):
            needed = "true or false" if getattr(known[name], "is_flag", False) else "a value, not true or false"
            raise InputError(f"{path}: {key} is {shown(value)}; it needs {needed}")
    return found


def _once(path: Path, pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """A mapping that says nothing twice: its readers would take the last without a word."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"{path} names {key} twice")
        found[key] = value
    return found


def _mapping(path: Path) -> dict[object, object]:
    """The file's mapping: JSON, which is YAML too, or YAML."""
    text = utf8(path)
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        try:
            found = json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {first_line(error)}") from None
    else:
        if importlib.util.find_spec("yaml") is None:
            raise MissingPackage(f"{path}, which is not JSON,", "pyyaml", "pip install 'augury[server]'")
        import yaml

        try:
            found = yaml.safe_load(text)
            if isinstance(found, dict):
                _once(path, [(key.value, None) for key, _ in yaml.compose(text, yaml.SafeLoader).value])
        except yaml.YAMLError as error:
            raise InputError(f"{path} is not YAML: {first_line(error)}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputError(f"{path} is {shown(found)}; it must be a mapping of flags without their dashes")
    return found
