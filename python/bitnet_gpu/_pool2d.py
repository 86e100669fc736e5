"""Pooling inside a PyTorch model."""

import ctypes
from typing import Any, Optional, Sequence

import torch

from . import _library, check
from ._conv2d import Pair, images, pair
from ._rows import is_float
from ._tensor import Layer, PoolOptions, Replaced, kept, of_type, refuse_gradient, replace


class _Pool2d(torch.nn.Module):
    """What all of them are."""

    def __init__(self, words: str, **fields: Any) -> None:
        super().__init__()
        self._words, self._options = words, PoolOptions()
        check(_library.bitnet_pool2d_options_default(ctypes.byref(self._options)))
        for name, value in fields.items():
            setattr(self._options, name, type(getattr(self._options, name))(*value) if isinstance(value, tuple) else value)
        self._layer(torch.device("cpu"))

    def extra_repr(self) -> str:
        return self._words

    def _layer(self, device: torch.device) -> Layer:
        return kept(device, ("pool2d", bytes(self._options)), _library.bitnet_pool2d_new, self._options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_float(x)
        refuse_gradient(f"a {type(self).__name__}", x)
        x, single = images(x, x.shape[-3] if x.dim() in (3, 4) else 0)
        y = self._layer(x.device)(x)
        return y.squeeze(0) if single else y


def _windows(kernel_size: Pair, stride: Optional[Pair], padding: Pair) -> dict:
    kernel = pair("kernel_size", kernel_size, 1)
    steps = kernel if stride is None else pair("stride", stride, 1)
    return {"kernel": kernel, "stride": steps, "padding": pair("padding", padding, 0)}


class MaxPool2d(_Pool2d):
    """`torch.nn.MaxPool2d`: the maximum of each window, NaN where a tap is NaN. The output lies as the input does."""

    def __init__(
        self, kernel_size: Pair, stride: Optional[Pair] = None, padding: Pair = 0, dilation: Pair = 1, ceil_mode: bool = False
    ) -> None:
        fields = {**_windows(kernel_size, stride, padding), "dilation": pair("dilation", dilation, 1), "ceil_mode": bool(ceil_mode)}
        super().__init__(", ".join(f"{name}={value}" for name, value in fields.items()), **fields)


class AvgPool2d(_Pool2d):
    """`torch.nn.AvgPool2d`, without `divisor_override`: sums in float32, the same bits on every device."""

    def __init__(
        self, kernel_size: Pair, stride: Optional[Pair] = None, padding: Pair = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        fields = {**_windows(kernel_size, stride, padding), "ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
        super().__init__(", ".join(f"{name}={value}" for name, value in fields.items()), average=1, **fields)


class GlobalPool2d(_Pool2d):
    """One window, the whole image: the average, or the maximum with `average=False`."""

    def __init__(self, average: bool = True) -> None:
        super().__init__(f"average={average}", average=bool(average))


_KINDS = (torch.nn.MaxPool2d, torch.nn.AvgPool2d, torch.nn.AdaptiveAvgPool2d, torch.nn.AdaptiveMaxPool2d)


def replace_pool2d(model: torch.nn.Module, *, skip: Sequence[str] = ()) -> Replaced:
    """Puts the library's pooling in the place of each `nn.MaxPool2d`, `nn.AvgPool2d`, and adaptive one of one output, of `model`.

    Returns the names of those that were replaced, and of the others why they stay. Modules whose name ends with an entry of
    `skip` stay.
    """

    def make(module: Any) -> Any:
        if getattr(module, "return_indices", False):
            return "it returns indices"
        if getattr(module, "divisor_override", None) is not None:
            return "it has a divisor_override"
        if isinstance(module, torch.nn.MaxPool2d):
            return MaxPool2d(module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
        if isinstance(module, torch.nn.AvgPool2d):
            return AvgPool2d(module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad)
        if module.output_size not in (1, (1, 1), [1, 1]):
            return f"an adaptive pooling to {module.output_size} has no kernel"
        return GlobalPool2d(isinstance(module, torch.nn.AdaptiveAvgPool2d))

    return replace(model, of_type(*_KINDS), tuple(skip), make)
