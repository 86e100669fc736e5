"""PyTorch tensors as the library takes them, the library's devices, and layers that it packed."""

import ctypes
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _library, check, describe

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3, torch.int32: 4}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
MATH = {"exact": 0, "tensor_core": 1}

_TORCH_DTYPES = {number: dtype for dtype, number in DTYPES.items()}
_ALIGN = 256
_PLANS_MOST = 256


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]


class ConvOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("stride", ctypes.c_size_t * 2),
        ("padding", ctypes.c_size_t * 4),
        ("dilation", ctypes.c_size_t * 2),
        ("groups", ctypes.c_size_t),
        ("same", ctypes.c_int32),
        ("pad_mode", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("math", ctypes.c_int32),
        ("scale", ctypes.c_float),
    ]


class SparseOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("format", ctypes.c_int32),
        ("math", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("scale", ctypes.c_float),
    ]


class LutOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("form", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("bits", ctypes.c_size_t),
        ("group", ctypes.c_size_t),
        ("scale", ctypes.c_float),
    ]


class SoftmaxOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("scale", ctypes.c_float),
        ("log", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    ]


class ElementwiseOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("multiply", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("relu", ctypes.c_int32),
    ]


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("kernel", ctypes.c_size_t * 2),
        ("stride", ctypes.c_size_t * 2),
        ("padding", ctypes.c_size_t * 2),
        ("dilation", ctypes.c_size_t * 2),
        ("average", ctypes.c_int32),
        ("count_include_pad", ctypes.c_int32),
        ("ceil_mode", ctypes.c_int32),
    ]


class BmmOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("math", ctypes.c_int32),
    ]


def _declare() -> None:
    handle, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
    tensor, conv, sparse, bmm = (ctypes.POINTER(of) for of in (Tensor, ConvOptions, SparseOptions, BmmOptions))
    lut, softmax, elementwise, pool = (
        ctypes.POINTER(of) for of in (LutOptions, SoftmaxOptions, ElementwiseOptions, PoolOptions)
    )
    out = ctypes.POINTER(handle)
    functions = {
        "bitnet_layer_plan": [handle, tensor, tensor, tensor, ctypes.POINTER(size)],
        "bitnet_layer_forward": [handle, tensor, tensor, tensor, handle, size, handle],
        "bitnet_conv2d_options_default": [conv],
        "bitnet_conv2d_new": [handle, tensor, tensor, conv, out],
        "bitnet_sparse_linear_new": [handle, tensor, tensor, sparse, out],
        "bitnet_sparse_conv2d_new": [handle, tensor, tensor, conv, out],
        "bitnet_lut_linear_new": [handle, tensor, tensor, tensor, tensor, lut, out],
        "bitnet_softmax_new": [handle, softmax, out],
        "bitnet_rmsnorm_new": [handle, tensor, ctypes.c_float, out],
        "bitnet_layernorm_new": [handle, tensor, tensor, ctypes.c_float, out],
        "bitnet_activation_new": [handle, number, number, out],
        "bitnet_elementwise_new": [handle, elementwise, out],
        "bitnet_pool2d_options_default": [pool],
        "bitnet_pool2d_new": [handle, pool, out],
        "bitnet_prune": [tensor, ctypes.c_double, ctypes.POINTER(size)],
        "bitnet_sparse_pays_off": [size, size, size, ctypes.c_double, number, ctypes.POINTER(number)],
        "bitnet_bmm_workspace": [handle, tensor, tensor, tensor, bmm, ctypes.POINTER(size)],
        "bitnet_bmm": [handle, tensor, tensor, tensor, bmm, handle, size, handle],
    }
    for function, arguments in functions.items():
        getattr(_library, function).argtypes = arguments
        getattr(_library, function).restype = ctypes.c_int
    _library.bitnet_layer_free.argtypes = [handle]
    _library.bitnet_layer_free.restype = None


_declare()


def described(tensor: torch.Tensor) -> Tensor:
    """The library's description of a tensor of at most four dimensions."""
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{tensor.dtype} is not supported; use one of {', '.join(map(str, DTYPES))}")
    if not 1 <= tensor.dim() <= 4:
        raise ValueError(f"a tensor of {tensor.dim()} dimensions; 1 to 4 are allowed")
    return Tensor(
        ctypes.sizeof(Tensor), tensor.data_ptr(), DTYPES[tensor.dtype], tensor.dim(),
        tuple(tensor.shape), tensor.stride(),
    )


def named(what: str, table: Dict[Any, int], found: Any) -> int:
    """The number of a name."""
    if found not in table:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, table))}, not {found!r}")
    return table[found]


def refuse_gradient(what: str, *tensors: Optional[torch.Tensor]) -> None:
    """Layers and products of the library are for inference."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(f"{what} has no gradient; use torch.no_grad(), or detach the input")


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous in host memory, with the data of now."""
    return tensor.detach().to("cpu").contiguous()


class Backend:
    """A device of the library, opened once for each device of PyTorch and kept."""

    def __init__(self, name: str) -> None:
        self.handle = ctypes.c_void_p()
        check(_library.bitnet_backend_open(name.encode(), ctypes.byref(self.handle)))
        self.text = describe(_library.bitnet_backend_describe, self.handle)
        self.sizes: Dict[Any, int] = {}


_backends: Dict[str, Backend] = {}
_lock = threading.Lock()


def backend(device: torch.device) -> Backend:
    """The library's side of a device."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"the library runs on cpu and cuda, not on {device}")
    name = "cpu" if device.type == "cpu" else f"cuda:{device.index}"
    with _lock:
        if name not in _backends:
            _backends[name] = Backend(name)
        return _backends[name]


def on(device: torch.device, function: Any, *arguments: Any) -> None:
    """Calls a function that makes its device the current one; afterwards PyTorch's is the current one again."""
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return check(function(*arguments))
    with torch.cuda.device(device):
        check(function(*arguments))


def call(device: torch.device, workspace_bytes: int, function: Any, *arguments: Any) -> None:
    """Calls a function that ends with workspace, its bytes and a stream: of PyTorch's allocator and its current stream."""
    if device.type == "cpu":
        return check(function(*arguments, None, 0, None))
    # PyTorch's allocator knows which stream and which graph it belongs to.
    room = torch.empty(workspace_bytes, dtype=torch.uint8, device=device) if workspace_bytes else None
    stream = torch.cuda.current_stream(device).cuda_stream
    on(device, function, *arguments, None if room is None else room.data_ptr(), workspace_bytes, stream)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it is a part of another one that starts anywhere."""
    if tensor.device.type != "cpu" and tensor.data_ptr() % _ALIGN:
        return tensor.clone()
    return tensor


class Plan(NamedTuple):
    x: Tensor
    residual: Optional[Tensor]
    y: Tensor
    sizes: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: torch.dtype
    workspace_bytes: int


def _placed(shape: Optional[Tensor], tensor: Optional[torch.Tensor]) -> Optional[Tensor]:
    if shape is None or tensor is None:
        return None
    copy = Tensor.from_buffer_copy(shape)
    copy.data = tensor.data_ptr()
    return copy


class Layer:
    """A layer that the library packed, on one device."""

    def __init__(self, device: torch.device, make: Any, *arguments: Any) -> None:
        self.handle = ctypes.c_void_p()
        self.plans: Dict[Any, Plan] = {}
        check(make(backend(device).handle, *arguments, ctypes.byref(self.handle)))

    def __del__(self) -> None:
        # At the end of the program the module may be gone before the layer.
        if self.handle and _library is not None:
            _library.bitnet_layer_free(self.handle)

    def _plan(self, x: torch.Tensor, residual: Optional[torch.Tensor]) -> Plan:
        shapes = described(x), None if residual is None else described(residual)
        y, size = Tensor(struct_bytes=ctypes.sizeof(Tensor)), ctypes.c_size_t()
        on(x.device, _library.bitnet_layer_plan, self.handle, *shapes, ctypes.byref(y), ctypes.byref(size))
        sizes, strides = tuple(y.sizes[: y.dims]), tuple(y.strides[: y.dims])
        return Plan(*shapes, y, sizes, strides, _TORCH_DTYPES[y.dtype], size.value)

    def __call__(self, x: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:
        x = aligned(x)
        key: Tuple[Any, ...] = (x.shape, x.stride(), x.dtype)
        if residual is not None:
            residual = aligned(residual)
            key += (residual.shape, residual.stride(), residual.dtype)
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= _PLANS_MOST:
                self.plans.clear()
            plan = self.plans[key] = self._plan(x, residual)
        y = torch.empty_strided(plan.sizes, plan.strides, dtype=plan.dtype, device=x.device)
        call(
            x.device, plan.workspace_bytes, _library.bitnet_layer_forward,
            self.handle, _placed(plan.x, x), _placed(plan.residual, residual), _placed(plan.y, y),
        )
        return y


_KEPT_MOST = 256
_kept: Dict[Any, Layer] = {}


def kept(device: torch.device, key: Tuple[Any, ...], make: Any, *arguments: Any) -> Layer:
    """A layer without weights: made once for a device and a key, which stands for the arguments."""
    key = (str(device), *key)
    layer = _kept.get(key)
    if layer is None:
        if len(_kept) >= _KEPT_MOST:
            _kept.clear()
        layer = _kept[key] = Layer(device, make, *arguments)
    return layer


class PackedModule(torch.nn.Module):
    """A module whose weights are in host memory, and packed on the device of an input when one comes.

    Subclasses name in `_STATE` the attributes that a state_dict holds, and make a `Layer` in `_make`.
    """

    _STATE: Tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._packed: Dict[Any, Layer] = {}

    def _make(self, device: torch.device) -> Layer:
        raise NotImplementedError

    def _key(self) -> Any:
        return None

    def get_extra_state(self) -> Dict[str, Any]:
        return {name: getattr(self, "_" + name) for name in self._STATE}

    def set_extra_state(self, state: Dict[str, Any]) -> None:
        for name in self._STATE:
            old, new = getattr(self, "_" + name), state[name]
            if isinstance(old, torch.Tensor) != isinstance(new, torch.Tensor):
                raise ValueError(f"{name}: {type(new).__name__} for a layer {self.extra_repr()}")
            if isinstance(old, torch.Tensor):
                if old.shape != new.shape:
                    raise ValueError(f"{name}: {list(new.shape)} for a layer {self.extra_repr()}")
                new = on_host(new).to(old.dtype)
            setattr(self, "_" + name, new)
        self._packed.clear()

    def __getstate__(self) -> Dict[str, Any]:
        # Handles are of this process: a copy and a pickle pack anew.
        return {**self.__dict__, "_packed": {}}

    def _layer(self, device: torch.device) -> Layer:
        key = (str(device), self._key())
        layer = self._packed.get(key)
        if layer is None:
            layer = self._packed[key] = self._make(device)
        return layer

    def _try(self) -> None:
        """Refuses what cannot be packed now, not at the first input."""
        self._layer(torch.device("cpu"))
        self._packed.clear()


def host_bias(bias: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """A bias as layers take it: float32 in host memory, of its own."""
    return None if bias is None else on_host(bias).to(torch.float32).clone()


def same_kind(what: str, other: torch.Tensor, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """`other` without its gradient, which has `shape`, and the dtype and device of `x`."""
    if tuple(other.shape) != tuple(shape) or other.dtype != x.dtype or other.device != x.device:
        raise ValueError(
            f"{what} must be {x.dtype} {list(shape)} on {x.device}; it is {other.dtype} {list(other.shape)} on {other.device}"
        )
    return other.detach()


def linear(module: Any, x: torch.Tensor, residual: Optional[torch.Tensor]) -> torch.Tensor:
    """Rows of any shape through the layer of a module with `in_features` and `out_features`."""
    k, n = module.in_features, module.out_features
    if x.shape[-1:] != (k,):
        raise ValueError(f"the last side of x must be {k}; x is {list(x.shape)}")
    refuse_gradient(f"a {type(module).__name__}", x, residual)
    shape = (*x.shape[:-1], n)
    if residual is not None:
        residual = same_kind("residual", residual, x, shape).reshape(-1, n).contiguous()
    return module._layer(x.device)(x.detach().reshape(-1, k).contiguous(), residual).view(shape)


class Replaced(NamedTuple):
    """What was put in the place of modules: their names, and of the others why they stay."""

    replaced: list
    left: Dict[str, str]


def replace(
    model: torch.nn.Module, takes: Callable[[torch.nn.Module], bool], skip: Tuple[str, ...], make: Any
) -> Replaced:
    """Puts `make(module)` in the place of each module that `takes` is true of; a `str` from it says why the module stays."""
    done, made = Replaced([], {}), {}
    # A layer that stands in two places stays one layer.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not takes(module):
            continue
        if not name:
            raise ValueError("the model is itself such a layer; put it into a torch.nn.Sequential")
        if skip and name.endswith(tuple(skip)):
            done.left[name] = "its name is in `skip`"
            continue
        if module not in made:
            new = make(module)
            made[module] = new if isinstance(new, str) else new.train(module.training)
        if isinstance(made[module], str):
            done.left[name] = made[module]
            continue
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, made[module])
        done.replaced.append(name)
    return done


def of_type(*kinds: type) -> Callable[[torch.nn.Module], bool]:
    """Whether a module is of one of these types, and of no type made from them."""
    return lambda module: type(module) in kinds


def weight_of(module: torch.nn.Module) -> torch.Tensor:
    """A module's weight, as `torch.nn.utils.prune` leaves it too."""
    original, mask = (getattr(module, name, None) for name in ("weight_orig", "weight_mask"))
    weight: torch.Tensor = getattr(module, "weight") if original is None or mask is None else original * mask
    return weight.detach()
