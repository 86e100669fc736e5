"""Batched products of PyTorch tensors."""

import ctypes
from typing import Optional

import torch

from . import _library
from ._tensor import DTYPES, MATH, BmmOptions, backend, call, described, named, on, refuse_gradient

_SIZES_MOST = 4096


def _beside(t: torch.Tensor) -> bool:
    """Whether rows or columns lie side by side."""
    (rows, columns), (far, near) = t.shape[-2:], t.stride()[-2:]
    by_rows = (near == 1 or columns <= 1) and (far >= columns or rows <= 1)
    by_columns = (far == 1 or rows <= 1) and (near >= rows or columns <= 1)
    return by_rows or by_columns


def bmm(
    a: torch.Tensor, b: torch.Tensor, *, math: str = "exact", alpha: float = 1.0, beta: float = 0.0, out: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """`alpha (a x b) + beta out`, for `[batch, m, k]` and `[batch, k, n]`, or `[m, k]` and `[k, n]`.

    `math="exact"` (the default) gives the same bits on every device; `"tensor_core"` sums in the hardware's order, and rounds
    factors of float32 to TF32. float32, float16 and bfloat16 give their dtype, int8 gives exact int32. Transposed and strided
    tensors, and batches that were expanded, are read where they are. `out` may not overlap the factors.
    """
    if a.dim() != b.dim() or a.dim() not in (2, 3):
        raise ValueError(f"a and b must both be [batch, m, k] or [m, k]; they are {list(a.shape)} and {list(b.shape)}")
    if a.dtype != b.dtype or a.dtype not in DTYPES or a.dtype == torch.int32:
        raise ValueError(f"a and b must both be float32, float16, bfloat16 or int8; they are {a.dtype} and {b.dtype}")
    if a.device != b.device:
        raise ValueError(f"a is on {a.device}, b on {b.device}")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"{list(a.shape)} times {list(b.shape)}: batches, or a's columns and b's rows, are not as many")
    refuse_gradient("bmm", a, b, out)
    device = a.device
    shape = (*a.shape[:-1], b.shape[-1])
    dtype = torch.int32 if a.dtype == torch.int8 else a.dtype
    if out is None:
        if beta != 0:
            raise ValueError(f"beta = {beta} without `out`; give the tensor that is added to")
        out = torch.empty(shape, dtype=dtype, device=device)
    elif tuple(out.shape) != shape or out.dtype != dtype or out.device != device:
        raise ValueError(
            f"out must be {dtype} {list(shape)} on {device}; it is {out.dtype} {list(out.shape)} on {out.device}"
        )
    a, b = (t.detach() if _beside(t) else t.detach().contiguous() for t in (a, b))
    here, options = backend(device), BmmOptions(ctypes.sizeof(BmmOptions), alpha, beta, named("math", MATH, math))
    tensors = [described(t) for t in (a, b, out)]
    # What decides on the kernel, and so on its workspace.
    key = (math, beta != 0, a.dtype, *((t.shape, t.stride(), t.data_ptr() % 256) for t in (a, b, out)))
    size = here.sizes.get(key)
    if size is None:
        asked = ctypes.c_size_t()
        on(device, _library.bitnet_bmm_workspace, here.handle, *tensors, options, ctypes.byref(asked))
        if len(here.sizes) >= _SIZES_MOST:
            here.sizes.clear()
        size = here.sizes[key] = asked.value
    call(device, size, _library.bitnet_bmm, here.handle, *tensors, options)
    return out


def matmul(a: torch.Tensor, b: torch.Tensor, *, math: str = "exact") -> torch.Tensor:
    """`torch.matmul` by `bmm`: vectors, matrices, and batches that are expanded to each other."""
    if a.dim() == 0 or b.dim() == 0:
        raise ValueError(f"matmul takes tensors of one dimension and more; they have {a.dim()} and {b.dim()}")
    row, column = a.dim() == 1, b.dim() == 1
    a, b = (a.unsqueeze(0) if row else a), (b.unsqueeze(1) if column else b)
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{list(a.shape)} times {list(b.shape)}: a's columns and b's rows are not as many")
    if b.dim() == 2 and a.dim() > 2:
        # One right factor: all rows at once.
        y = bmm(a.reshape(-1, a.shape[-1]), b, math=math).view(*a.shape[:-1], b.shape[-1])
    elif a.dim() == 2 and b.dim() == 2:
        y = bmm(a, b, math=math)
    else:
        try:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except RuntimeError as error:
            raise ValueError(f"{list(a.shape)} times {list(b.shape)}: {error}") from None
        a, b = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (a, b))
        y = bmm(a, b, math=math).view(*batch, a.shape[-2], b.shape[-1])
    y = y.squeeze(-2) if row else y
    return y.squeeze(-1) if column else y
