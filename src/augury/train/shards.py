"""Collected conversations on disk: one safetensors file a shard, written whole or not at all.

A shard of C conversations with N tokens in all holds

- ``tokens`` i32[N], conversation after conversation, prompt and answer of each;
- ``starts`` i64[C + 1], where each begins in them;
- ``prompt_lengths`` i32[C];
- ``hidden`` bf16[N, taps, d], row t of a conversation what the target's tapped layers held at its token t, the last
  tap being the residual stream behind the last layer. The last row of each is zeros, as nothing was computed behind
  its last token.

Metadata say which target and which taps it is of. One process at a time may write into a directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from augury.durable import sync
from augury.errors import InputError, ModelError, first_line
from augury.models.target import TargetInfo
from augury.tree import IntArray

FORMAT = 2
"""Version of what is written; others are refused."""

_KEY = "augury"
_NAME = re.compile(r"shard-(\d{5,})\.safetensors")
_NEW = ".new"
_KINDS = {"tokens": torch.int32, "starts": torch.int64, "prompt_lengths": torch.int32, "hidden": torch.bfloat16}


@dataclass(frozen=True)
class Origin:
    """What all shards of a directory have in common.

    Attributes:
        target: the target's name, for messages.
        digest: of its weights; empty where unknown, and then equal to every other.
        vocab_size: V.
        hidden_size: d.
        taps: layers, as ``Target.tap`` takes them; the last is the number of layers of the target.
        seed: of the texts.
        text: how they were asked for, in words; empty where that does not matter.
    """

    target: str
    digest: str
    vocab_size: int
    hidden_size: int
    taps: tuple[int, ...]
    seed: int
    text: str

    @classmethod
    def of(cls, info: TargetInfo, taps: Sequence[int], seed: int, text: str = "") -> Origin:
        """Of a target that is loaded."""
        return cls(info.name, info.digest, info.vocab_size, info.hidden_size, tuple(taps), seed, text)


@dataclass(frozen=True)
class Conversation:
    """One turn of a user and the target's answer.

    Attributes:
        tokens: i32[m].
        prompt_length: tokens before the answer; 1 or more, and fewer than m.
        hidden: bf16[m, taps, d]; see the module's text.
    """

    tokens: IntArray
    prompt_length: int
    hidden: Tensor

    @property
    def answer(self) -> IntArray:
        """i32, the target's answer, with the end token if it came to one."""
        return self.tokens[self.prompt_length :]

    @property
    def known(self) -> Tensor:
        """bool[m]: rows whose last tap is known, so that the target's law behind them is too."""
        return (self.hidden[:, -1] != 0).any(-1)


class Shard:
    """A shard that is read. Hidden states are mapped: only what is asked for is read from the disk.

    Args:
        path: of the file.
        origin: what it must be of; None takes any.

    Raises:
        ModelError: it is damaged.
        InputError: it is of another target, other taps, another seed or another version.
    """

    def __init__(self, path: Path, origin: Origin | None = None) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            self._file = file
            given = json.loads((file.metadata() or {}).get(_KEY, "null"))
        except (SafetensorError, OSError, ValueError) as damage:
            raise ModelError(
                f"{path.name} is no sound shard: {first_line(damage)}; delete it to make it anew"
            ) from None
        self.path = path
        self.origin, self.number = _read_origin(path, given)
        if origin is not None:
            _check_origin(path, self.origin, origin)
        try:
            self.tokens, self.starts, self.prompt_lengths = (self._array(name) for name in list(_KINDS)[:3])
            """i32[N], i64[C + 1], i32[C]; see the module's text."""
            self._hidden = self._file.get_slice("hidden")
            self._check()
        except (SafetensorError, _Damaged) as damage:
            raise ModelError(
                f"{path.name} is no sound shard: {first_line(damage)}; delete it to make it anew"
            ) from None

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __getitem__(self, index: int) -> Conversation:
        """A conversation; its hidden states are read now."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path.name} has {len(self)} conversations, not {index}")
        begin, end = self.starts[index : index + 2].tolist()
        return Conversation(self.tokens[begin:end], int(self.prompt_lengths[index]), self._hidden[begin:end])

    def __iter__(self) -> Iterator[Conversation]:
        return map(self.__getitem__, range(len(self)))

    @property
    def texts(self) -> list[tuple[IntArray, int]]:
        """Of each conversation its tokens, and how many of them are the prompt; no hidden states are read."""
        ends = self.starts.tolist()
        spans = zip(ends[:-1], ends[1:], self.prompt_lengths.tolist(), strict=True)
        return [(self.tokens[begin:end], prompt) for begin, end, prompt in spans]

    @property
    def answers(self) -> list[IntArray]:
        """The answers alone."""
        return [tokens[prompt:] for tokens, prompt in self.texts]

    def _array(self, name: str) -> Any:
        tensor = self._file.get_tensor(name)
        if tensor.dtype != _KINDS[name] or tensor.ndim != 1:
            raise _Damaged(f"{name} is {_kind(tensor.dtype)} of shape {list(tensor.shape)}")
        return tensor.numpy()

    def _check(self) -> None:
        n, origin = len(self.tokens), self.origin
        shape = [n, len(origin.taps), origin.hidden_size]
        if self._hidden.get_shape() != shape or self._hidden.get_dtype() != "BF16":
            raise _Damaged(
                f"hidden is {self._hidden.get_dtype()} of shape {self._hidden.get_shape()}, not BF16 {shape}"
            )
        if n and not 0 <= int(self.tokens.min()) <= int(self.tokens.max()) < origin.vocab_size:
            raise _Damaged(f"tokens lie outside 0..{origin.vocab_size - 1}")
        sizes = np.diff(self.starts)
        ends = len(self.starts) == len(self) + 1 and self.starts[0] == 0 and self.starts[-1] == n
        if not ends or (sizes <= self.prompt_lengths).any() or (self.prompt_lengths < 1).any():
            raise _Damaged("its conversations do not lie one behind the other")


def write_shard(directory: Path, origin: Origin, number: int, conversations: Sequence[Conversation]) -> Path:
    """Write a shard, at once or not at all; gives its path.

    Raises:
        InputError: the directory cannot be written to.
    """
    sizes = [len(c.tokens) for c in conversations]
    empty = torch.zeros(0, len(origin.taps), origin.hidden_size, dtype=torch.bfloat16)
    tensors = {
        "tokens": torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *(c.tokens for c in conversations)])),
        "starts": torch.from_numpy(np.cumsum([0, *sizes], dtype=np.int64)),
        "prompt_lengths": torch.tensor([c.prompt_length for c in conversations], dtype=torch.int32),
        "hidden": torch.cat([empty, *(c.hidden for c in conversations)]),
    }
    told = {"format": FORMAT, "number": number, **asdict(origin)}
    path = directory / f"shard-{number:05}.safetensors"
    aside = path.with_name(path.name + _NEW)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, aside, {_KEY: json.dumps(told, sort_keys=True)})
            sync(aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        sync(directory)
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise InputError(f"cannot write {path}: {why}") from None
    return path


def existing(directory: Path) -> Mapping[int, Path]:
    """The shards of a directory by number, ascending; none if there is no such directory. They are not opened.

    Raises:
        InputError: it cannot be listed.
    """
    try:
        names = [path.name for path in directory.iterdir()] if directory.exists() else []
    except OSError as error:
        raise InputError(f"cannot list {directory}: {error.strerror}") from None
    found = {int(match[1]): name for name in names if (match := _NAME.fullmatch(name))}
    return {number: directory / found[number] for number in sorted(found)}


class _Damaged(Exception):
    """What a shard holds does not fit together; the text says why."""


def _read_origin(path: Path, given: object) -> tuple[Origin, int]:
    """Origin and number from a shard's metadata."""
    if not isinstance(given, dict):
        raise InputError(f"{path.name} is no shard that augury wrote; use another directory")
    if given.get("format") != FORMAT:
        raise InputError(
            f"{path.name} is of format {given.get('format')}, this version reads {FORMAT}; use another directory"
        )
    try:
        known = {field.name: given[field.name] for field in fields(Origin)}
        return Origin(**{**known, "taps": tuple(map(int, known["taps"]))}), int(given["number"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"{path.name} is no sound shard: its metadata are damaged; delete it to make it anew"
        ) from None


def _check_origin(path: Path, found: Origin, wanted: Origin) -> None:
    """Refuse a shard of something else."""
    alike = (found.vocab_size, found.hidden_size) == (wanted.vocab_size, wanted.hidden_size)
    if not alike or (found.digest and wanted.digest and found.digest != wanted.digest):
        raise InputError(
            f"{path.name} was collected from another target ({found.target}), not from {wanted.target}; "
            "use another directory"
        )
    if found.taps != wanted.taps:
        raise InputError(
            f"{path.name} was collected with taps {list(found.taps)}, not {list(wanted.taps)}; use another directory"
        )
    if found.seed != wanted.seed:
        raise InputError(
            f"{path.name} was collected with seed {found.seed}, not {wanted.seed}; use that, or another directory"
        )
    if found.text and wanted.text and found.text != wanted.text:
        raise InputError(
            f"{path.name} was collected with {found.text}, not with {wanted.text}; use that, or another directory"
        )


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
