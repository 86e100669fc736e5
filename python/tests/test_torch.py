"""Ternary layers in PyTorch, on the CPU and on every GPU that is here. Skipped without PyTorch."""

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
    from bitnet_gpu.torch import BitLinear, replace_linear, ternaries


def reference(x, t, scale):
    """The layer in PyTorch's own operations; its integers are exact in f64."""
    x = x.float().cpu()
    s = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    q = torch.round(x * s).clamp(-128, 127)
    return ((q.double() @ t.cpu().double().T).float() / s) * scale


@unittest.skipIf(torch is None, "no PyTorch")
class TorchTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.devices = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]

    def layer(self, n, k, **more):
        t = torch.randint(-1, 2, (n, k), dtype=torch.int8)
        return t, BitLinear(t, 0.25, **more)

    def test_products_are_right_and_the_same_bits_everywhere(self):
        for n, k in [(1, 1), (3, 5), (64, 128), (1000, 777), (2560, 2560)]:
            t, layer = self.layer(n, k)
            for shape in [(k,), (1, k), (2, 3, k), (33, k)]:
                x = torch.randn(shape)
                wanted = reference(x, t, 0.25)
                made = [layer(x.to(device)).cpu() for device in self.devices]
                torch.testing.assert_close(made[0], wanted, rtol=1e-6, atol=1e-6)
                for other in made[1:]:
                    self.assertTrue(torch.equal(other, made[0]), (n, k, shape))

    def test_dtypes_strides_and_empty_input(self):
        t, layer = self.layer(40, 96)
        for device in self.devices:
            for dtype in (torch.float16, torch.bfloat16):
                x = torch.randn(7, 96, device=device).to(dtype)
                y = layer(x)
                self.assertEqual((y.dtype, y.device, y.shape), (dtype, x.device, (7, 40)))
                self.assertTrue(torch.equal(y, layer(x.float()).to(dtype)))
            wide = torch.randn(96, 7, device=device)
            self.assertTrue(torch.equal(layer(wide.T), layer(wide.T.contiguous())))
            whole = torch.randn(7 * 96 + 1, device=device)
            part = whole[1:].view(7, 96)  # starts at 4 bytes
            self.assertTrue(torch.equal(layer(part), layer(part.clone())))
            self.assertEqual(layer(torch.empty(0, 96, device=device)).shape, (0, 40))
            self.assertEqual(layer(torch.zeros(2, 96, device=device)).abs().max().item(), 0)

    def test_what_is_wrong_is_said(self):
        t, layer = self.layer(4, 6)
        wrong = [
            lambda: layer(torch.zeros(2, 5)),
            lambda: layer(torch.zeros(())),
            lambda: layer(torch.zeros(2, 6, dtype=torch.float64)),
            lambda: layer(torch.zeros(2, 6, dtype=torch.int64)),
            lambda: layer(torch.zeros(2, 6, device="meta")),
            lambda: BitLinear(torch.zeros(4, 6), 1.0),
            lambda: BitLinear(torch.full((4, 6), 2, dtype=torch.int8), 1.0),
            lambda: BitLinear(torch.zeros((0, 6), dtype=torch.int8), 1.0),
            lambda: BitLinear(t, float("nan")),
            lambda: ternaries(torch.full((2, 2), float("inf"))),
        ]
        for call in wrong:
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(RuntimeError):
            layer(torch.zeros(2, 6, requires_grad=True))

    def test_injection_keeps_what_is_no_ternary_layer(self):
        signs = torch.randint(-1, 2, (16, 8)).float()
        model = torch.nn.Sequential()
        model.add_module("ternary", torch.nn.Linear(8, 16))
        model.ternary.weight.data = signs * 0.5
        model.add_module("rough", torch.nn.Linear(16, 16))
        model.add_module("twice", model.ternary)
        model.add_module("lm_head", torch.nn.Linear(8, 3))
        x = torch.randn(5, 8)
        wanted = reference(x, signs, 0.5) + model.ternary.bias
        self.assertEqual(replace_linear(model), ["ternary", "twice"])
        self.assertIs(model.ternary, model.twice)
        torch.testing.assert_close(model.ternary(x), wanted)
        self.assertEqual(replace_linear(model, ternarise=True), ["rough"])
        self.assertIs(type(model.lm_head), torch.nn.Linear)
        self.assertEqual(replace_linear(model), [])

    def test_copies_and_files(self):
        _, layer = self.layer(12, 20, bias=torch.randn(12))
        x = torch.randn(3, 20)
        wanted = layer(x)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        _, other = self.layer(12, 20, bias=torch.zeros(12))
        other(x)
        other.load_state_dict(torch.load(file, weights_only=True))
        for same in (copy.deepcopy(layer), other):
            self.assertTrue(torch.equal(same(x), wanted))

    def test_threads_share_a_layer(self):
        _, layer = self.layer(300, 512)
        x = torch.randn(9, 512)
        wanted, results = layer(x), []

        def work():
            results.extend(layer(x) for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 200)
        self.assertTrue(all(torch.equal(y, wanted) for y in results))

    def test_streams_threads_and_graphs(self):
        for device in self.devices[1:]:
            t, layer = self.layer(640, 512)
            for m in (1, 17):
                x = torch.randn(m, 512, device=device)
                wanted = layer(x)
                results = []

                def work():
                    with torch.cuda.stream(torch.cuda.Stream(device)):
                        results.append([layer(x.clone()) for _ in range(20)])
                        torch.cuda.current_stream(device).synchronize()

                threads = [threading.Thread(target=work) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertTrue(all(torch.equal(y, wanted) for ys in results for y in ys))
                with torch.cuda.device(device):
                    still, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        y = layer(still)
                    for _ in range(3):
                        still.copy_(torch.randn_like(x))
                        graph.replay()
                        self.assertTrue(torch.equal(y, layer(still)))

    def test_the_current_device_stays(self):
        if len(self.devices) < 3:
            self.skipTest("one GPU at most")
        _, layer = self.layer(8, 8)
        layer(torch.zeros(1, 8, device="cuda:1"))
        self.assertEqual(torch.cuda.current_device(), 0)
        self.assertEqual(torch.zeros(1, device="cuda").device.index, 0)


if __name__ == "__main__":
    unittest.main()
