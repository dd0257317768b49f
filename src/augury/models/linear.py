"""Linear layers whose rows do not know each other.

A row of ``x W^T + b`` must have the same bits whether it is computed alone or among others; else a verified
row would differ from a decoded one. On a CPU the weights are packed once by oneDNN, whose kernels sum each
row along K in an order that does not depend on the number of rows M, for M >= 2 (at M = 1 it takes a
matrix-vector kernel with another order); one row is therefore padded to two. ``row_exact`` proves it for a
layer on the machine at hand instead of trusting a version number.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Linear:
    """``y = x W^T + b`` with the input rounded to ``dtype`` and the output in f32.

    Args:
        weight: [N, K].
        bias: [N] or None; added in f32 after the product.
        dtype: of the stored weight and of the product's input and output.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.rows, self.columns = weight.shape
        stored = weight.to(device=device, dtype=dtype)
        self.packed = device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        # Without AVX-512 oneDNN has no bf16 product: the same rounded numbers are then multiplied as f32.
        bf16 = self.packed and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self.wide = device.type == "cpu" and dtype == torch.bfloat16 and not bf16
        stored = stored.float() if self.wide else stored
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(stored) if self.packed else stored
        self.bias = None if bias is None else bias.to(device=device, dtype=torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[R, K] -> f32[R, N]."""
        x = x.to(self.dtype)
        x = x.float() if self.wide else x
        if not self.packed:
            y = torch.nn.functional.linear(x, self.weight)
        elif len(x) == 1:
            y = self._product(x.expand(2, -1).contiguous())[:1]
        else:
            y = self._product(x)
        y = y.float()
        return y if self.bias is None else y + self.bias

    def _product(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        return y


def row_exact(linear: Linear) -> bool:
    """Whether a row's bits are the same alone, first, last, and among 2 to 65 others, on fixed test rows."""
    steps = torch.arange(65 * linear.columns, dtype=torch.float32).reshape(65, linear.columns)
    x = torch.sin(steps * 0.7) * (1 + torch.cos(steps * 0.013))
    x = x.to(linear.weight.device if not linear.packed else "cpu")
    full = linear(x)
    alone = all(torch.equal(linear(x[i : i + 1]), full[i : i + 1]) for i in (0, 7, 64))
    among = all(torch.equal(linear(x[:m]), full[:m]) for m in (2, 3, 5, 8, 17, 32, 64))
    return alone and among and torch.equal(linear(x.flip(0)), full.flip(0))
