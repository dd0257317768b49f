"""A model's weights in the formats of other engines, with the values that our loader gives them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.errors import InputError

if TYPE_CHECKING:
    from augury.models.gguf_file import GgufFile


def transformers_model(model: str) -> Any:
    """The model's weights, as our loader dequantises them, in a bf16 model of transformers.

    Raises:
        InputError: a GGUF file that is not of the Llama family.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if Path(model).is_dir():
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    from augury.models.families import block_config
    from augury.models.gguf_file import gguf_config, gguf_weights

    file = _llama(model)
    stored = gguf_config(file)
    stored.pop("model_type")
    config = block_config({"model_type": "llama", **stored}, None)
    weights = gguf_weights(config, file)
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    state = {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["final_norm"]}
    state["lm_head.weight"] = weights["embed" if config.tied else "head"]
    for i in range(config.layers):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        parts = zip(("q", "k", "v"), torch.split(weights[ours + "qkv"], [q, kv, kv]), strict=True)
        halves = zip(("gate", "up"), weights[ours + "gate_up"].chunk(2), strict=True)
        state |= {f"{theirs}self_attn.{name}_proj.weight": w for name, w in parts}
        state |= {f"{theirs}mlp.{name}_proj.weight": w for name, w in halves}
        state[theirs + "self_attn.o_proj.weight"] = weights[ours + "o"]
        state[theirs + "mlp.down_proj.weight"] = weights[ours + "down"]
        state[theirs + "input_layernorm.weight"] = weights[ours + "attn_norm"]
        state[theirs + "post_attention_layernorm.weight"] = weights[ours + "mlp_norm"]
    built = LlamaForCausalLM(LlamaConfig(**stored, bos_token_id=None, eos_token_id=None)).to(torch.bfloat16)
    built.load_state_dict(state)
    return built.eval()


def _llama(model: str) -> GgufFile:
    from augury.models.load import open_gguf

    file = open_gguf(model)
    if file.architecture != "llama":
        raise InputError(f"{model} is a GGUF of {file.architecture}; peers are compared on llama, or on a directory")
    return file


def gguf_path(model: str, scratch: Path) -> Path | None:
    """Where the model's GGUF file lies, joined in ``scratch`` if it comes in parts; None for a directory."""
    from augury.models.load import EMBEDDED

    if model not in EMBEDDED:
        return None if Path(model).is_dir() else Path(model)
    found = []
    for package, file in EMBEDDED[model].parts:
        spec = importlib.util.find_spec(package)
        assert spec is not None  # the model has been loaded from it
        assert spec.origin is not None
        found.append(Path(spec.origin).parent / file)
    if len(found) == 1:
        return found[0]
    joined = scratch / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in found))
    return joined


def bf16_gguf(source: Path, out: Path) -> None:
    """Write a GGUF file anew with its matrices in bf16; vectors stay f32, the only kind that llama.cpp takes."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def file_type(path: Path) -> str:
    """How most of a GGUF file's matrices are stored, such as Q4_1."""
    import gguf

    from augury.models.gguf_file import GgufFile

    return str(gguf.LlamaFileType(GgufFile.open(path).get("general.file_type")).name).removeprefix("MOSTLY_")
