"""Convolutions, pruned layers and products in PyTorch, on the CPU and on every GPU that is here. Skipped without PyTorch."""

import copy
import io
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

try:
    import torch
except ImportError:
    torch = None
else:
    from torch.nn.utils import prune

    from bitnet_gpu import _library
    from bitnet_gpu._tensor import described
    from bitnet_gpu.torch import (
        BitConv2d, BitLinear, Conv2d, SparseConv2d, SparseLinear, bmm, fuse, matmul, pays_off, prune_, replace_bit_conv2d,
        replace_conv2d, replace_sparse,
    )

    FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def pruned(*shape, sparsity=0.8, dtype=None):
    weight = torch.randn(shape).to(dtype or torch.float32)
    prune_(weight, sparsity)
    return weight


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.devices = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]

    def near(self, found, wanted, terms, size, dtype=None):
        """Within the rounding of so many terms of magnitudes that sum up to `size`, and of the output."""
        # A sum in any order; the output's own rounding.
        last = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype or found.dtype]
        allowed = size.double() * terms * 2.0**-24 + wanted.double().abs() * last + 1e-7
        wrong = (found.double() - wanted.double()).abs() > allowed
        self.assertFalse(bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()}")

    def everywhere(self, call, *tensors):
        """What `call` gives on the CPU, with the same bits on every GPU."""
        wanted = call(*tensors)
        for device in self.devices[1:]:
            found = call(*(t.to(device) for t in tensors))
            self.assertEqual((found.dtype, found.shape, found.stride()), (wanted.dtype, wanted.shape, wanted.stride()))
            self.assertTrue(torch.equal(found.cpu(), wanted), device)
        return wanted

    def refused(self, kind, calls):
        for call in calls:
            with self.assertRaises(kind):
                call()

    def in_graph(self, call, x):
        """The same in a graph, on new values, after one call outside; and by threads on streams of their own."""
        for device in self.devices[1:]:
            still = x.to(device)
            call(still)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.device(device), torch.cuda.graph(graph):
                y = call(still)
            for _ in range(2):
                still.copy_(torch.randn(x.shape))
                graph.replay()
                self.assertTrue(torch.equal(y, call(still)))
            wanted, found = call(still), []

            def work():
                with torch.cuda.stream(torch.cuda.Stream(device)):
                    found.extend(call(still) for _ in range(5))
                    torch.cuda.current_stream(device).synchronize()

            torch.cuda.synchronize(device)
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(found), 15)
            self.assertTrue(all(torch.equal(y, wanted) for y in found))


@unittest.skipIf(torch is None, "no PyTorch")
class Conv2dTest(Case):
    def compare(self, module, x, **more):
        layer = Conv2d.of(module, **more)
        y = self.everywhere(layer, x)
        with torch.no_grad():
            wide, size = copy.deepcopy(module).double(), copy.deepcopy(module).double()
            for parameter in size.parameters():
                parameter.abs_()
            self.near(y, wide(x.double()), module.weight[0].numel() + 2, size(x.double().abs()))
        return layer, y

    def test_it_is_pytorchs_convolution(self):
        kinds = [
            dict(padding=1), dict(stride=2), dict(stride=(2, 3), padding=(3, 0)), dict(padding="same", dilation=(2, 3)),
            dict(padding="valid", groups=4), dict(groups=8, padding=2), dict(padding=2, padding_mode="reflect"),
            dict(padding=(1, 3), padding_mode="replicate", bias=False), dict(padding="same", padding_mode="reflect", groups=2),
        ]
        for i, kind in enumerate(kinds):
            for dtype in FLOATS:
                module = torch.nn.Conv2d(8, 16, (3, 5), **kind).to(dtype)
                x = torch.randn(1 + i % 3, 8, 12, 17).to(dtype)
                _, planes = self.compare(module, x)
                self.assertTrue(planes.is_contiguous())
                _, last = self.compare(module, x.to(memory_format=torch.channels_last))
                self.assertTrue(last.is_contiguous(memory_format=torch.channels_last))
                self.assertTrue(torch.equal(planes, last))

    def test_images_of_one_channel_one_pixel_and_none(self):
        for channels, size, window in [(1, (9, 8), 3), (5, (1, 1), 1), (1, (1, 1), 1), (3, (4, 1), (2, 1))]:
            module = torch.nn.Conv2d(channels, 4, window)
            x = torch.randn(2, channels, *size)
            _, y = self.compare(module, x)
            self.assertTrue(y.is_contiguous())
            layer = Conv2d.of(module)
            self.assertTrue(torch.equal(layer(x[0]), y[0]))
            for device in self.devices:
                self.assertEqual(layer(x[:0].to(device)).shape, (0, *y.shape[1:]))

    def test_residual_and_activation(self):
        module = torch.nn.Conv2d(16, 8, 3, padding=1)
        x, residual = torch.randn(2, 16, 7, 9), torch.randn(2, 8, 7, 9)
        plain = Conv2d.of(module)(x)
        last = torch.channels_last
        for activation, function in [(None, lambda v: v), ("relu", torch.relu), ("silu", torch.nn.functional.silu)]:
            layer = Conv2d.of(module, activation=activation)
            y = self.everywhere(layer, x, residual)
            torch.testing.assert_close(y, function(plain + residual))
            self.assertTrue(torch.equal(layer(x, residual.to(memory_format=last)), y))
            self.assertTrue(torch.equal(layer(x.to(memory_format=last), residual), y))

    def test_tensor_cores_keep_their_bound(self):
        for dtype in FLOATS[1:]:
            for c, k, size, images in [(64, 64, 14, 2), (24, 40, 9, 1), (128, 256, 28, 4), (3, 64, 32, 2)]:
                module = torch.nn.Conv2d(c, k, 3, padding=1, bias=False).to(dtype)
                layer = Conv2d.of(module, math="tensor_core")
                for x in (torch.randn(images, c, size, size).to(dtype),):
                    for form in (torch.contiguous_format, torch.channels_last):
                        for device in self.devices:
                            y = layer(x.to(device).contiguous(memory_format=form)).cpu()
                            with torch.no_grad():
                                weight = module.weight.double()
                                wide = torch.nn.functional.conv2d(x.double(), weight, padding=1)
                                size_of = torch.nn.functional.conv2d(x.double().abs(), weight.abs(), padding=1)
                            self.near(y, wide, 2 * 9 * c, size_of)

    def test_graphs_streams_and_threads(self):
        for layer in (
            Conv2d(torch.randn(16, 8, 3, 3), padding=1), Conv2d(torch.randn(64, 2048, 1, 1)),
            BitConv2d(torch.randint(-1, 2, (16, 8, 3, 3), dtype=torch.int8), 0.5),
        ):
            self.in_graph(layer, torch.randn(2, layer.in_channels, 7, 7))
        half = Conv2d(torch.randn(128, 256, 1, 1).bfloat16(), math="tensor_core")
        self.in_graph(half, torch.randn(2, 256, 7, 7).bfloat16())

    def test_ternary_weights(self):
        for c, k, groups in [(8, 16, 1), (16, 6, 2), (64, 32, 1)]:
            t = torch.randint(-1, 2, (k, c // groups, 3, 3), dtype=torch.int8)
            layer = BitConv2d(t, 0.25, torch.randn(k), padding=1, groups=groups, activation="relu")
            for dtype in FLOATS:
                x = torch.randn(3, c, 6, 7).to(dtype)
                y = self.everywhere(layer, x)
                # `127 / top` would be a product with the reciprocal.
                scale = torch.tensor(127.0) / x.float().abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-5)
                q = torch.round(x.float() * scale).clamp(-128, 127).double()
                sums = torch.nn.functional.conv2d(q, t.double(), padding=1, groups=groups)
                wanted = torch.relu((sums.float() / scale) * 0.25 + layer._bias.view(-1, 1, 1))
                torch.testing.assert_close(y, wanted.to(dtype))
                self.everywhere(layer, x.to(memory_format=torch.channels_last))

    def test_what_is_wrong_is_said(self):
        weight = torch.randn(4, 6, 3, 3)
        layer = Conv2d(weight)
        ternary = BitConv2d(torch.zeros((4, 6, 3, 3), dtype=torch.int8), 1.0)
        x = torch.zeros(1, 6, 5, 5)
        self.refused(ValueError, [
            lambda: layer(torch.zeros(1, 5, 5, 5)), lambda: layer(torch.zeros(6, 5)), lambda: layer(x.double()),
            lambda: layer(x.half()), lambda: layer(torch.zeros(1, 6, 2, 5)), lambda: layer(torch.zeros(1, 6, 0, 5)),
            lambda: layer(x, torch.zeros(1, 4, 3, 2)), lambda: layer(x, torch.zeros(1, 4, 3, 3).half()),
            lambda: layer(torch.zeros(1, 6, 5, 5, device="meta")), lambda: ternary(x.double()),
            lambda: Conv2d(weight, stride=0), lambda: Conv2d(weight, stride=(1, 2, 3)), lambda: Conv2d(weight, padding=-1),
            lambda: Conv2d(weight, padding="all"), lambda: Conv2d(weight, padding="same", stride=2),
            lambda: Conv2d(weight, groups=3), lambda: Conv2d(weight, groups=0), lambda: Conv2d(weight, padding_mode="circular"),
            lambda: Conv2d(weight, activation="gelu"), lambda: Conv2d(weight, math="fast"), lambda: Conv2d(weight[0]),
            lambda: Conv2d(weight.double()), lambda: Conv2d(weight, torch.zeros(3)), lambda: Conv2d(weight[:0]),
            lambda: Conv2d(weight, dilation=1 << 40), lambda: BitConv2d(weight, 1.0),
            lambda: BitConv2d(torch.full((4, 6, 3, 3), 2, dtype=torch.int8), 1.0),
            lambda: BitConv2d(torch.zeros((4, 6, 3, 3), dtype=torch.int8), float("nan")),
            lambda: Conv2d(weight, padding=6, padding_mode="reflect")(x),
        ])
        self.refused(RuntimeError, [lambda: layer(x.clone().requires_grad_())])

    def test_injection(self):
        model = torch.nn.Sequential()
        model.add_module("first", torch.nn.Conv2d(3, 8, 3, padding=1))
        model.add_module("norm", torch.nn.BatchNorm2d(8))
        model.add_module("round", torch.nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"))
        model.add_module("twice", torch.nn.Conv2d(8, 8, 1))
        model.add_module("again", model.twice)
        model.add_module("head", torch.nn.Conv2d(8, 2, 1))
        model.eval()
        x = torch.randn(2, 3, 6, 6)
        with torch.no_grad():
            wanted = model(x)
        done = replace_conv2d(model, skip=("head",))
        self.assertEqual(done.replaced, ["first", "twice", "again"])
        self.assertEqual(sorted(done.left), ["head", "round"])
        self.assertIn("circular", done.left["round"])
        self.assertIs(model.twice, model.again)
        self.assertFalse(model.first.training)
        with torch.no_grad():
            torch.testing.assert_close(model(x), wanted)
        self.assertEqual(replace_conv2d(model).replaced, ["head"])
        with self.assertRaises(ValueError):
            replace_conv2d(torch.nn.Conv2d(1, 1, 1))
        for dtype in FLOATS:
            self.assertEqual(model.first.to(dtype)(x.to(dtype)).dtype, dtype)

    def test_injection_of_ternary_weights(self):
        model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Conv2d(8, 8, 1))
        model[0].weight.data = torch.randint(-1, 2, (8, 4, 3, 3)).float() * 0.5
        done = replace_bit_conv2d(model)
        self.assertEqual((done.replaced, list(done.left)), (["0"], ["1"]))
        self.assertEqual(replace_bit_conv2d(model, ternarise=True).replaced, ["1"])
        self.assertEqual(model(torch.randn(1, 4, 5, 5)).shape, (1, 8, 3, 3))

    def test_copies_and_files(self):
        x = torch.randn(1, 6, 5, 5)
        t = torch.randint(-1, 2, (4, 6, 3, 3), dtype=torch.int8)
        for make in (
            lambda of: Conv2d(of * torch.ones(4, 6, 3, 3), of * torch.ones(4)), lambda of: BitConv2d(t * int(of > 1), of),
            lambda of: SparseConv2d(of * torch.ones(4, 6, 3, 3), of * torch.ones(4)),
        ):
            layer, other, file = make(1.5), make(0.5), io.BytesIO()
            torch.save(layer.state_dict(), file)
            file.seek(0)
            other(x)
            other.load_state_dict(torch.load(file, weights_only=True))
            for same in (copy.deepcopy(layer), other):
                self.assertTrue(torch.equal(same(x), layer(x)))
            with self.assertRaises(Exception):
                Conv2d(torch.ones(4, 6, 1, 1)).load_state_dict(layer.state_dict())


@unittest.skipIf(torch is None, "no PyTorch")
class FuseTest(Case):
    def block(self, channels=8, out=8, stride=1):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1 = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
                self.bn1 = torch.nn.BatchNorm2d(out)
                self.conv2 = torch.nn.Conv2d(out, out, 3, 1, 1)
                self.bn2 = torch.nn.BatchNorm2d(out)
                self.relu = torch.nn.ReLU(inplace=True)
                self.down = torch.nn.Conv2d(channels, out, 1, stride)

            def forward(self, x):
                y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
                # Made behind the convolution that it is added to.
                y += self.down(x)
                return torch.nn.functional.relu(y)

        block = Block()
        for norm in (block.bn1, block.bn2):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(norm.weight)
            torch.nn.init.normal_(norm.bias)
        return block

    def test_norms_residuals_and_activations_go_in(self):
        model = torch.nn.Sequential(self.block(), self.block(8, 16, 2), torch.nn.Conv2d(16, 4, 1), torch.nn.SiLU()).eval()
        x = torch.randn(2, 8, 10, 9)
        with torch.no_grad():
            wanted = model(x)
        replace_conv2d(model)
        for device in self.devices:
            fused = fuse(model.to(device), x.to(device))
            torch.testing.assert_close(fused(x.to(device)).cpu(), wanted, rtol=1e-4, atol=1e-4)
            left = [node for node in fused.graph.nodes if node.op not in ("placeholder", "output", "call_module")]
            self.assertEqual(left, [])
            self.assertTrue(all(type(m) in (Conv2d, torch.nn.Sequential, torch.nn.Module) for m in fused.children()))
            self.assertEqual(sum(type(m) is Conv2d for m in fused.modules()), 7)
            with torch.no_grad():
                torch.testing.assert_close(model(x.to(device)).cpu(), wanted, rtol=1e-4, atol=1e-4)

    def test_what_would_change_the_result_stays(self):
        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.twice = torch.nn.Conv2d(4, 4, 1), torch.nn.Conv2d(4, 4, 1)

            def forward(self, x):
                y = self.conv(x)
                # Of another shape; seen twice; called twice; not the first activation.
                return torch.relu(y + x.mean((2, 3), keepdim=True)) + y + torch.relu(self.twice(torch.relu(self.twice(x))))

        model, x = Odd().eval(), torch.randn(2, 4, 3, 3)
        with torch.no_grad():
            wanted = model(x)
            replace_conv2d(model)
            torch.testing.assert_close(fuse(model, x)(x), wanted)
        self.assertIsNone(fuse(model, x).conv._options[6])
        with self.assertRaises(ValueError):
            fuse(model.train(), x)


@unittest.skipIf(torch is None, "no PyTorch")
class SparseTest(Case):
    def test_products_are_right_and_the_same_bits_in_every_format(self):
        for n, k in [(1, 1), (3, 33), (64, 128), (1000, 777), (2048, 2048)]:
            for dtype in FLOATS:
                weight, bias = pruned(n, k, dtype=dtype), torch.randn(n).to(dtype)
                wide = weight.double()
                for shape in [(k,), (2, 3, k), (17, k)]:
                    x = torch.randn(shape).to(dtype)
                    both = [
                        self.everywhere(SparseLinear(weight, format=format), x.float()) for format in ("bitmap", "csr")
                    ]
                    self.assertTrue(torch.equal(*both))
                    self.near(both[0], x.double() @ wide.T, k, x.double().abs() @ wide.abs().T)
                    found = SparseLinear(weight, bias)(x)
                    self.assertEqual(found.dtype, dtype)
                    self.assertTrue(torch.equal(found, (both[0] + bias).to(dtype)))
                    for device in self.devices[1:]:
                        moved = SparseLinear(weight, bias).to(device)
                        self.assertTrue(torch.equal(moved(x.to(device)).cpu(), found))

    def test_tensor_cores_keep_their_bound(self):
        for n, k, rows in [(512, 1024, 1), (300, 1001, 3), (1024, 4096, 16), (64, 64, 40)]:
            weight = pruned(n, k, dtype=torch.bfloat16)
            x = torch.randn(rows, k).bfloat16()
            for device in self.devices:
                y = SparseLinear(weight, math="tensor_core")(x.to(device)).cpu()
                self.near(y, x.double() @ weight.double().T, 64, x.double().abs() @ weight.double().abs().T)

    def test_the_ternary_bitmap_has_the_bits_of_a_ternary_layer(self):
        t = torch.randint(-1, 2, (70, 96), dtype=torch.int8)
        x = torch.randn(5, 96)
        y = self.everywhere(SparseLinear(t, format="ternary_bitmap", scale=0.25), x)
        self.assertTrue(torch.equal(y, BitLinear(t, 0.25)(x)))
        self.assertEqual(SparseLinear(t, format="ternary_bitmap")(x.bfloat16()).dtype, torch.bfloat16)

    def test_convolutions(self):
        for kind in [dict(padding=1), dict(stride=2), dict(padding="same", dilation=2), dict(stride=(1, 2), padding=(0, 2))]:
            for dtype in FLOATS:
                weight, bias = pruned(16, 8, 3, 3, dtype=dtype), torch.randn(16).to(dtype)
                layer, x = SparseConv2d(weight, **kind), torch.randn(2, 8, 9, 10).to(dtype)
                y = self.everywhere(layer, x.float())
                conv = torch.nn.functional.conv2d
                size = conv(x.double().abs(), weight.double().abs(), **kind)
                self.near(y, conv(x.double(), weight.double(), **kind), 72, size)
                last = self.everywhere(layer, x.float().to(memory_format=torch.channels_last))
                self.assertTrue(torch.equal(last, y))
                self.assertTrue(torch.equal(SparseConv2d(weight, bias, **kind)(x), (y + bias.view(-1, 1, 1)).to(dtype)))
                self.assertTrue(torch.equal(layer(x[0].float()), y[0]))

    def test_residual_and_activation(self):
        for dtype in FLOATS:
            weight, bias = pruned(40, 96, dtype=dtype), torch.randn(40).to(dtype)
            x, residual = torch.randn(5, 96).to(dtype), torch.randn(5, 40).to(dtype)
            sums = SparseLinear(weight)(x.float())
            y = self.everywhere(SparseLinear(weight, bias, activation="relu"), x, residual)
            self.assertTrue(torch.equal(y, torch.relu((sums + bias) + residual).to(dtype)))
            weight, bias = pruned(16, 8, 3, 3, dtype=dtype), torch.randn(16).to(dtype)
            x, residual = torch.randn(2, 8, 9, 10).to(dtype), torch.randn(2, 16, 7, 8).to(dtype)
            sums = SparseConv2d(weight)(x.float())
            y = self.everywhere(SparseConv2d(weight, bias, activation="relu"), x, residual)
            self.assertTrue(torch.equal(y, torch.relu((sums + bias.view(-1, 1, 1)) + residual).to(dtype)))

    def test_strided_empty_and_misaligned_inputs(self):
        layer = SparseLinear(pruned(40, 96))
        for device in self.devices:
            wide = torch.randn(96, 7, device=device)
            self.assertTrue(torch.equal(layer(wide.T), layer(wide.T.contiguous())))
            part = torch.randn(7 * 96 + 1, device=device)[1:].view(7, 96)
            self.assertTrue(torch.equal(layer(part), layer(part.clone())))
            self.assertEqual(layer(torch.empty(0, 96, device=device)).shape, (0, 40))

    def test_graphs_streams_and_threads(self):
        self.in_graph(SparseLinear(pruned(512, 1024)), torch.randn(3, 1024))
        self.in_graph(SparseLinear(pruned(512, 1024), format="csr"), torch.randn(1024))
        ternary = torch.randint(-1, 2, (70, 96), dtype=torch.int8)
        self.in_graph(SparseLinear(ternary, format="ternary_bitmap"), torch.randn(2, 96))
        half = SparseLinear(pruned(300, 1001, dtype=torch.bfloat16), math="tensor_core")
        self.in_graph(half, torch.randn(5, 1001).bfloat16())
        self.in_graph(SparseConv2d(pruned(16, 8, 3, 3)), torch.randn(2, 8, 9, 9))

    def test_what_is_wrong_is_said(self):
        weight = pruned(4, 6)
        layer, cores = SparseLinear(weight), SparseLinear(weight.bfloat16(), math="tensor_core")
        conv = SparseConv2d(pruned(4, 6, 3, 3))
        self.refused(ValueError, [
            lambda: layer(torch.zeros(2, 5)), lambda: layer(torch.zeros(())), lambda: layer(torch.zeros(2, 6).double()),
            lambda: cores(torch.zeros(2, 6)), lambda: layer(torch.zeros(2, 6, device="meta")),
            lambda: SparseLinear(weight, format="coo"), lambda: SparseLinear(weight, math="fast"),
            lambda: SparseLinear(weight, math="tensor_core"), lambda: SparseLinear(weight[0]),
            lambda: SparseLinear(weight.bfloat16(), format="csr", math="tensor_core"), lambda: SparseLinear(weight.double()),
            lambda: SparseLinear(weight, format="ternary_bitmap"), lambda: SparseLinear(weight[:0]),
            lambda: SparseLinear(torch.full((2, 2), 2, dtype=torch.int8), format="ternary_bitmap"),
            lambda: SparseLinear(torch.zeros((2, 2), dtype=torch.int8), format="ternary_bitmap", scale=-1.0),
            lambda: conv(torch.zeros(1, 5, 9, 9)), lambda: conv(torch.zeros(1, 6, 2, 9)), lambda: SparseConv2d(weight),
            lambda: SparseConv2d(pruned(4, 6, 2, 2), padding="same"), lambda: SparseConv2d(pruned(4, 6, 3, 3), stride=0),
            lambda: prune_(weight, 1.5), lambda: prune_(weight, float("nan")), lambda: prune_(weight.double(), 0.5),
            lambda: pays_off(-1, 2, 3, 0.5), lambda: pays_off(1, 2, 3, 0.5, "fast"),
            lambda: layer(torch.zeros(2, 6), torch.zeros(2, 5)), lambda: layer(torch.zeros(2, 6), torch.zeros(2, 4).half()),
            lambda: conv(torch.zeros(1, 6, 9, 9), torch.zeros(1, 4, 7, 6)), lambda: SparseLinear(weight, torch.zeros(3)),
            lambda: SparseLinear(weight, activation="gelu"), lambda: SparseConv2d(pruned(4, 6, 3, 3), torch.zeros(5)),
            lambda: replace_sparse(torch.nn.Sequential(), rows=0), lambda: replace_sparse(torch.nn.Sequential(), at_least=2.0),
        ])
        self.refused(RuntimeError, [lambda: layer(torch.zeros(2, 6, requires_grad=True))])

    def test_pruning(self):
        weight = torch.tensor([[0.5, -2.0], [0.25, 0.5]])
        self.assertEqual(prune_(weight, 0.5), 2)
        self.assertEqual(weight.tolist(), [[0, -2.0], [0, 0.5]])
        wide = torch.randn(8, 16).T
        self.assertEqual(prune_(wide, 0.25), 32)
        self.assertEqual(int((wide == 0).sum()), 32)
        self.assertEqual(prune_(torch.empty(0, 3), 0.5), 0)

    def test_the_rule(self):
        self.assertTrue(pays_off(4096, 4096, 1, 0.9))
        self.assertFalse(pays_off(4096, 4096, 8, 0.9))
        self.assertTrue(pays_off(4096, 4096, 8, 0.9, "tensor_core"))
        self.assertFalse(pays_off(4096, 4096, 1, 0.2, "tensor_core"))
        self.assertFalse(pays_off(4096, 4096, 100, 0.99, "tensor_core"))

    def test_injection(self):
        model = torch.nn.Sequential()
        model.add_module("masked", torch.nn.Linear(96, 64))
        model.add_module("dense", torch.nn.Linear(64, 96))
        model.add_module("made", torch.nn.Linear(96, 64))
        model.add_module("head", torch.nn.Linear(64, 8))
        prune.l1_unstructured(model.masked, "weight", 0.9)
        prune.l1_unstructured(model.made, "weight", 0.7)
        prune.remove(model.made, "weight")
        prune.l1_unstructured(model.head, "weight", 0.9)
        x = torch.randn(4, 96)
        with torch.no_grad():
            wanted = model(x)
        self.assertEqual(replace_sparse(model, rows=8).replaced, [])
        done = replace_sparse(model, skip=("head",))
        self.assertEqual((done.replaced, sorted(done.left)), (["masked", "made"], ["dense", "head"]))
        # -0 of a mask is not stored.
        self.assertAlmostEqual(model.masked.sparsity, 0.9, places=3)
        with torch.no_grad():
            torch.testing.assert_close(model(x), wanted)
        self.assertEqual(replace_sparse(model).replaced, ["head"])

    def test_injection_of_convolutions(self):
        model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Conv2d(8, 8, 3, groups=2), torch.nn.Conv2d(8, 8, 1))
        for module in model[:2]:
            prune.l1_unstructured(module, "weight", 0.8)
        x = torch.randn(1, 4, 9, 9)
        with torch.no_grad():
            wanted = model(x)
        self.assertEqual(replace_sparse(model).replaced, [])
        done = replace_sparse(model, at_least=0.75)
        self.assertEqual((done.replaced, sorted(done.left)), (["0"], ["1", "2"]))
        with torch.no_grad():
            torch.testing.assert_close(model(x), wanted)


@unittest.skipIf(torch is None, "no PyTorch")
class BmmTest(Case):
    def test_products_are_right_and_the_same_bits_everywhere(self):
        for batch, m, n, k in [(1, 1, 1, 1), (4, 33, 17, 20), (3, 64, 64, 64), (2, 5, 129, 1500), (2, 7, 3, 0)]:
            for dtype in FLOATS:
                a, b = torch.randn(batch, m, k).to(dtype), torch.randn(batch, k, n).to(dtype)
                y = self.everywhere(bmm, a, b)
                size = a.double().abs() @ b.double().abs()
                self.near(y, a.double() @ b.double(), k + 1, size)
                for other in [
                    bmm(a.mT.contiguous().mT, b), bmm(a, b.mT.contiguous().mT),
                    torch.stack([bmm(a[i], b[i]) for i in range(batch)]),
                ]:
                    self.assertTrue(torch.equal(other, y))
                for device in self.devices:
                    y = bmm(a.to(device), b.to(device), math="tensor_core").cpu()
                    # Of f32 both factors are rounded to TF32.
                    rounding = 2.0**-9 if dtype == torch.float32 else 0.0
                    self.near(y, a.double() @ b.double(), 2 * k + 1 + rounding * 2.0**24, size)

    def test_strides_expanded_and_misaligned(self):
        for device in self.devices:
            whole = torch.randn(4, 50, 40, device=device)
            a, b = whole[:, 1:34, 3:23], whole[:, 7:27, 5:22]
            wanted = bmm(a.contiguous(), b.contiguous())
            self.assertTrue(torch.equal(bmm(a, b), wanted))
            self.assertTrue(torch.equal(bmm(a[::2], b[1::2]), bmm(a[::2].contiguous(), b[1::2].contiguous())))
            one = b[:1].expand(4, -1, -1)
            self.assertTrue(torch.equal(bmm(a, one), bmm(a, one.contiguous())))
            # Every other column: copied.
            self.assertTrue(torch.equal(bmm(whole[:, :, ::2], b), bmm(whole[:, :, ::2].contiguous(), b)))

    def test_integers_are_exact(self):
        a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in [(3, 9, 500), (3, 500, 8)])
        y = self.everywhere(bmm, a, b)
        self.assertTrue(torch.equal(y, (a.long() @ b.long()).int()))

    def test_into_a_tensor(self):
        a, b, c = torch.randn(3, 5, 6), torch.randn(3, 6, 7), torch.randn(3, 5, 7)
        wanted = 2 * (a @ b) + 0.5 * c
        for device in self.devices:
            out = c.clone().to(device)
            self.assertIs(bmm(a.to(device), b.to(device), alpha=2.0, beta=0.5, out=out), out)
            torch.testing.assert_close(out.cpu(), wanted)
            room = torch.full((3, 10, 9), 7.0, device=device)
            bmm(a.to(device), b.to(device), out=room[:, 2:7, 1:8])
            self.assertTrue(torch.equal(room[:, 2:7, 1:8].cpu(), bmm(a, b)))
            room[:, 2:7, 1:8] = 7
            self.assertTrue(bool((room == 7).all()))

    def test_matmul_is_pytorchs(self):
        shapes = [
            [(3,), (3,)], [(4, 3), (3,)], [(3,), (3, 5)], [(2, 4, 3), (3, 5)], [(2, 4, 3), (3,)], [(2, 1, 4, 3), (5, 3, 2)],
            [(4, 3), (2, 3, 5)], [(0, 4, 3), (3, 5)],
        ]
        for left, right in shapes:
            a, b = torch.randn(left), torch.randn(right)
            torch.testing.assert_close(self.everywhere(matmul, a, b), a @ b)

    def test_graphs_streams_and_threads(self):
        for shape in [(3, 64, 64), (1, 1023, 1023)]:
            b = torch.randn(shape)
            self.in_graph(lambda a: bmm(a, b.to(a.device) if a.device.type == "cpu" else self.there(b, a)), torch.randn(shape))

    def there(self, b, a):
        key = (id(b), str(a.device))
        self.kept = getattr(self, "kept", {})
        if key not in self.kept:
            self.kept[key] = b.to(a.device)
        return self.kept[key]

    def test_memory_that_does_not_do_is_refused(self):
        """Below `bmm` and the modules, which see to it."""
        argument = 2
        for device in self.devices[1:]:
            layer = Conv2d(torch.randn(64, 2048, 1, 1))._layer(torch.device(device))
            x, stream = torch.randn(1, 2048, 7, 7, device=device), torch.cuda.current_stream(device).cuda_stream
            y = layer(x)
            (plan,) = layer.plans.values()
            self.assertGreater(plan.workspace_bytes, 0)
            room = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device=device)

            def forward(x, y, room, size):
                return _library.bitnet_layer_forward(layer.handle, x, None, y, room, size, stream)

            at, size = room.data_ptr(), plan.workspace_bytes
            tensors, moved = (described(x), described(y)), []
            for i in range(2):
                moved.append([described(t) for t in (x, y)])
                moved[i][i].data += 16
            y.fill_(7)
            for x_of, y_of, room_at, bytes in [
                (*tensors, None, size), (*tensors, at, size - 1), (*tensors, at, 0), (*tensors, at + 16, size),
                (*moved[0], at, size), (*moved[1], at, size),
            ]:
                self.assertEqual(forward(x_of, y_of, room_at, bytes), argument)
            torch.cuda.synchronize(device)
            self.assertTrue(bool((y == 7).all()))
            self.assertEqual(forward(*tensors, at, size), 0)
            self.assertTrue(torch.equal(y, layer(x)))

    def test_what_is_wrong_is_said(self):
        a, b = torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)
        self.refused(ValueError, [
            lambda: bmm(a, b[0]), lambda: bmm(a[0, 0], b[0, 0]), lambda: bmm(a, b.half()), lambda: bmm(a.double(), b.double()),
            lambda: bmm(a, b[:1]), lambda: bmm(a, a), lambda: bmm(a, b, math="fast"), lambda: bmm(a, b, beta=1.0),
            lambda: bmm(a, b, out=torch.zeros(2, 3, 6)), lambda: bmm(a, b, out=torch.zeros(2, 3, 5).half()),
            lambda: bmm(a, b, out=torch.zeros(2, 5, 3).mT), lambda: bmm(a, b, out=torch.zeros(1, 3, 5).expand(2, 3, 5)),
            lambda: bmm(a.to(torch.int8), b.to(torch.int8), alpha=0.5), lambda: bmm(a.to(torch.int8), b.to(torch.int8), math="tensor_core"),
            lambda: bmm(a.to("meta"), b.to("meta")), lambda: matmul(a, torch.zeros(3)), lambda: matmul(a, torch.zeros(())),
            lambda: matmul(a, torch.zeros(3, 4, 5)),
        ])
        self.refused(RuntimeError, [lambda: bmm(a.clone().requires_grad_(), b)])


if __name__ == "__main__":
    unittest.main()
