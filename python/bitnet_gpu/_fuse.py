"""What stands behind a convolution, as a part of it."""

import copy
import operator
from typing import Any, Dict, Optional

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ._conv2d import BitConv2d, Conv2d
from ._sparse import SparseConv2d
from ._tensor import PackedModule

_CONVOLUTIONS = (Conv2d, BitConv2d, SparseConv2d)
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_ACTIVATIONS: Dict[Any, str] = {
    nn.ReLU: "relu", torch.relu: "relu", torch.relu_: "relu", nn.functional.relu: "relu", "relu": "relu", "relu_": "relu",
    nn.SiLU: "silu", nn.functional.silu: "silu",
}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        library = isinstance(m, PackedModule) or type(m).__module__.startswith("bitnet_gpu.")
        return library or super().is_leaf_module(m, module_qualified_name)


class _Fusion:
    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced, self.modules = traced, dict(traced.named_modules(remove_duplicate=False))

    def module(self, node: Any) -> Optional[nn.Module]:
        return self.modules[node.target] if isinstance(node, fx.Node) and node.op == "call_module" else None

    def convolution(self, node: Any) -> Optional[Any]:
        """The convolution of a node that nobody but the next node sees, and that has no activation yet."""
        module: Any = self.module(node)
        if type(module) not in _CONVOLUTIONS or len(node.users) != 1 or module._options[6] is not None:
            return None
        calls = [n for n in self.traced.graph.nodes if self.module(n) is module]
        return module if len(calls) == 1 else None

    def put(self, node: Any, module: nn.Module) -> None:
        parent, _, leaf = node.target.rpartition(".")
        setattr(self.traced.get_submodule(parent), leaf, module)
        self.modules[node.target] = module

    def drop(self, node: fx.Node, instead: fx.Node) -> None:
        node.replace_all_uses_with(instead)
        instead.meta = dict(node.meta)
        self.traced.graph.erase_node(node)

    def norm(self, node: fx.Node) -> bool:
        norm: Any = self.module(node)
        if type(norm) is not nn.BatchNorm2d or norm.training or norm.running_mean is None:
            return False
        before: Any = node.args[0]
        module: Any = self.convolution(before)
        # Not behind a sum, and ternaries stay ternaries.
        if type(module) not in (Conv2d, SparseConv2d) or len(before.args) + len(before.kwargs) != 1:
            return False
        state: Any = [None if t is None else t.detach().cpu().double() for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)]
        mean, variance, gamma, beta = state
        dtype = module._weight.dtype
        bias = None if module._bias is None else module._bias.double()
        folded = fuse_conv_bn_weights(module._weight.double(), bias, mean, variance, norm.eps, gamma, beta)
        new = copy.deepcopy(module)
        new._weight, new._bias = folded[0].detach().to(dtype), folded[1].detach().float()
        self.put(before, new)
        self.drop(node, before)
        return True

    def add(self, node: fx.Node) -> bool:
        if node.target not in _ADDS or len(node.args) != 2 or node.kwargs:
            return False
        pairs: Any = (node.args, node.args[::-1])
        for before, other in pairs:
            module = self.convolution(before)
            if module is None or not isinstance(other, fx.Node) or len(before.args) + len(before.kwargs) != 1:
                continue
            shapes = [n.meta.get("tensor_meta") for n in (before, other)]
            if None in shapes or any(getattr(shapes[0], of) != getattr(shapes[1], of) for of in ("shape", "dtype")):
                continue
            # Where the sum is: the other one may come behind the convolution.
            with self.traced.graph.inserting_before(node):
                new = self.traced.graph.call_module(before.target, (*before.args, other))
            self.drop(node, new)
            self.traced.graph.erase_node(before)
            return True
        return False

    def activation(self, node: fx.Node) -> bool:
        module = self.module(node)
        name = _ACTIVATIONS.get(node.target if module is None else type(module))
        before: Any = node.args[0] if node.args else None
        found = self.convolution(before)
        if name is None or found is None:
            return False
        new = copy.deepcopy(found)
        new._options = (*new._options[:6], name, *new._options[7:])
        self.put(before, new)
        self.drop(node, before)
        return True


def fuse(model: nn.Module, *inputs: torch.Tensor) -> fx.GraphModule:
    """A model in which batch norms, sums with a residual, ReLU and SiLU behind a convolution of the library (`replace_conv2d`,
    `replace_bit_conv2d`, `replace_sparse`) are a part of it.

    It is traced by `torch.fx`, which follows no branch on values. It is run on `inputs`, of the dtype and device that it is for,
    to see which sums are of equal shapes. The model has to be in `eval()`, and is left as it is.
    """
    if model.training:
        raise ValueError("the model is in training; call model.eval() first")
    model = copy.deepcopy(model)
    traced = fx.GraphModule(model, _Tracer().trace(model))
    with torch.no_grad():
        ShapeProp(traced).propagate(*inputs)
    fusion = _Fusion(traced)
    for node in list(traced.graph.nodes):
        fusion.norm(node) or fusion.add(node) or fusion.activation(node)
    traced.graph.lint()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced
