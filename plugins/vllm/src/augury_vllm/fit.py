"""Whether this vLLM is one that the plug-in can work with: it is not pinned, so what is needed is looked for."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any, get_args

from augury.errors import ModelError

TRIED = "0.32.0"
"""Versions that the tests were run with."""

METHOD = "custom_class"

_NEEDED = (
    "speculative_config.num_speculative_tokens",
    "model_config.max_model_len",
    "model_config.get_vocab_size",
    "parallel_config.world_size",
    "parallel_config.pipeline_parallel_size",
    "parallel_config.rank",
    "scheduler_config.max_num_seqs",
    "device_config.device_type",
    "instance_id",
)

_LOG = logging.getLogger("vllm.augury")


def version() -> str:
    """Of the vLLM of this process; "not there" where it is not loaded."""
    return str(getattr(sys.modules.get("vllm"), "__version__", "not there"))


def require(config: Any) -> None:
    """Refuse a vLLM that lacks what the proposer needs.

    Args:
        config: its ``VllmConfig``.

    Raises:
        ModelError: says what is missing, and which versions were tried.
    """
    missing = [path for path in _NEEDED if not _has(config, path)]
    if missing:
        raise ModelError(
            f"augury-vllm was tried with vLLM {TRIED}; this one ({version()}) has no {', '.join(missing)} in its config"
        )
    if getattr(config.scheduler_config, "async_scheduling", False):
        raise ModelError(
            "augury-vllm reads the tokens that were sampled, and asynchronous scheduling does not wait for them: "
            "leave out --async-scheduling"
        )
    parallel = config.parallel_config
    if parallel.world_size > 1 and getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
        raise ModelError(
            "augury-vllm guesses on one rank, and with external_launcher every rank goes by its own guesses: "
            "let vLLM start the ranks, with --distributed-executor-backend mp or ray"
        )


def signature(first: object) -> None:
    """Refuse a call of ``propose`` whose first argument is not the sampled tokens.

    Raises:
        ModelError: this vLLM calls proposers in another way.
    """
    if not isinstance(first, list):
        raise ModelError(
            f"augury-vllm was tried with vLLM {TRIED}; this one ({version()}) calls propose with "
            f"a {type(first).__name__} first, and not with the sampled tokens"
        )


def announce() -> None:
    """Say in the log of a vLLM that has no such proposers that it has none; it would only say "unknown method".

    vLLM calls this in every process that finds the plug-in, so it never raises.
    """
    try:
        known = METHOD in get_args(import_module("vllm.config.speculative").SpeculativeMethod)
    except Exception:  # whatever another version does
        known = False
    if not known:
        _LOG.warning(
            "augury-vllm was tried with vLLM %s; this one (%s) has no speculative method %s, so it cannot be used",
            TRIED, version(), METHOD,
        )  # fmt: skip


def _has(config: Any, path: str) -> bool:
    for name in path.split("."):
        config = getattr(config, name, None)
        if config is None:
            return False
    return True
