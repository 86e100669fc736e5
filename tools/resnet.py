"""Holds host/examples/resnet against PyTorch: logits and images per second.

    python3 tools/resnet.py --example target/release/examples/resnet [--arch resnet50] [--batch 32]
        [--size 224] [--types f32,bf16] [--device cuda] [--repeat 50]

Makes a network with torchvision's names and seeded random weights, writes it and a batch of images
as safetensors, runs both, prints JSON. Fails when

* f32: a logit differs from PyTorch's f32 (TF32 off) by more than 1e-4 of the largest logit;
* f16, bf16: the largest error against PyTorch's f32 logits is more than twice that of PyTorch's own
  f16 or bf16 network.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

STAGES = {"resnet18": (2, (2, 2, 2, 2)), "resnet34": (2, (3, 4, 6, 3)), "resnet50": (3, (3, 4, 6, 3))}


class Block(nn.Module):
    def __init__(self, into, width, stride, convs):
        super().__init__()
        out = width * (4 if convs == 3 else 1)
        plan = [(into, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        if convs == 2:
            plan = [(into, width, 3, stride), (width, out, 3, 1)]
        for i, (c, k, r, s) in enumerate(plan, 1):
            self.add_module(f"conv{i}", nn.Conv2d(c, k, r, s, r // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(k))
        self.convs = convs
        self.downsample = None
        if stride != 1 or into != out:
            conv = nn.Conv2d(into, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x):
        y = x
        for i in range(1, self.convs + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.convs:
                y = torch.relu(y)
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, arch, classes=1000, width=64):
        super().__init__()
        convs, counts = STAGES[arch]
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        into = width
        for stage, count in enumerate(counts):
            blocks = []
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(Block(into, width << stage, stride, convs))
                into = (width << stage) * (4 if convs == 3 else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(into, classes)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def seeded(arch):
    torch.manual_seed(1)
    model = ResNet(arch).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.0)
                module.bias.uniform_(-0.2, 0.2)
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.5, 1.5)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    return model


def torch_run(model, images, dtype, device, repeat):
    """Logits as f32, and images per second."""
    model = model.to(device, dtype, memory_format=torch.channels_last)
    x = images.to(device, dtype, memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(3):
            logits = model(x)
        if device == "cpu":
            return logits.float(), None
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeat):
            graph.replay()
        torch.cuda.synchronize()
        rate = repeat * len(images) / (time.perf_counter() - started)
    return out.float().cpu(), rate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--example", required=True, type=Path)
    parser.add_argument("--arch", default="resnet50", choices=STAGES)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--repeat", type=int, default=50)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True

    model = seeded(args.arch)
    images = torch.randn(args.batch, 3, args.size, args.size)
    report = {"torch": torch.__version__, "arch": args.arch, "batch": args.batch, "rows": []}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        weights, images_file = Path(folder, "weights.safetensors"), Path(folder, "images.safetensors")
        state = {k: v.contiguous() for k, v in model.state_dict().items() if v.dtype == torch.float32}
        save_file(state, weights)
        save_file({"input": images}, images_file)
        truth, f32_rate = torch_run(model, images, torch.float32, args.device, args.repeat)
        largest = truth.abs().max()
        for kind in args.types.split(","):
            dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]
            theirs, rate = truth, f32_rate
            if kind != "f32":
                theirs, rate = torch_run(seeded(args.arch), images, dtype, args.device, args.repeat)
            out = Path(folder, "logits.safetensors")
            command = [args.example.resolve(), weights, "--input", images_file, "--out", out]
            command += ["--type", kind, "--math", "exact" if kind == "f32" else "tensor-core"]
            command += ["--device", args.device, "--repeat", str(args.repeat)]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            ours = load_file(out)["logits"]
            error, torch_error = ((x - truth).abs().max() / largest for x in (ours, theirs))
            allowed = 1e-4 if kind == "f32" else 2 * float(torch_error)
            ours_rate = float(re.search(r"([\d.]+) images/s", text)[1])
            good = bool(error <= allowed) and bool(torch.isfinite(ours).all())
            failed |= not good
            report["rows"].append({
                "type": kind,
                "error": float(error),
                "allowed": allowed,
                "torch_error": float(torch_error),
                "same_top1": float((ours.argmax(1) == truth.argmax(1)).float().mean()),
                "images_per_s": ours_rate,
                "torch_images_per_s": rate,
                "ratio": rate and ours_rate / rate,
                "ok": good,
            })
    json.dump(report, sys.stdout, indent=1)
    print()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
