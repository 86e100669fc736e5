"""Pruned layers inside a PyTorch model."""

import ctypes
import math as _math
from typing import Any, Optional, Sequence, Union

import torch

from . import _library, check
from ._conv2d import ACTIVATIONS, Pair, beside, images, options, sides
from ._tensor import (
    FLOATS, MATH, Layer, PackedModule, Replaced, SparseOptions, described, host_bias, linear, named, of_type, on_host,
    refuse_gradient, replace, weight_of,
)

FORMATS = {"csr": 0, "bitmap": 1, "ternary_bitmap": 2}


def sparsity(weight: torch.Tensor) -> float:
    """The share of weights that are 0."""
    return 1.0 - int(torch.count_nonzero(weight)) / weight.numel() if weight.numel() else 0.0


def prune_(weight: torch.Tensor, sparsity: float) -> int:
    """Sets the `round(sparsity * n)` weights of the smallest magnitude to 0, in place, and returns how many those are.

    Among equal magnitudes the earlier weight goes first, so the same ones go on every machine.
    """
    if weight.dtype not in FLOATS:
        raise ValueError(f"weight must be float32, float16 or bfloat16, not {weight.dtype}")
    host = on_host(weight).reshape(-1).clone()
    count = ctypes.c_size_t()
    if host.numel():
        check(_library.bitnet_prune(ctypes.byref(described(host)), sparsity, ctypes.byref(count)))
        with torch.no_grad():
            weight.copy_(host.view(weight.shape))
    return count.value


def pays_off(n: int, k: int, rows: int, sparsity: float, math: str = "exact") -> bool:
    """Whether a pruned linear layer `[n, k]` is expected to beat a dense bfloat16 one with so many rows on a GPU.

    The rule is measured: it knows products of up to 16 rows on tensor cores, and of one row by exact sums.
    """
    out = ctypes.c_int32()
    if min(n, k, rows) < 0:
        raise ValueError(f"n = {n}, k = {k} and rows = {rows} may not be below 0")
    check(_library.bitnet_sparse_pays_off(n, k, rows, sparsity, named("math", MATH, math), ctypes.byref(out)))
    return bool(out.value)


def _without_zeros(weight: torch.Tensor) -> torch.Tensor:
    """-0, which a mask leaves of negative weights, as +0: that is what no format stores."""
    return on_host(weight) + 0


def _is_float(x: torch.Tensor, math: str) -> None:
    if x.dtype not in FLOATS or math == "tensor_core" and x.dtype != torch.bfloat16:
        words = "bfloat16, for tensor cores" if math == "tensor_core" else "float32, float16 or bfloat16"
        raise ValueError(f"x must be {words}, not {x.dtype}")


class SparseLinear(PackedModule):
    """`y = act(x w^T + bias + residual)` over the weights that are not 0, in a sparse format.

    `format`: "bitmap" (the fast one), "csr", or "ternary_bitmap" for int8 weights of -1, 0 and 1 times `scale`, with rows of x
    quantised to int8. `math="exact"` (the default) gives the same bits on every device and in both formats of floats;
    `"tensor_core"` is for the bitmap of bfloat16 and inputs of bfloat16. Sums are in float32; the output has the dtype of x.
    NaN in x reaches only the outputs that have a weight in its column. `activation` as in `Conv2d`.
    """

    _STATE = ("weight", "bias", "scale")

    def __init__(
        self, weight: torch.Tensor, bias: Optional[torch.Tensor] = None, *, format: str = "bitmap", math: str = "exact",
        activation: Optional[str] = None, scale: float = 1.0,
    ) -> None:
        super().__init__()
        allowed = (torch.int8,) if format == "ternary_bitmap" else FLOATS
        self._options = SparseOptions(
            ctypes.sizeof(SparseOptions), named("format", FORMATS, format), named("math", MATH, math),
            named("activation", ACTIVATIONS, activation),
        )
        if weight.dim() != 2 or weight.dtype not in allowed:
            words = " or ".join(str(dtype) for dtype in allowed)
            raise ValueError(f"weight must be [out, in] of {words}, not {weight.dtype} {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias, self._scale = _without_zeros(weight), host_bias(bias), float(scale)
        self.format, self.math, self.activation, self.sparsity = format, math, activation, sparsity(self._weight)
        self._try()

    @classmethod
    def of(cls, module: torch.nn.Linear, **more: Any) -> "SparseLinear":
        """The same as a pruned module of PyTorch; `more`: `format`, `math`."""
        return cls(weight_of(module), module.bias, **more)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}, "
            f"{self.format}, {self.sparsity:.1%} zeros, activation={self.activation!r}, math={self.math!r}"
        )

    def set_extra_state(self, state: Any) -> None:
        super().set_extra_state(state)
        self.sparsity = sparsity(self._weight)

    def _make(self, device: torch.device) -> Layer:
        bias = None if self._bias is None else described(self._bias)
        options = SparseOptions.from_buffer_copy(self._options)
        options.scale = self._scale
        return Layer(device, _library.bitnet_sparse_linear_new, described(self._weight), bias, options)

    def forward(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        _is_float(x, self.math)
        return linear(self, x, residual)


class SparseConv2d(PackedModule):
    """`Conv2d` over the weights that are not 0: one group, zeros around the image, as many on both sides.

    Images are worked on with channels last; others are copied, and so is the output. `math` as in `SparseLinear`.
    """

    _STATE = ("weight", "bias")

    def __init__(
        self, weight: torch.Tensor, bias: Optional[torch.Tensor] = None, *, stride: Pair = 1, padding: Union[str, Pair] = 0,
        dilation: Pair = 1, activation: Optional[str] = None, math: str = "exact",
    ) -> None:
        super().__init__()
        if weight.dim() != 4 or weight.dtype not in FLOATS:
            raise ValueError(
                f"weight must be [out, in, rows, columns] of float32, float16 or bfloat16, not {weight.dtype} {list(weight.shape)}"
            )
        self._options = (tuple(weight.shape[2:]), stride, padding, dilation, 1, "zeros", activation, math)
        self.out_channels, self.in_channels = weight.shape[:2]
        self._weight, self._bias = _without_zeros(weight), host_bias(bias)
        self.math, self.sparsity = math, sparsity(self._weight)
        self._try()

    @classmethod
    def of(cls, module: torch.nn.Conv2d, **more: Any) -> "SparseConv2d":
        """The same as a pruned module of PyTorch; `more`: `math`."""
        why = _dense_only(module)
        if why:
            raise ValueError(why)
        return cls(
            weight_of(module), module.bias, stride=module.stride, padding=module.padding, dilation=module.dilation, **more
        )

    def extra_repr(self) -> str:
        window, stride, padding, dilation, _, _, activation, math = self._options
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={window}, stride={stride}, padding={padding}, "
            f"dilation={dilation}, bias={self._bias is not None}, {self.sparsity:.1%} zeros, activation={activation!r}, "
            f"math={math!r}"
        )

    def set_extra_state(self, state: Any) -> None:
        super().set_extra_state(state)
        self.sparsity = sparsity(self._weight)

    def _make(self, device: torch.device) -> Layer:
        bias, filled = None if self._bias is None else described(self._bias), options(*self._options)
        return Layer(device, _library.bitnet_sparse_conv2d_new, described(self._weight), bias, filled)

    def forward(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        _is_float(x, self.math)
        refuse_gradient("a SparseConv2d", x, residual)
        x, single = images(x, self.in_channels)
        planes = x.is_contiguous()
        last = torch.channels_last
        residual = beside(residual, x, single, last)
        y = self._layer(x.device)(x.contiguous(memory_format=last), residual)
        y = y.contiguous() if planes else y
        return y.squeeze(0) if single else y


def _dense_only(module: torch.nn.Conv2d) -> Optional[str]:
    if module.groups != 1:
        return f"a convolution of {module.groups} groups has no sparse kernel"
    if module.padding_mode != "zeros":
        return f"padding_mode {module.padding_mode!r} has no sparse kernel"
    around = sides(module.padding, module.kernel_size, module.stride, module.dilation)
    if around[0] != around[1] or around[2] != around[3]:
        return "padding of more pixels on one side than on the other has no sparse kernel"
    return None


def replace_sparse(
    model: torch.nn.Module, *, rows: int = 1, math: str = "exact", at_least: Optional[float] = None, skip: Sequence[str] = (),
) -> Replaced:
    """Puts a sparse layer in the place of each pruned `nn.Linear` and `nn.Conv2d` that it is expected to make faster.

    A linear layer goes when `pays_off` says so for its sides, its share of zeros and `rows` rows at a time. No rule knows
    convolutions, which stay. `at_least` is a share of zeros to go by instead of the rule, for both kinds. Masks of
    `torch.nn.utils.prune` need not have been made permanent. `math="tensor_core"` is for layers of bfloat16; others are exact.
    Returns the names of those that were replaced, and of the others why they stay; `skip` as in `replace_linear`.
    """
    named("math", MATH, math)
    if rows < 1:
        raise ValueError(f"rows = {rows} must be 1 or more")
    if at_least is not None and not (0 <= at_least <= 1 and _math.isfinite(at_least)):
        raise ValueError(f"at_least = {at_least} must be from 0 to 1")

    def make(module: Any) -> Any:
        weight = weight_of(module)
        if weight.dtype not in FLOATS:
            return f"weights of {weight.dtype} are not supported"
        how = math if weight.dtype == torch.bfloat16 else "exact"
        share, linear = sparsity(weight), isinstance(module, torch.nn.Linear)
        why = None if linear else _dense_only(module)
        if why:
            return why
        if at_least is not None:
            if share < at_least:
                return f"{share:.1%} of its weights are 0, less than at_least = {at_least:.1%}"
        elif not linear:
            return "no rule says that a sparse convolution is faster; at_least=... replaces it all the same"
        elif not pays_off(weight.shape[0], weight.shape[1], rows, share, how):
            return f"with {share:.1%} zeros and {rows} rows of {list(weight.shape)} it is not expected to be faster ({how})"
        return SparseLinear.of(module, math=how) if linear else SparseConv2d.of(module, math=how)

    return replace(model, of_type(torch.nn.Linear, torch.nn.Conv2d), tuple(skip), make)
