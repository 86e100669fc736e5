"""Linear layers by table lookup (T-MAC) inside a PyTorch model."""

import ctypes
from typing import Optional

import torch

from . import _library
from ._conv2d import ACTIVATIONS
from ._rows import is_float
from ._tensor import Layer, LutOptions, PackedModule, described, host_bias, linear, named, on_host

FORMS = {"tl1": 0, "tl2": 1, "bits": 2}


class LutLinear(PackedModule):
    """`y = act(x w^T + bias + residual)` by T-MAC's table lookup.

    `form="tl1"` (2 bits a weight) and `"tl2"` (1.67): int8 weights of -1, 0 and 1 times `scale`, rows of x quantised to int8, the
    bits of `BitLinear`. `form="bits"`: int8 codes u from 0 to `2^bits - 1`, `scales` `[out, ceil(in / group)]`
    and `zeros` like it; a weight is `(u - 2^(bits - 1)) scale - zero`. It is lossy as published, in its int8 tables, and
    computes in float32. Lookup is for CPUs; on a GPU `BitLinear` is faster. `activation` as in `Conv2d`.
    """

    _STATE = ("weight", "scales", "zeros", "bias", "scale")

    def __init__(
        self, weight: torch.Tensor, bias: Optional[torch.Tensor] = None, *, form: str = "tl1", scale: float = 1.0,
        scales: Optional[torch.Tensor] = None, zeros: Optional[torch.Tensor] = None, bits: int = 2, group: int = 0,
        activation: Optional[str] = None,
    ) -> None:
        super().__init__()
        numbers = named("form", FORMS, form), named("activation", ACTIVATIONS, activation)
        if not 1 <= bits <= 4 or group < 0:
            raise ValueError(f"bits = {bits} must be 1 to 4, and group = {group} 0 or more")
        self._options = LutOptions(ctypes.sizeof(LutOptions), *numbers, bits, group)
        if weight.dim() != 2 or weight.dtype != torch.int8:
            raise ValueError(f"weight must be int8 [out, in], not {weight.dtype} {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias, self._scale = on_host(weight).clone(), host_bias(bias), float(scale)
        self._scales, self._zeros = host_bias(scales), host_bias(zeros)
        self.form, self.activation, self.bits, self.group = form, activation, bits, group
        self._try()

    def extra_repr(self) -> str:
        of = f"bits={self.bits}, group={self.group}, " if self.form == "bits" else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}, "
            f"form={self.form!r}, {of}activation={self.activation!r}"
        )

    def _make(self, device: torch.device) -> Layer:
        options = LutOptions.from_buffer_copy(self._options)
        options.scale = self._scale
        tensors = (self._weight, self._scales, self._zeros, self._bias)
        return Layer(device, _library.bitnet_lut_linear_new, *(None if t is None else described(t) for t in tensors), options)

    def forward(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        is_float(x)
        if self.form != "bits" or x.dtype == torch.float32:
            return linear(self, x, residual)
        return linear(self, x.float(), None if residual is None else residual.float()).to(x.dtype)
