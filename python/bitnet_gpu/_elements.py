"""Activations, sums and products of the elements of PyTorch tensors."""

import ctypes
from typing import Any, Callable, Optional, Tuple

import torch

from . import _library
from ._rows import is_float
from ._tensor import ElementwiseOptions, aligned, kept, named, refuse_gradient, same_kind

KINDS = {"relu": 1, "relu2": 2, "silu": 3, "gelu": 4, "gelu_tanh": 5}


def _as_it_lies(x: torch.Tensor, other: Optional[torch.Tensor]) -> Tuple[Any, Any, Callable[[torch.Tensor], torch.Tensor]]:
    """x, and an `other` of its shape, as rows in memory, and what brings a result back to x's shape: images may be channels last."""
    last = torch.channels_last
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        x, shape = x.permute(0, 2, 3, 1), (x.shape[0], *x.shape[2:], x.shape[1])
        other = None if other is None else other.contiguous(memory_format=last).permute(0, 2, 3, 1).reshape(-1)
        return x.reshape(-1), other, lambda y: y.view(shape).permute(0, 3, 1, 2)
    shape = tuple(x.shape)
    return x.contiguous().view(-1), None if other is None else other.contiguous().view(-1), lambda y: y.view(shape)


def activate(x: torch.Tensor, kind: str, factor: Optional[torch.Tensor] = None) -> torch.Tensor:
    """`kind(x)`, or `kind(x) * factor`, a gate: in float32, rounded once, the same bits on every device.

    `kind`: "relu", "relu2" (`max(x, 0)^2`), "silu", "gelu" or "gelu_tanh". `factor` has the shape of x.
    """
    number = named("kind", KINDS, kind)
    is_float(x)
    refuse_gradient("activate", x, factor)
    if factor is not None:
        factor = same_kind("factor", factor, x, x.shape)
    if x.numel() == 0:
        return torch.empty_like(x)
    layer = kept(x.device, ("activation", number, 0), _library.bitnet_activation_new, number, 0)
    x, factor, back = _as_it_lies(x.detach(), factor)
    return back(layer(x, factor))


def gated(x: torch.Tensor, kind: str = "silu") -> torch.Tensor:
    """`kind(gate) * factor` of fused projections: a row of x, its last dimension, holds the gate, then the factor."""
    number = named("kind", KINDS, kind)
    is_float(x)
    refuse_gradient("gated", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"the last side of x holds a gate and its factor, so it has to be even; x is {list(x.shape)}")
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    if x.numel() == 0:
        return x.new_empty(shape)
    layer = kept(x.device, ("activation", number, 1), _library.bitnet_activation_new, number, 1)
    return layer(x.detach().contiguous().view(-1, x.shape[-1])).view(shape)


def _elementwise(x: torch.Tensor, other: Optional[torch.Tensor], multiply: bool, alpha: float, beta: float, relu: bool) -> torch.Tensor:
    is_float(x)
    refuse_gradient("multiply" if multiply else "axpby", x, other)
    x = x.detach()
    row = False
    if other is not None:
        if other.dtype != x.dtype or other.device != x.device:
            raise ValueError(f"other must be {x.dtype} on {x.device}; it is {other.dtype} on {other.device}")
        other = other.detach()
        # One row for all is read as it is.
        row = other.dim() == 1 and other.shape[0] > 1 and x.shape[-1:] == other.shape and x.dim() > 1
        if not row:
            try:
                x, other = torch.broadcast_tensors(x, other)
            except RuntimeError as error:
                raise ValueError(f"{list(x.shape)} and {list(other.shape)}: {error}") from None
    if x.numel() == 0:
        return torch.empty_like(x)
    options = ElementwiseOptions(ctypes.sizeof(ElementwiseOptions), multiply, alpha, beta, relu)
    key = ("elementwise", multiply, options.alpha, options.beta, relu)
    layer = kept(x.device, key, _library.bitnet_elementwise_new, options)
    if row and other is not None:
        return layer(x.contiguous().view(-1, x.shape[-1]), aligned(other.contiguous())).view(x.shape)
    x, other, back = _as_it_lies(x, other)
    return back(layer(x, other))


def axpby(
    x: torch.Tensor, other: Optional[torch.Tensor] = None, *, alpha: float = 1.0, beta: float = 1.0, relu: bool = False
) -> torch.Tensor:
    """`alpha x + beta other`, or without `other` `alpha x + beta`, and `max(., 0)` behind it with `relu`: in float32, rounded once.

    `beta other` is rounded to float32, the rest is fused: the same bits on every device. Shapes are broadcast.
    """
    return _elementwise(x, other, False, alpha, beta, relu)


def multiply(x: torch.Tensor, other: torch.Tensor, *, relu: bool = False) -> torch.Tensor:
    """`x * other`, and `max(., 0)` behind it with `relu`. Shapes are broadcast."""
    return _elementwise(x, other, True, 1.0, 1.0, relu)
