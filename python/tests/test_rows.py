"""Softmax, norms, elements, pooling and lookups in PyTorch, on the CPU and on every GPU that is here. Skipped without PyTorch."""

import copy
import io
import pickle
import unittest

from test_layers import Case

try:
    import torch
except ImportError:
    torch = None
else:
    from bitnet_gpu.torch import (
        AvgPool2d, BitLinear, Conv2d, GlobalPool2d, LayerNorm, LutLinear, MaxPool2d, RMSNorm, activate, axpby, fuse, gated, log_softmax,
        multiply, replace_conv2d, replace_norm, replace_pool2d, softmax,
    )

    FLOATS = (torch.float32, torch.float16, torch.bfloat16)
    # Of a value of magnitude 1: its own rounding, and that of sums in another order.
    NEAR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

# Shapes that lie in no pieces of 16 bytes, of one element, of rows for one block and for many.
SHAPES = [(1,), (7,), (3, 1), (1, 33), (5, 64), (2, 3, 197), (2, 2, 3, 100), (2, 1, 2, 2, 31), (3, 1025), (2, 30001), (1, 131075)]


class Near(Case):
    def close(self, found, wanted, dtype):
        self.assertEqual((found.dtype, found.shape), (dtype, wanted.shape))
        bound = NEAR[dtype] * (1 + wanted.double().abs())
        wrong = (found.double() - wanted.double()).abs() > bound
        # Infinities have to be equal.
        wrong &= found.double() != wanted.double()
        self.assertFalse(bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()} of {list(wanted.shape)} {dtype}")


@unittest.skipIf(torch is None, "no PyTorch")
class SoftmaxTest(Near):
    def test_it_is_pytorchs_softmax(self):
        for shape in SHAPES:
            for dtype in FLOATS:
                x = (3 * torch.randn(shape)).to(dtype)
                for dim in range(-1, min(len(shape), 3)):
                    self.close(self.everywhere(lambda x: softmax(x, dim), x), torch.softmax(x.double(), dim), dtype)
                found = self.everywhere(lambda x: log_softmax(x, scale=0.5), x)
                self.close(found, torch.log_softmax(0.5 * x.double(), -1), dtype)

    def test_masks(self):
        x = torch.randn(2, 3, 5, 37)
        for mask in (torch.randn(37), torch.randn(1, 37), torch.randn(5, 37), torch.randn(3, 5, 37), torch.randn(2, 3, 5, 37),
                     torch.randn(2, 1, 5, 37), torch.randn(5, 1), torch.randn(1, 1, 1, 1)):
            self.close(self.everywhere(lambda x, m: softmax(x, mask=m, scale=2), x, mask), torch.softmax(2 * x + mask, -1), x.dtype)
            self.assertTrue(torch.equal(softmax(x, mask=mask > 0), softmax(x, mask=torch.where(mask > 0, 0.0, -torch.inf))))
        for q, k in [(1, 1), (5, 37), (64, 64), (3, 200)]:
            x = torch.randn(2, q, k).to(torch.bfloat16)
            seen = torch.ones(q, k, dtype=torch.bool).tril(k - q)
            y = self.everywhere(lambda x: softmax(x, causal=True), x)
            self.assertTrue(torch.equal(y, softmax(x, mask=seen)))
            self.close(y, torch.softmax(x.double().masked_fill(~seen, -torch.inf), -1), x.dtype)

    def test_nothing_infinite_and_not_a_number(self):
        x = torch.full((3, 4), -torch.inf)
        self.assertEqual(softmax(x).tolist(), [[0] * 4] * 3)
        self.assertTrue(bool((log_softmax(x) == -torch.inf).all()))
        x[1, 2] = torch.nan
        y = self.everywhere(lambda x: softmax(x).nan_to_num(7), x)
        self.assertEqual(y.tolist(), [[0] * 4, [7] * 4, [0] * 4])
        for shape in [(0,), (0, 4), (4, 0)]:
            for device in self.devices:
                self.assertEqual(softmax(torch.empty(shape, device=device)).shape, shape)

    def test_refusals(self):
        x = torch.randn(2, 4)
        self.refused(ValueError, [
            lambda: softmax(x.double()), lambda: softmax(torch.tensor(1.0)), lambda: softmax(x, 2), lambda: softmax(x, -3),
            lambda: softmax(x, mask=torch.randn(3)), lambda: softmax(x, mask=torch.randn(4).half()), lambda: softmax(x, 0, mask=x),
            lambda: softmax(x.T, causal=True), lambda: softmax(x[0], causal=True), lambda: softmax(x, causal=True, mask=x),
            lambda: softmax(x, scale=float("nan")), lambda: softmax(x, mask=torch.randn(2, 2, 4)),
        ])
        self.refused(RuntimeError, [lambda: softmax(x.clone().requires_grad_())])

    def test_graphs_and_threads(self):
        self.in_graph(softmax, torch.randn(64, 1000))
        # Rows of several blocks, which tell each other sums by way of the workspace.
        self.in_graph(softmax, torch.randn(3, 500_001))


@unittest.skipIf(torch is None, "no PyTorch")
class NormTest(Near):
    def modules(self, shape, dtype):
        norm = torch.nn.LayerNorm(shape, eps=1e-3).to(dtype)
        rms = torch.nn.RMSNorm(shape, eps=1e-3).to(dtype)
        for parameter in (norm.weight, norm.bias, rms.weight):
            torch.nn.init.normal_(parameter)
        return [(norm, LayerNorm.of(norm)), (rms, RMSNorm.of(rms)), (torch.nn.LayerNorm(shape, elementwise_affine=False, dtype=dtype),) * 2]

    def test_they_are_pytorchs_norms(self):
        for shape in SHAPES:
            for dtype in FLOATS:
                x, residual = torch.randn(2, *shape).to(dtype), torch.randn(2, *shape).to(dtype)
                for module, layer in self.modules(shape[-1:], dtype):
                    if module is layer:
                        layer = LayerNorm(shape[-1:], eps=module.eps, dtype=dtype)
                    wide = copy.deepcopy(module).double()
                    with torch.no_grad():
                        self.close(self.everywhere(layer, x), wide(x.double()), dtype)

                        def added(x, residual):
                            total = residual.clone()
                            y = layer(x, total)
                            self.assertTrue(torch.equal(total, x + residual))
                            return y

                        y = self.everywhere(added, x, residual)
                        self.assertTrue(torch.equal(y, layer(x + residual)))

    def test_a_residual_that_lies_anywhere_becomes_the_sum(self):
        layer = RMSNorm(torch.ones(6))
        x = torch.randn(4, 6)
        for device in self.devices:
            for residual in (torch.zeros(7, 6, device=device)[3:], torch.zeros(6, 4, device=device).T,
                             torch.zeros(4, 8, device=device)[:, 1:7]):
                y = layer(x.to(device), residual)
                self.assertTrue(torch.equal(residual.cpu(), x))
                self.assertTrue(torch.equal(y.cpu(), layer(x)))

    def test_several_last_dimensions(self):
        module = torch.nn.LayerNorm((3, 5))
        torch.nn.init.normal_(module.weight)
        x = torch.randn(2, 7, 3, 5)
        self.close(self.everywhere(LayerNorm.of(module), x), module(x).detach(), x.dtype)
        self.refused(ValueError, [lambda: LayerNorm.of(module)(x[..., :4])])

    def test_state_and_dtype(self):
        layer = LayerNorm((8,), torch.randn(8), torch.randn(8))
        x = torch.randn(3, 8)
        y = layer(x)
        other = LayerNorm((8,), torch.zeros(8), torch.zeros(8))
        other.load_state_dict(layer.state_dict())
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for twin in (other, copy.deepcopy(layer), torch.load(file, weights_only=False)):
            self.assertTrue(torch.equal(twin(x), y))
        self.refused(ValueError, [lambda: RMSNorm(torch.ones(7)).load_state_dict(RMSNorm(torch.ones(8)).state_dict())])
        self.assertEqual(layer.half()(x.half()).dtype, torch.float16)
        self.refused(ValueError, [lambda: layer(x)])

    def test_refusals(self):
        x = torch.randn(3, 8)
        layer = RMSNorm(torch.ones(8))
        self.refused(ValueError, [
            lambda: layer(x.half()), lambda: layer(x[:, :7]), lambda: layer(x, x[:2]), lambda: layer(x, x.half()),
            lambda: RMSNorm(torch.ones(8).double()), lambda: RMSNorm(torch.tensor(1.0)), lambda: RMSNorm(torch.ones(8), -1.0),
            lambda: RMSNorm(torch.ones(8), float("nan")), lambda: LayerNorm((8,), torch.ones(7)),
            lambda: LayerNorm((8,), torch.ones(8), torch.ones(8).half()),
        ])
        self.refused(RuntimeError, [lambda: layer(x.clone().requires_grad_())])
        for device in self.devices:
            self.assertEqual(layer(x[:0].to(device)).shape, (0, 8))

    def test_replace_norm(self):
        class LlamaRMSNorm(torch.nn.Module):
            def __init__(self, offset):
                super().__init__()
                self.weight, self.variance_epsilon, self.offset = torch.nn.Parameter(torch.rand(16)), 1e-6, offset

            def forward(self, x):
                wide = x.float()
                wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
                return (self.weight + self.offset) * wide.to(x.dtype)

        class OddRMSNorm(torch.nn.Module):
            pass

        model = torch.nn.Sequential(
            torch.nn.LayerNorm(16), LlamaRMSNorm(0), LlamaRMSNorm(1), torch.nn.RMSNorm(16), torch.nn.LayerNorm(16), torch.nn.BatchNorm1d(16),
        )
        x = torch.randn(4, 16)
        model.eval()
        with torch.no_grad():
            wanted = model(x)
        model.append(OddRMSNorm())
        done = replace_norm(model, skip=["4"])
        self.assertEqual(done.replaced, ["0", "1", "3"])
        self.assertEqual(sorted(done.left), ["2", "4", "6"])
        self.assertIn("another way", done.left["2"])
        with torch.no_grad():
            torch.testing.assert_close(model[:6](x), wanted, rtol=1e-5, atol=1e-5)

    def test_graphs_and_threads(self):
        self.in_graph(RMSNorm(torch.rand(1000)), torch.randn(64, 1000))
        self.in_graph(LayerNorm((300_001,), torch.rand(300_001)), torch.randn(3, 300_001))


@unittest.skipIf(torch is None, "no PyTorch")
class ElementsTest(Near):
    def test_they_are_pytorchs_functions(self):
        functional = torch.nn.functional
        kinds = {
            "relu": torch.relu, "relu2": lambda x: torch.relu(x) ** 2, "silu": functional.silu, "gelu": functional.gelu,
            "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        }
        for kind, function in kinds.items():
            for shape in SHAPES[:-2]:
                for dtype in FLOATS:
                    x, factor = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
                    self.close(self.everywhere(lambda x: activate(x, kind), x), function(x.double()), dtype)
                    y = self.everywhere(lambda x, f: activate(x, kind, f), x, factor)
                    self.close(y, function(x.double()) * factor.double(), dtype)
                    self.assertTrue(torch.equal(self.everywhere(lambda x: gated(x, kind), torch.cat([x, factor], -1)), y))

    def test_sums_and_products(self):
        for shape, other in [((4,), (4,)), ((3, 5), (5,)), ((3, 5), (3, 1)), ((2, 3, 4, 5), (3, 1, 1)), ((1, 5), (4, 1)), ((6, 7), ()),
                             ((2, 3, 4, 5, 6), (6,)), ((3, 1), (1,))]:
            for dtype in FLOATS:
                x, b = torch.randn(shape).to(dtype), torch.randn(other).to(dtype)
                wide = x.double(), b.double()
                self.close(self.everywhere(axpby, x, b), wide[0] + wide[1], dtype)
                self.close(self.everywhere(multiply, x, b), wide[0] * wide[1], dtype)
                y = self.everywhere(lambda x, b: axpby(x, b, alpha=2, beta=-0.5, relu=True), x, b)
                self.close(y, torch.relu(2 * wide[0] - 0.5 * wide[1]), dtype)
                self.close(self.everywhere(lambda x: axpby(x, alpha=3, beta=0.25), x), 3 * wide[0] + 0.25, dtype)

    def test_images_stay_as_they_lie(self):
        last = torch.channels_last
        x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
        for call in (lambda x, y: axpby(x, y), lambda x, y: multiply(x, y), lambda x, y: activate(x, "silu", y)):
            wanted = call(x, y)
            for other in (y, y.to(memory_format=last)):
                found = self.everywhere(call, x.to(memory_format=last), other)
                self.assertTrue(torch.equal(found, wanted) and found.is_contiguous(memory_format=last))
                self.assertTrue(torch.equal(call(x, other), wanted))
        x = torch.randn(5, 9)
        self.assertTrue(torch.equal(self.everywhere(lambda x: activate(x[:, 1:], "relu"), x), torch.relu(x[:, 1:])))
        self.assertTrue(torch.equal(self.everywhere(lambda x: axpby(x[1:], x[:-1]), x), x[1:] + x[:-1]))

    def test_refusals(self):
        x = torch.randn(2, 4)
        self.refused(ValueError, [
            lambda: activate(x, "tanh"), lambda: activate(x.double(), "relu"), lambda: activate(x, "relu", x[0]), lambda: gated(x[:, :3]),
            lambda: gated(torch.tensor(1.0)), lambda: axpby(x, x.half()), lambda: axpby(x, torch.randn(3)), lambda: multiply(x.int(), x),
            lambda: axpby(x, alpha=float("inf")),
        ])
        self.refused(RuntimeError, [lambda: activate(x.clone().requires_grad_(), "relu"), lambda: axpby(x, x.clone().requires_grad_())])
        for device in self.devices:
            empty = torch.empty(0, 4, device=device)
            self.assertEqual([v.shape for v in (activate(empty, "relu"), gated(empty), axpby(empty, empty))], [(0, 4), (0, 2), (0, 4)])

    def test_graphs_and_threads(self):
        self.in_graph(lambda x: activate(x, "gelu", x), torch.randn(33, 1001))
        self.in_graph(lambda x: axpby(x, x[0], relu=True), torch.randn(33, 1001))


@unittest.skipIf(torch is None, "no PyTorch")
class Pool2dTest(Near):
    def test_it_is_pytorchs_pooling(self):
        nn = torch.nn
        pairs = [(nn.MaxPool2d(*a, **k), MaxPool2d(*a, **k)) for a, k in [
            ((3, 2, 1), {}), ((2,), {}), (((3, 2), (2, 1), (1, 0)), {"dilation": (1, 2)}), ((5, 1, 2), {}), ((3, 2), {"ceil_mode": True}),
        ]]
        pairs += [(nn.AvgPool2d(*a, **k), AvgPool2d(*a, **k)) for a, k in [
            ((3, 2, 1), {}), ((2,), {}), ((3, 1, 1), {"count_include_pad": False}), (((4, 2), 3), {"ceil_mode": True}),
        ]]
        pairs += [(nn.AdaptiveAvgPool2d(1), GlobalPool2d()), (nn.AdaptiveMaxPool2d(1), GlobalPool2d(average=False))]
        for module, layer in pairs:
            for shape in [(1, 1, 7, 7), (2, 8, 12, 9), (3, 5, 7, 31), (1, 64, 14, 14)]:
                for dtype in FLOATS:
                    x = torch.randn(shape).to(dtype)
                    wanted = module(x.double())
                    for form in (torch.contiguous_format, torch.channels_last):
                        y = self.everywhere(layer, x.contiguous(memory_format=form))
                        self.close(y, wanted, dtype)
                        self.assertTrue(y.is_contiguous(memory_format=form))
            self.assertEqual(layer(x[0]).shape, wanted.shape[1:])
            self.assertTrue(torch.equal(pickle.loads(pickle.dumps(copy.deepcopy(layer)))(x), layer(x)))

    def test_replace_pool2d(self):
        nn = torch.nn
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        x = torch.randn(2, 3, 20, 20)
        model.eval()
        with torch.no_grad():
            wanted = model(x)
        left = nn.Sequential(
            nn.MaxPool2d(2, return_indices=True), nn.AvgPool2d(2, divisor_override=3), nn.AdaptiveAvgPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(2),
        )
        done = replace_pool2d(left, skip=["3"])
        self.assertEqual((done.replaced, sorted(done.left)), (["4"], ["0", "1", "2", "3"]))
        self.assertEqual(replace_pool2d(model).replaced, ["2", "4", "5"])
        replace_conv2d(model)
        for device in self.devices:
            whole = fuse(copy.deepcopy(model).to(device), x.to(device))
            self.assertEqual(sum(isinstance(module, Conv2d) for module in whole.modules()), 2)
            with torch.no_grad():
                torch.testing.assert_close(whole(x.to(device)).cpu(), wanted, rtol=1e-4, atol=1e-4)

    def test_refusals(self):
        self.refused(ValueError, [
            lambda: MaxPool2d(0), lambda: MaxPool2d(3, 0), lambda: MaxPool2d(3, 1, -1), lambda: AvgPool2d((1, 2, 3)),
            lambda: MaxPool2d(3, 1, 2)(torch.randn(1, 1, 9, 9)), lambda: MaxPool2d(3)(torch.randn(1, 1, 2, 2)),
            lambda: MaxPool2d(2)(torch.randn(4, 4)), lambda: MaxPool2d(2)(torch.randn(1, 1, 4, 4).double()),
        ])
        self.refused(RuntimeError, [lambda: MaxPool2d(2)(torch.randn(1, 1, 4, 4, requires_grad=True))])

    def test_graphs_and_threads(self):
        self.in_graph(MaxPool2d(3, 2, 1), torch.randn(2, 16, 33, 33))


@unittest.skipIf(torch is None, "no PyTorch")
class LutTest(Near):
    def test_exact_lookup_is_the_ternary_layer(self):
        for n, k in [(1, 1), (16, 70), (33, 130), (64, 2560)]:
            weight = torch.randint(-1, 2, (n, k), dtype=torch.int8)
            bias, x = torch.randn(n), torch.randn(2, 3, k)
            wanted = BitLinear(weight, 0.25, bias)(x)
            for form in ("tl1", "tl2"):
                layer = LutLinear(weight, bias, form=form, scale=0.25)
                self.assertTrue(torch.equal(self.everywhere(layer, x), wanted))
                residual = torch.randn(2, 3, n)
                y = self.everywhere(LutLinear(weight, bias, form=form, scale=0.25, activation="relu"), x, residual)
                torch.testing.assert_close(y, torch.relu(wanted + residual))
                for dtype in FLOATS[1:]:
                    self.close(self.everywhere(layer, x.to(dtype)), layer(x.to(dtype).float()).double(), dtype)

    def test_bits_are_near(self):
        for bits, group, zero in [(1, 0, False), (2, 64, True), (3, 32, True), (4, 128, False)]:
            n, k = 24, 300
            groups = -(-k // (group or k))
            codes = torch.randint(0, 2**bits, (n, k), dtype=torch.int8)
            scales, zeros = torch.rand(n, groups), torch.randn(n, groups) if zero else None
            layer = LutLinear(codes, form="bits", scales=scales, zeros=zeros, bits=bits, group=group)
            x = torch.randn(5, k)
            wide = (codes - 2 ** (bits - 1)) * scales.repeat_interleave(group or k, 1)[:, :k]
            if zeros is not None:
                wide = wide - zeros.repeat_interleave(group or k, 1)[:, :k]
            wanted, y = x @ wide.T, self.everywhere(layer, x)
            # Its int8 tables: about a hundredth of the sum of magnitudes.
            self.assertLess(float(((y - wanted).abs() / (x.abs() @ wide.abs().T)).max()), 0.02)
            twin = LutLinear(torch.zeros_like(codes), form="bits", scales=scales * 0, zeros=zeros, bits=bits, group=group)
            twin.load_state_dict(layer.state_dict())
            self.assertTrue(torch.equal(twin(x), y) and torch.equal(copy.deepcopy(layer)(x), y))
            self.assertEqual(layer(x.half()).dtype, torch.float16)

    def test_refusals(self):
        weight, scales = torch.randint(-1, 2, (4, 64), dtype=torch.int8), torch.rand(4, 1)
        self.refused(ValueError, [
            lambda: LutLinear(weight.float()), lambda: LutLinear(weight[0]), lambda: LutLinear(weight, form="tl3"), lambda: LutLinear(weight * 2),
            lambda: LutLinear(weight, scales=scales), lambda: LutLinear(weight.abs(), form="bits"), lambda: LutLinear(weight, form="bits", scales=scales),
            lambda: LutLinear(weight.abs(), form="bits", scales=scales, bits=5), lambda: LutLinear(weight.abs(), form="bits", scales=scales, group=33),
            lambda: LutLinear(weight, torch.randn(3)), lambda: LutLinear(weight, scale=float("nan")), lambda: LutLinear(weight)(torch.randn(63)),
        ])

    def test_graphs_and_threads(self):
        self.in_graph(LutLinear(torch.randint(-1, 2, (40, 200), dtype=torch.int8)), torch.randn(3, 200))


if __name__ == "__main__":
    unittest.main()
