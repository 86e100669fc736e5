"""Convolutions inside a PyTorch model: dense ones, and ternary ones on int8 images."""

import ctypes
from typing import Any, Optional, Sequence, Tuple, Union

import torch

from . import _library, check
from ._tensor import (
    DTYPES, FLOATS, MATH, ConvOptions, Layer, PackedModule, Replaced, described, host_bias, named, of_type, on_host,
    refuse_gradient, replace, weight_of,
)

Pair = Union[int, Sequence[int]]
PAD_MODES = {"zeros": 0, "reflect": 1, "replicate": 2}
ACTIVATIONS = {None: 0, "relu": 1, "relu2": 2, "silu": 3}


def pair(what: str, value: Pair, least: int) -> Tuple[int, int]:
    """Two numbers from one or two."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(v, int) and least <= v < 1 << 31 for v in both):
        raise ValueError(f"{what} = {value!r} must be one or two whole numbers from {least} on")
    return both


def sides(padding: Union[str, Pair], window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tuple[int, ...]:
    """Pixels above, below, to the left and to the right, as PyTorch's `padding` means them."""
    if padding == "valid":
        return (0, 0, 0, 0)
    if padding == "same":
        if tuple(stride) != (1, 1):
            raise ValueError(f"padding 'same' goes with stride 1 alone, not {tuple(stride)}; give numbers")
        both = [d * (w - 1) for d, w in zip(dilation, window)]
        return tuple(side for all in both for side in (all // 2, all - all // 2))
    if isinstance(padding, str):
        raise ValueError(f"padding = {padding!r}; 'same', 'valid' or numbers are allowed")
    rows, columns = pair("padding", padding, 0)
    return (rows, rows, columns, columns)


def options(
    window: Sequence[int], stride: Pair, padding: Union[str, Pair], dilation: Pair, groups: int = 1, padding_mode: str = "zeros",
    activation: Optional[str] = None, math: str = "exact", scale: float = 1.0,
) -> ConvOptions:
    """The library's options for PyTorch's."""
    filled = ConvOptions()
    check(_library.bitnet_conv2d_options_default(ctypes.byref(filled)))
    stride, dilation = pair("stride", stride, 1), pair("dilation", dilation, 1)
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"groups = {groups!r} must be a whole number from 1 on")
    filled.stride[:], filled.dilation[:], filled.groups = stride, dilation, groups
    filled.padding[:] = sides(padding, window, stride, dilation)
    filled.pad_mode = named("padding_mode", PAD_MODES, padding_mode)
    filled.activation = named("activation", ACTIVATIONS, activation)
    filled.math, filled.scale = named("math", MATH, math), scale
    return filled


def images(x: torch.Tensor, channels: int) -> Tuple[torch.Tensor, bool]:
    """Images as `[n, c, h, w]`, contiguous or channels last, and whether there was one without a batch."""
    single = x.dim() == 3
    if x.dim() not in (3, 4) or x.shape[-3] != channels:
        raise ValueError(f"x must be [n, {channels}, h, w]; x is {list(x.shape)}")
    x = x.detach()
    x = x.unsqueeze(0) if single else x
    if not x.is_contiguous() and not x.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous()
    return x, single


def beside(residual: Optional[torch.Tensor], x: torch.Tensor, single: bool, form: torch.memory_format) -> Optional[torch.Tensor]:
    """A residual of the output of `x`, in `form`."""
    if residual is None:
        return None
    if residual.dtype != x.dtype or residual.device != x.device or residual.dim() != (3 if single else 4):
        raise ValueError(
            f"residual must have the output's shape, {x.dtype} on {x.device}; "
            f"it is {residual.dtype} {list(residual.shape)} on {residual.device}"
        )
    residual = residual.detach()
    return (residual.unsqueeze(0) if single else residual).contiguous(memory_format=form)


class _Conv2d(PackedModule):
    """What both kinds of convolution are."""

    def __init__(
        self, weight: torch.Tensor, bias: Optional[torch.Tensor], stride: Pair, padding: Union[str, Pair], dilation: Pair, groups: int,
        padding_mode: str, activation: Optional[str], math: str, scale: float,
    ) -> None:
        super().__init__()
        if weight.dim() != 4:
            raise ValueError(f"weight must be [out, in / groups, rows, columns], not {list(weight.shape)}")
        window = tuple(weight.shape[2:])
        self._options = (window, stride, padding, dilation, groups, padding_mode, activation, math)
        options(*self._options)
        self.out_channels, self.in_channels = weight.shape[0], weight.shape[1] * groups
        self._weight = on_host(weight).clone()
        self._bias = host_bias(bias)
        self._scale = float(scale)

    def extra_repr(self) -> str:
        window, stride, padding, dilation, groups, padding_mode, activation, math = self._options
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={window}, stride={stride}, padding={padding}, "
            f"dilation={dilation}, groups={groups}, bias={self._bias is not None}, padding_mode={padding_mode!r}, "
            f"activation={activation!r}, math={math!r}"
        )

    def _weights(self) -> torch.Tensor:
        return self._weight

    # ctypes keeps no options: they are filled in when a layer is made.
    def _make(self, device: torch.device) -> Layer:
        weight, filled = self._weights(), options(*self._options, self._scale)
        bias = None if self._bias is None else described(self._bias)
        return Layer(device, _library.bitnet_conv2d_new, described(weight), bias, filled)

    def _run(self, x: torch.Tensor, residual: Optional[torch.Tensor]) -> torch.Tensor:
        refuse_gradient(f"a {type(self).__name__}", x, residual)
        x, single = images(x, self.in_channels)
        form = torch.contiguous_format if x.is_contiguous() else torch.channels_last
        residual = beside(residual, x, single, form)
        y = self._layer(x.device)(x, residual)
        return y.squeeze(0) if single else y


class Conv2d(_Conv2d):
    """`torch.nn.Conv2d`, and behind its sums bias, a residual and an activation: `act(conv(x, w) + bias + residual)`.

    `math="exact"` (the default) gives the same bits on every device; `"tensor_core"` is for float16 and bfloat16, its sums are
    in the hardware's order. An input is `[n, c, h, w]` of the weights' dtype, contiguous or channels_last (the fast one), and so
    is the output. `activation`: None, "relu", "relu2" or "silu". `.half()` and its like change the dtype.
    """

    _STATE = ("weight", "bias")

    def __init__(
        self, weight: torch.Tensor, bias: Optional[torch.Tensor] = None, *, stride: Pair = 1, padding: Union[str, Pair] = 0,
        dilation: Pair = 1, groups: int = 1, padding_mode: str = "zeros", activation: Optional[str] = None, math: str = "exact",
    ) -> None:
        if weight.dtype not in FLOATS:
            raise ValueError(f"weight must be float32, float16 or bfloat16, not {weight.dtype}")
        super().__init__(weight, bias, stride, padding, dilation, groups, padding_mode, activation, math, 1.0)
        # Follows `.to` and its like; the weights are on the host.
        self._like: torch.Tensor
        self.register_buffer("_like", torch.empty(0, dtype=weight.dtype), persistent=False)
        self._try()

    @classmethod
    def of(cls, module: torch.nn.Conv2d, **more: Any) -> "Conv2d":
        """The same as a module of PyTorch; `more`: `activation`, `math`."""
        return cls(
            weight_of(module), module.bias, stride=module.stride, padding=module.padding, dilation=module.dilation,
            groups=module.groups, padding_mode=module.padding_mode, **more,
        )

    def _key(self) -> Any:
        return self._like.dtype

    def _weights(self) -> torch.Tensor:
        return self._weight.to(self._like.dtype)

    def forward(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        if x.dtype != self._like.dtype:
            raise ValueError(f"x is {x.dtype}, the weights are {self._like.dtype}; convert one of them")
        return self._run(x, residual)


class BitConv2d(_Conv2d):
    """A convolution with ternary weights, on images that are quantised to int8, one scale an image; products are exact.

    `weight` is int8 `[out, in / groups, rows, columns]` of -1, 0 and 1, times `scale`. The rest as `Conv2d`; the output has the
    dtype of the input, whichever of the three floats that is.
    """

    _STATE = ("weight", "bias", "scale")

    def __init__(
        self, weight: torch.Tensor, scale: float, bias: Optional[torch.Tensor] = None, *, stride: Pair = 1,
        padding: Union[str, Pair] = 0, dilation: Pair = 1, groups: int = 1, padding_mode: str = "zeros",
        activation: Optional[str] = None,
    ) -> None:
        if weight.dtype != torch.int8:
            raise ValueError(f"weight must be int8, not {weight.dtype}")
        super().__init__(weight, bias, stride, padding, dilation, groups, padding_mode, activation, "exact", scale)
        self._try()

    def forward(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        if x.dtype not in FLOATS:
            raise ValueError(f"x must be float32, float16 or bfloat16, not {x.dtype}")
        return self._run(x, residual)


def _stays(module: torch.nn.Conv2d) -> Optional[str]:
    if module.padding_mode not in PAD_MODES:
        return f"padding_mode {module.padding_mode!r} is not supported"
    if module.weight.dtype not in FLOATS or module.weight.dtype not in DTYPES:
        return f"weights of {module.weight.dtype} are not supported"
    return None


def replace_conv2d(model: torch.nn.Module, *, math: str = "exact", skip: Sequence[str] = ()) -> Replaced:
    """Puts a `Conv2d` in the place of each `nn.Conv2d` of `model`, with the same weights.

    Returns the names of those that were replaced, and of the others why they stay. Modules whose name ends with an entry of
    `skip` stay. Batch norms and activations are PyTorch's until `fuse` makes them a part of the convolutions.
    """
    named("math", MATH, math)
    return replace(
        model, of_type(torch.nn.Conv2d), tuple(skip), lambda module: _stays(module) or Conv2d.of(module, math=math)
    )


def replace_bit_conv2d(model: torch.nn.Module, ternarise: bool = False, skip: Sequence[str] = ()) -> Replaced:
    """Puts a `BitConv2d` in the place of each `nn.Conv2d` whose weights are ternary already, or of every one, rounded as
    `replace_linear` rounds."""
    from .torch import ternaries

    def make(module: torch.nn.Conv2d) -> Any:
        found = None if _stays(module) else ternaries(weight_of(module), ternarise)
        if found is None:
            return _stays(module) or "its weights are not ternary; try ternarise=True"
        weight, scale = found
        return BitConv2d(
            weight, scale, module.bias, stride=module.stride, padding=module.padding, dilation=module.dilation,
            groups=module.groups, padding_mode=module.padding_mode,
        )

    return replace(model, of_type(torch.nn.Conv2d), tuple(skip), make)
