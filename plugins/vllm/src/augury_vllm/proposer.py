"""The class that vLLM is told to guess with: ``augury_vllm.AuguryProposer``.

vLLM calls it after every step, in each process that samples. With tensor parallelism these are several. It takes the
guesses of one of them, as ``take_draft_token_ids`` of its executors asks the output rank alone, and sends them to all
with the next step. So that rank guesses, and the others keep silent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.drafters import takes, unreplayable
from augury.errors import AuguryError, InputError, first_line
from augury.integrations.alongside import Alongside, Came
from augury.tree import MAX_NODES
from augury_vllm.counts import Counts, named
from augury_vllm.fit import require, signature
from augury_vllm.options import Options
from augury_vllm.rows import Rows, Table

if TYPE_CHECKING:
    from augury.models.tokenizer import Tokenizer

_LOG = logging.getLogger("vllm.augury")

_LEAST_PARKED = 16


class AuguryProposer:
    """Guesses for vLLM, on the rank whose answers it takes; on others there are none.

    Args:
        vllm_config: its ``VllmConfig``; ours are in ``additional_config["augury"]``, see ``Options``.

    Raises:
        InputError: an option that cannot be honoured.
        ModelError: a vLLM that lacks what is needed.
    """

    def __init__(self, vllm_config: Any) -> None:
        require(vllm_config)
        parallel, model = vllm_config.parallel_config, vllm_config.model_config
        ranks = parallel.world_size // parallel.pipeline_parallel_size
        self.options = Options.of(getattr(vllm_config, "additional_config", {}), vllm_config.device_config.device_type)
        _check(self.options.drafters)
        self._rows: Rows | None = None
        first = parallel.world_size - ranks  # of the last pipeline stage
        if parallel.rank != first:
            _LOG.info("augury: rank %d leaves guessing to rank %d", parallel.rank, first)
            return
        # By how far a row may have gone on its text is known: a limit that no chain reaches must not widen that.
        self._deepest = min(int(vllm_config.speculative_config.num_speculative_tokens), MAX_NODES)
        vocab_size = int(model.get_vocab_size())
        self._beside = Alongside(
            self.options.drafters, vocab_size=vocab_size, context=int(model.max_model_len),
            prices=self.options.table(), tokenizer=_tokenizer(model, self.options.drafters),
        )  # fmt: skip
        parked = max(int(vllm_config.scheduler_config.max_num_seqs), _LEAST_PARKED)
        self._rows = Rows(self._beside, vocab_size, self._deepest + 1, parked, _ends(model))
        self._counts = _counts(vllm_config)
        self._faulty: set[str] = set()
        # Drafters that remember keep what is still open, also of an engine that ends before its process.
        Finalize(self, self._rows.close, exitpriority=1)

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Nothing to load: vLLM shows the target here, and these drafters need none."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Table,
        token_ids_cpu: Table,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Guess what follows in every row.

        Args:
            sampled_token_ids: what the step brought for each row; nothing where a prompt is not computed to its end.
            num_tokens_no_spec: int[>= rows], tokens of each row, the new ones included.
            token_ids_cpu: int[>= rows, context], the tokens.
            slot_mappings: not used.

        Returns:
            For each row ``num_speculative_tokens`` at most, and never beyond the context; often none.
        """
        signature(sampled_token_ids)
        if self._rows is None:
            return [[] for _ in sampled_token_ids]
        came, steady = self._rows.read(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        batch = [one for one in came if one is not None]
        chains = iter(self._beside.step(batch, self._deepest, timed=steady) if batch else ())
        self._count(batch)
        return [[] if one is None else list(next(chains)) for one in came]

    def _count(self, batch: Sequence[Came]) -> None:
        """Count what the step brought of the last guesses, and forget how it went: an answer may be long."""
        drafted: list[int] = []
        right: list[int] = []
        for text, _ in batch:
            steps = text.record.steps
            if not steps:
                continue
            step = steps[-1]
            for proposal in step.proposals:
                if proposal.fault and proposal.drafter not in self._faulty:
                    self._faulty.add(proposal.drafter)
                    _LOG.warning("augury: drafter %s: %s (said once)", proposal.drafter, proposal.fault)
            sources, good = step.tree.source.tolist(), len(step.path.nodes)
            if good == len(step.emitted):  # behind guesses that are right comes one token more: the last was cut before
                good -= 1
                del sources[good:]
            drafted += sources
            right += sources[:good]  # of a chain these are the first ones
            steps.clear()
        if self._counts is not None:
            accepted = Counter(right)
            for drafter, more in Counter(drafted).items():
                self._counts.add(drafter, more, accepted[drafter])


def _check(drafters: Sequence[str]) -> None:
    """Refuse drafters that keep a cache for each open text: of texts there are hundreds.

    Raises:
        InputError: names one, and those that can be had.
    """
    for spec in drafters:
        if unreplayable(spec) is None and takes(spec, "slots"):
            raise InputError(
                f"drafter {spec} keeps a cache for every text, and vLLM has too many; those that have part in it: "
                f"memory, ngram, retrieval, suffix"
            )


def _counts(config: Any) -> Counts | None:
    """Where the counts go; without a place for them the guesses do not suffer."""
    parallel = config.parallel_config
    engine = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
    try:
        return Counts(named(config.instance_id, int(engine)))
    except (OSError, AuguryError) as error:
        _LOG.warning("augury: what each drafter brings is not counted: %s", first_line(error))
        return None


def _ends(model: Any) -> frozenset[int]:
    """Tokens that end an answer, as the model's configuration says."""
    given = getattr(getattr(model, "hf_config", None), "eos_token_id", None)
    ids = given if isinstance(given, (list, tuple)) else [given]
    return frozenset(one for one in ids if isinstance(one, int))


def _tokenizer(model: Any, drafters: Sequence[str]) -> Tokenizer | None:
    """The target's, where a drafter asks for it.

    Raises:
        InputError: it is not at hand in the fast format.
    """
    able = [spec for spec in drafters if unreplayable(spec) is None]  # what is not will be refused
    asking = [spec for spec in able if takes(spec, "tokenizer")]
    if not asking:
        return None
    name = str(getattr(model, "tokenizer", None) or model.model)
    file = Path(name) / "tokenizer.json"
    if not Path(name).is_dir():
        with suppress(Exception):  # not in the cache, or no such package: said below
            from huggingface_hub import hf_hub_download

            found = hf_hub_download(
                name, "tokenizer.json", revision=getattr(model, "tokenizer_revision", None), local_files_only=True
            )
            file = Path(found)
    if not file.is_file():
        needing = [spec for spec in asking if spec.partition(":")[0] != "memory"]  # which says itself when it needs one
        if not needing:
            return None
        raise InputError(f"drafter {needing[0]} needs the target's tokenizer.json, and {name} has none at hand")
    from augury.models.tokenizer import tokenizer_from_file

    return tokenizer_from_file(file)
