"""The library's layers and products inside a PyTorch model.

    from bitnet_gpu.torch import BitLinear, replace_linear
    replaced = replace_linear(model)                   # every nn.Linear whose weights are ternary already
    replaced = replace_linear(model, ternarise=True)   # or every one, rounded as BitNet b1.58 rounds

Pruned layers are `SparseLinear`, `SparseConv2d` and `replace_sparse`, convolutions `Conv2d`, `BitConv2d`, `replace_conv2d` and
`replace_bit_conv2d` with `fuse`, products `bmm` and `matmul`, rows `softmax`, `log_softmax`, `RMSNorm`, `LayerNorm` and
`replace_norm`, elements `activate`, `gated`, `axpby` and `multiply`, pooling `MaxPool2d`, `AvgPool2d`, `GlobalPool2d` and
`replace_pool2d`, table lookup `LutLinear`. What follows is of ternary linear layers.

A layer packs its weights to 2 bits and quantises each row of its input to int8; products are exact, so the result has
the same bits on the CPU and on a GPU. On a GPU it runs on PyTorch's own memory and current stream, without copies
for contiguous f32 input, and inside `torch.cuda.graph` after one call outside. For inference: it has no gradient.
"""

import contextlib
import ctypes
from typing import Dict, List, Optional, Sequence, Tuple

import torch

from . import _library, check
from ._bmm import bmm, matmul
from ._conv2d import BitConv2d, Conv2d, replace_bit_conv2d, replace_conv2d
from ._elements import activate, axpby, gated, multiply
from ._fuse import fuse
from ._lut import LutLinear
from ._pool2d import AvgPool2d, GlobalPool2d, MaxPool2d, replace_pool2d
from ._rows import LayerNorm, RMSNorm, log_softmax, replace_norm, softmax
from ._sparse import SparseConv2d, SparseLinear, pays_off, prune_, replace_sparse
from ._tensor import DTYPES, Replaced, backend as _backend

__all__ = [
    "AvgPool2d", "BitConv2d", "BitLinear", "Conv2d", "GlobalPool2d", "LayerNorm", "LutLinear", "MaxPool2d", "RMSNorm", "Replaced",
    "SparseConv2d", "SparseLinear", "activate", "axpby", "bmm", "fuse", "gated", "log_softmax", "matmul", "multiply", "pays_off",
    "prune_", "replace_bit_conv2d", "replace_conv2d", "replace_linear", "replace_norm", "replace_pool2d", "replace_sparse", "softmax",
    "ternaries",
]

# Of the rows that a ternary layer takes.
_DTYPES = {dtype: DTYPES[dtype] for dtype in (torch.float32, torch.float16, torch.bfloat16)}


def ternaries(weight: torch.Tensor, ternarise: bool = False) -> Optional[Tuple[torch.Tensor, float]]:
    """`weight` as int8 of -1, 0 and 1, and their scale; None where it is not ternary and `ternarise` is false.

    Weights are ternary when they have one value s > 0 and otherwise -s and 0. Others are rounded by
    g = max(mean |w|, 1e-5), t = clamp(round(w / g), -1, 1).
    """
    weight = weight.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("a weight is not finite")
    scale = weight.abs().max()
    signs = torch.sign(weight)
    if bool((weight == signs * scale).all()):
        return signs.to(torch.int8), float(scale) or 1.0
    if not ternarise:
        return None
    scale = weight.abs().mean().clamp(min=1e-5)
    return torch.round(weight / scale).clamp(-1, 1).to(torch.int8), float(scale)


class BitLinear(torch.nn.Module):
    """`y = x w^T + bias`, the weights ternary times a scale, the rows of x quantised to int8.

    `weight` is int8 `[out_features, in_features]` of -1, 0 and 1. It moves with the module, as a buffer of a byte a weight
    on the CPU side of things; the packed copy is made on the device of the first input. Output has the dtype of the input.
    """

    def __init__(self, weight: torch.Tensor, scale: float, bias: Optional[torch.Tensor] = None) -> None:
        super().__init__()
        if weight.dim() != 2 or weight.dtype != torch.int8:
            raise ValueError(f"weight must be int8 [out, in], not {weight.dtype} {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        self.scale = float(scale)
        # Not a buffer: `.cuda()` would put a byte a weight on the GPU, beside the packed copy.
        self._ternaries = weight.detach().to("cpu").contiguous()
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self._packed: Dict[str, _Layer] = {}
        # Refuses what cannot be packed now, not at the first input.
        self._layer(torch.device("cpu"))
        self._packed.clear()

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, ternary"

    def get_extra_state(self):
        return {"ternaries": self._ternaries, "scale": self.scale}

    def set_extra_state(self, state):
        if state["ternaries"].shape != (self.out_features, self.in_features):
            raise ValueError(f"ternaries {list(state['ternaries'].shape)} for a layer {self.extra_repr()}")
        self._ternaries, self.scale = state["ternaries"].to("cpu", torch.int8).contiguous(), state["scale"]
        self._packed.clear()

    def __getstate__(self):
        # Handles are of this process: a copy and a pickle pack anew.
        return {**self.__dict__, "_packed": {}}

    def _layer(self, device):
        key = str(device)
        layer = self._packed.get(key)
        if layer is None:
            layer = self._packed[key] = _Layer(_backend(device), self._ternaries, self.scale)
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"the last side of x must be {self.in_features}; x is {list(x.shape)}")
        if x.dtype not in _DTYPES:
            raise ValueError(f"x must be float32, float16 or bfloat16, not {x.dtype}")
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError("a BitLinear has no gradient; use torch.no_grad(), or detach the input")
        rows = x.detach().reshape(-1, self.in_features).contiguous()
        y = self._layer(x.device)(rows, self.out_features)
        y = y.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(x.dtype)


class _Layer:
    """Packed weights on one device."""

    def __init__(self, backend, ternaries, scale):
        self.handle = ctypes.c_void_p()
        (n, k), data = ternaries.shape, ternaries.data_ptr()
        check(_library.bitnet_linear_new(backend.handle, data, n, k, scale, ctypes.byref(self.handle)))

    def __del__(self):
        # At the end of the program the module may be gone before the layer.
        if self.handle and _library is not None:
            _library.bitnet_linear_free(self.handle)

    def __call__(self, rows, n):
        m, dtype = rows.shape[0], _DTYPES[rows.dtype]
        y = torch.empty((m, n), dtype=torch.float32, device=rows.device)
        if m == 0:
            return y
        if rows.device.type == "cpu":
            data = rows.data_ptr(), dtype, m, y.data_ptr()
            check(_library.bitnet_linear_forward(self.handle, *data, None, 0, None))
            return y
        if rows.data_ptr() % 256:
            rows = rows.clone()  # part of a larger tensor
        size = ctypes.c_size_t()
        check(_library.bitnet_linear_workspace(self.handle, m, ctypes.byref(size)))
        # PyTorch's allocator knows which stream and which graph it belongs to.
        room = torch.empty(size.value, dtype=torch.uint8, device=rows.device)
        stream = torch.cuda.current_stream(rows.device).cuda_stream
        # The library makes the layer's device the current one; afterwards PyTorch's is the current one again.
        here = rows.device.index == torch.cuda.current_device()
        with contextlib.nullcontext() if here else torch.cuda.device(rows.device):
            check(
                _library.bitnet_linear_forward(
                    self.handle, rows.data_ptr(), dtype, m, y.data_ptr(), room.data_ptr(), size.value, stream
                )
            )
        return y


def replace_linear(model: torch.nn.Module, ternarise: bool = False, skip: Sequence[str] = ("lm_head",)) -> List[str]:
    """Puts a `BitLinear` in the place of each `nn.Linear` of `model`, and returns their names.

    Without `ternarise` only of those whose weights are ternary already, which changes nothing but the quantised
    input. Modules whose name ends with an entry of `skip` stay.
    """
    replaced, made = [], {}
    # A layer that stands in two places stays one layer.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is not torch.nn.Linear or not name or name.endswith(tuple(skip)):
            continue
        if module not in made:
            found = ternaries(module.weight, ternarise)
            made[module] = found and BitLinear(*found, module.bias).train(module.training)
        if made[module] is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, made[module])
            replaced.append(name)
    return replaced
