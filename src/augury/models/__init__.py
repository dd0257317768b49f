"""What a target is, and three ways to run one: compiled, in torch, through transformers."""
