"""Augury's drafters in vLLM.

``vllm serve MODEL --speculative-config '{"method": "custom_class", "model": "augury_vllm.AuguryProposer",
"num_speculative_tokens": 5}'``
"""

from augury_vllm.proposer import AuguryProposer

__all__ = ["AuguryProposer"]
