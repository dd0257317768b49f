"""Tiny random models: their shape, their tokenizer, their weights."""

from __future__ import annotations

from typing import Any

CONTROLS = ("<s>", "<|im_end|>", "<|im_start|>")
"""Ids 256 to 258 of every tiny model; the bytes come first."""

VOCAB = 272

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
    "pad_token_id": None, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip
"""What the families share; six query heads over two of keys, and a hidden size that is not heads x head_dim."""


def decoded(tokenizer: Any, ids: Any) -> str:
    """What an answer of these ids reads like."""
    stream = tokenizer.incremental()
    return str(stream.push(ids) + stream.flush())


def spelt(tokenizer: Any, ids: Any) -> str:
    """The same with control tokens by their names, and every leading space."""
    return b"".join(tokenizer.token_bytes(int(id)) for id in ids).decode("utf-8", "replace")


def byte_tokenizer() -> Any:
    """A ``tokenizers`` tokenizer: 256 bytes and three control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in CONTROLS])
    return tokenizer


def randomise(model: Any, seed: int) -> None:
    """Weights large enough that logits spread over several units, norms and biases included."""
    import torch

    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            middle = weight.mean().item() if "norm" in name and weight.ndim == 1 else 0.0
            width = weight.shape[-1] ** -0.5 * 1.2 if weight.ndim > 1 else 0.3
            weight.copy_(torch.randn(weight.shape, generator=made) * width + middle)


def random_block(seed: int = 0, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """A block with random weights, without files: (BlockConfig, canonical name -> tensor)."""
    import torch

    from augury.models.families import block_config
    from augury.models.weights import shapes

    hf = {
        "model_type": "llama", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 320,
    }  # fmt: skip
    config = block_config(hf | changes)
    made = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=made) * (shape[-1] ** -0.5 * 1.2 if len(shape) > 1 else 0.3)
        + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes(config).items()
    }
    return config, weights
