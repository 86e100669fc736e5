"""Softmax and norms of PyTorch tensors."""

import ctypes
from typing import Any, Optional, Sequence, Tuple

import torch

from . import _library
from ._tensor import (
    FLOATS, Layer, PackedModule, Replaced, SoftmaxOptions, aligned, described, kept, on_host, refuse_gradient, replace, same_kind,
)


def is_float(x: torch.Tensor) -> None:
    """Refuses other dtypes than those of the float families."""
    if x.dtype not in FLOATS:
        raise ValueError(f"x must be float32, float16 or bfloat16, not {x.dtype}")


def _added(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A mask as the library adds it: of x's dtype, with the last sizes of x or all of them."""
    if mask.device != x.device or mask.dtype not in (torch.bool, x.dtype):
        raise ValueError(f"mask must be bool or {x.dtype} on {x.device}; it is {mask.dtype} on {mask.device}")
    mask = mask.detach()
    if mask.dtype == torch.bool:
        # As in PyTorch's attention: True takes part.
        mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill_(~mask, -torch.inf)
    last = mask.shape
    while last and last[0] == 1:
        last = last[1:]
    if last and x.shape[x.dim() - len(last):] == last:
        return mask.reshape(last).contiguous()
    try:
        return mask.expand(x.shape).contiguous()
    except RuntimeError:
        raise ValueError(f"a mask {list(mask.shape)} does not go with {list(x.shape)}") from None


def _softmax(
    x: torch.Tensor, dim: int, mask: Optional[torch.Tensor], causal: bool, scale: float, log: bool
) -> torch.Tensor:
    is_float(x)
    refuse_gradient("softmax", x, mask)
    if x.dim() == 0 or not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim = {dim} of a tensor of {x.dim()} dimensions")
    x = x.detach()
    if dim % x.dim() != x.dim() - 1:
        if mask is not None or causal:
            raise ValueError(f"mask and causal go with the last dimension, not with dim = {dim}")
        return _softmax(x.movedim(dim, -1), -1, None, False, scale, log).movedim(-1, dim)
    k = x.shape[-1]
    if causal and (mask is not None or x.dim() < 2 or x.shape[-2] > k):
        raise ValueError("causal goes without a mask, for [..., queries, keys] with as many keys as queries, or more")
    options = SoftmaxOptions(ctypes.sizeof(SoftmaxOptions), scale, log, causal)
    layer = kept(x.device, ("softmax", options.scale, log, causal), _library.bitnet_softmax_new, options)
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    added = None if mask is None else aligned(_added(mask, x).view(-1, k))
    last = x.shape[-2:] if causal else (k,) if added is None else added.shape
    return layer(x.contiguous().view(-1, *last), added).view(x.shape)


def softmax(
    x: torch.Tensor, dim: int = -1, *, mask: Optional[torch.Tensor] = None, causal: bool = False, scale: float = 1.0
) -> torch.Tensor:
    """`softmax(x * scale + mask)` along `dim`, in float32, rounded once to the dtype of x: the same bits on every device.

    `mask` is added, or is bool (False takes no part), and is expanded to x. `causal`: x is `[..., queries, keys]`, and a query sees
    the keys up to its own; the last query sees all. A row in which nothing takes part gives zeros, not NaN.
    """
    return _softmax(x, dim, mask, causal, scale, False)


def log_softmax(
    x: torch.Tensor, dim: int = -1, *, mask: Optional[torch.Tensor] = None, causal: bool = False, scale: float = 1.0
) -> torch.Tensor:
    """The logarithm of `softmax`; minus infinity where that is 0."""
    return _softmax(x, dim, mask, causal, scale, True)


class _Norm(PackedModule):
    """What both norms are."""

    _STATE: Tuple[str, ...] = ("weight",)

    def __init__(self, shape: Sequence[int], eps: Optional[float], dtype: torch.dtype) -> None:
        super().__init__()
        if dtype not in FLOATS:
            raise ValueError(f"weight must be float32, float16 or bfloat16, not {dtype}")
        self.normalized_shape, self.eps = tuple(shape), eps
        # Follows `.to` and its like; the weights are on the host.
        self._like: torch.Tensor
        self.register_buffer("_like", torch.empty(0, dtype=dtype), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"

    def _key(self) -> Any:
        return self._like.dtype

    def _host(self, weight: Optional[torch.Tensor]) -> Optional[Any]:
        return None if weight is None else described(weight.to(self._like.dtype).view(-1))

    def forward(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        if x.dtype != self._like.dtype:
            raise ValueError(f"x is {x.dtype}, the weights are {self._like.dtype}; convert one of them")
        shape = self.normalized_shape
        if x.shape[x.dim() - len(shape):] != shape:
            raise ValueError(f"the last sides of x must be {list(shape)}; x is {list(x.shape)}")
        refuse_gradient(f"a {type(self).__name__}", x, residual)
        k = 1
        for side in shape:
            k *= side
        if x.numel() == 0:
            return torch.empty_like(x, memory_format=torch.contiguous_format)
        rows, layer = x.detach().contiguous().view(-1, k), self._layer(x.device)
        if residual is None:
            return layer(rows).view(x.shape)
        # The library adds in place.
        total = same_kind("residual", residual, x, x.shape)
        held = aligned(total.contiguous())
        y = layer(rows, held.view(-1, k)).view(x.shape)
        if held.data_ptr() != total.data_ptr():
            total.copy_(held)
        return y


class RMSNorm(_Norm):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in float32, rounded once: the same bits on every device.

    With `residual` that becomes its sum with x first, in place, and the sum is normed. `eps` None: that of x's dtype, as in PyTorch.
    """

    def __init__(self, weight: torch.Tensor, eps: Optional[float] = None) -> None:
        super().__init__(weight.shape, eps, weight.dtype)
        if weight.dim() == 0:
            raise ValueError("weight must have a dimension")
        self._weight = on_host(weight).clone()
        self._try()

    @classmethod
    def of(cls, module: Any) -> "RMSNorm":
        """The same as `torch.nn.RMSNorm`, or a module like it with `weight` and `eps` or `variance_epsilon`."""
        weight = module.weight
        if weight is None:
            weight = torch.ones(module.normalized_shape)
        return cls(weight, getattr(module, "variance_epsilon", None) or module.eps)

    def _make(self, device: torch.device) -> Layer:
        eps = torch.finfo(self._like.dtype).eps if self.eps is None else self.eps
        return Layer(device, _library.bitnet_rmsnorm_new, self._host(self._weight), eps)


class LayerNorm(_Norm):
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimensions, in float32, rounded once: the same bits on every
    device. `residual` as in `RMSNorm`."""

    _STATE = ("weight", "bias")

    def __init__(
        self, normalized_shape: Sequence[int], weight: Optional[torch.Tensor] = None, bias: Optional[torch.Tensor] = None,
        eps: float = 1e-5, dtype: torch.dtype = torch.float32,
    ) -> None:
        first = weight if weight is not None else bias
        super().__init__(normalized_shape, eps, dtype if first is None else first.dtype)
        for what, given in (("weight", weight), ("bias", bias)):
            if given is not None and (tuple(given.shape) != self.normalized_shape or given.dtype != self._like.dtype):
                raise ValueError(
                    f"{what} must be {self._like.dtype} {list(self.normalized_shape)}, not {given.dtype} {list(given.shape)}"
                )
        self._weight = None if weight is None else on_host(weight).clone()
        self._bias = None if bias is None else on_host(bias).clone()
        self._try()

    @classmethod
    def of(cls, module: torch.nn.LayerNorm) -> "LayerNorm":
        """The same as a module of PyTorch."""
        return cls(module.normalized_shape, module.weight, getattr(module, "bias", None), module.eps)

    def _make(self, device: torch.device) -> Layer:
        return Layer(device, _library.bitnet_layernorm_new, self._host(self._weight), self._host(self._bias), self.eps)


def _is_norm(module: torch.nn.Module) -> bool:
    # Of every model of `transformers` its own.
    like = type(module).__name__.endswith("RMSNorm") and not isinstance(module, _Norm)
    return type(module) is torch.nn.LayerNorm or like


def replace_norm(model: torch.nn.Module, *, skip: Sequence[str] = ()) -> Replaced:
    """Puts a `LayerNorm` or `RMSNorm` in the place of each of `model`: `nn.LayerNorm`, `nn.RMSNorm` and classes whose name ends with
    `RMSNorm`, if they norm as that does, which is tried.

    Returns the names of those that were replaced, and of the others why they stay. Modules whose name ends with an entry of
    `skip` stay.
    """

    def make(module: Any) -> Any:
        if type(module) is torch.nn.LayerNorm:
            dtype = module.weight.dtype if module.weight is not None else torch.float32
            return LayerNorm.of(module) if dtype in FLOATS else f"weights of {dtype} are not supported"
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if type(module) is not getattr(torch.nn, "RMSNorm", None) and (not isinstance(weight, torch.Tensor) or eps is None):
            return "it has no weight and eps"
        if weight is not None and weight.dtype not in FLOATS:
            return f"weights of {weight.dtype} are not supported"
        new = RMSNorm.of(module)
        device = None if weight is None else weight.device
        x = torch.linspace(-3, 2, 2 * new._weight.numel(), dtype=new._weight.dtype, device=device).view(2, *new._weight.shape)
        try:
            with torch.no_grad():
                near = torch.allclose(module(x).float(), new(x).float(), rtol=2**-6, atol=1e-3)
        except Exception as error:
            return f"it could not be tried: {error}"
        return new if near else "it norms in another way than weight * x / sqrt(mean(x^2) + eps)"

    return replace(model, _is_norm, tuple(skip), make)
