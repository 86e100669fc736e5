"""Packed BitNet folders, and a forward pass whose linear layers are exact.

One place for what both tools need: the safetensors container, the published
packed layout (U8 [N/4, K], code = t + 1, four strided rows in one byte row,
`weight_scale` bf16 [1] that multiplies), and a reference forward.

The forward is written from the formulas and not from the training code. Each
ternary dot product is a sum of integers held in float64, so it is exact; the
epilogue is `(acc / s) * g` in float32; every other value is float64. Keys and
values go through the cache type (bf16 unless told otherwise).
"""

import json
import math
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

PROJECTIONS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
FLOOR = 1e-5
_TORCH = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
}
_NAMES = {v: k for k, v in _TORCH.items()}


# ---- container -------------------------------------------------------------


def write_safetensors(path, tensors):
    """Writes named CPU tensors in the order of their names, data 8-byte aligned."""
    header, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        raw = t.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": _NAMES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [at, at + len(raw)],
        }
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for raw in blobs:
            f.write(raw)


def read_safetensors(path):
    """Reads every tensor of one file: name -> CPU tensor of the stored type."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
    data = np.memmap(path, mode="r", dtype=np.uint8, offset=8 + n)
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        if info["dtype"] not in _TORCH or end > len(data):
            raise ValueError(f"{path}: {name} is {info['dtype']} and ends at byte {end} of {len(data)}")
        dtype = _TORCH[info["dtype"]]
        flat = torch.from_numpy(np.array(data[begin:end]))
        out[name] = flat.view(dtype).reshape(info["shape"])
    return out


def read_folder(folder):
    """Reads `config.json` and all tensors, sharded or not."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    tensors = {}
    for name in files:
        tensors.update(read_safetensors(os.path.join(folder, name)))
    return config, tensors


# ---- ternary weights -------------------------------------------------------


def ternarise(w):
    """W [N, K] -> (t int8 [N, K], g float): absmean, in float32."""
    w = w.float()
    g = max(w.abs().mean().item(), FLOOR)
    t = torch.clamp(torch.round(w * (1.0 / np.float32(g))), -1, 1)
    return t.to(torch.int8), g


def pack(t):
    """t int8 [N, K] in {-1, 0, 1}, N a multiple of 4 -> U8 [N/4, K]."""
    n, k = t.shape
    if n % 4:
        raise ValueError(f"pack: {n} rows, must be a multiple of 4")
    codes = (t + 1).to(torch.uint8).reshape(4, n // 4, k)
    return codes[0] | (codes[1] << 2) | (codes[2] << 4) | (codes[3] << 6)


def unpack(p, n=None):
    """U8 [R, K] -> t int8 [n, K]; n defaults to 4 R. Raises on the code 3."""
    codes = torch.cat([(p >> shift) & 3 for shift in (0, 2, 4, 6)], 0)
    codes = codes if n is None else codes[:n]
    if bool((codes == 3).any()):
        raise ValueError("unpack: code 3 found, allowed 0, 1, 2")
    return codes.to(torch.int8) - 1


def load_ternary(config, tensors, name):
    """One projection of a packed or a master folder -> (t int8 [N, K], g float32)."""
    w = tensors[name + ".weight"]
    if w.dtype != torch.uint8:
        t, g = ternarise(w)
        return t, np.float32(g)
    scale = tensors[name + ".weight_scale"].float().reshape(-1)
    if scale.numel() != 1:
        raise ValueError(f"{name}.weight_scale has {scale.numel()} values, expected 1")
    quant = config.get("quantization_config") or {}
    g = np.float32(scale.item())
    if quant.get("linear_class", "bitlinear") != "autobitlinear":
        g = np.float32(1.0) / g
    return unpack(w), g


# ---- forward ---------------------------------------------------------------


def quantise(x):
    """x [.., K] -> (q integers held in float64, s float32 [.., 1])."""
    x = x.float()
    s = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=FLOOR)
    q = torch.clamp(torch.round(x * s), -128, 127)
    return q.double(), s


def bit_linear(x, t, g):
    """`(acc / s) * g`; x [.., K], t [N, K] as float64, g float32. Returns float64."""
    q, s = quantise(x)
    acc = q @ t.T
    return (acc.float() / s * g).double()


def rmsnorm(x, w, eps):
    """Over the last dimension, float64."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


class Exact:
    """A BitNet folder held for exact evaluation."""

    def __init__(self, folder, device="cpu", kv_dtype=torch.bfloat16):
        config, tensors = read_folder(folder)
        self.config, self.device, self.kv_dtype = config, device, kv_dtype
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps = config["rms_norm_eps"]
        rope = config.get("rope_parameters") or {}
        self.theta = float(config.get("rope_theta") or rope["rope_theta"])

        def f64(name):
            return tensors[name].to(device).double()

        self.embed = f64("model.embed_tokens.weight")
        self.head = self.embed if config.get("tie_word_embeddings") else f64("lm_head.weight")
        self.norm = f64("model.norm.weight")
        self.layers = []
        for i in range(config["num_hidden_layers"]):
            base = f"model.layers.{i}."
            layer = {}
            for p in PROJECTIONS:
                t, g = load_ternary(config, tensors, base + p)
                layer[p.split(".")[1]] = (t.to(device).double(), float(g))
            for p in ("input_layernorm", "post_attention_layernorm"):
                layer[p] = f64(base + p + ".weight")
            layer["attn_sub_norm"] = f64(base + "self_attn.attn_sub_norm.weight")
            layer["ffn_sub_norm"] = f64(base + "mlp.ffn_sub_norm.weight")
            self.layers.append(layer)

    def rotate(self, x):
        """Half-split rotation of x [B, H, T, D]; position = index in T."""
        d = self.head_dim // 2
        inv = self.theta ** (-torch.arange(d, dtype=torch.float64, device=x.device) / d)
        angle = torch.arange(x.shape[2], dtype=torch.float64, device=x.device)[:, None] * inv
        c, s = angle.cos(), angle.sin()
        a, b = x[..., :d], x[..., d:]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    @torch.no_grad()
    def __call__(self, ids):
        """ids int64 [B, T] -> logits float64 [B, T, vocab]."""
        batch, length = ids.shape
        h = self.embed[ids]
        mask = torch.full((length, length), -math.inf, dtype=torch.float64, device=h.device).triu(1)
        for layer in self.layers:
            a = rmsnorm(h, layer["input_layernorm"], self.eps)
            q, k, v = (bit_linear(a, *layer[p]) for p in ("q_proj", "k_proj", "v_proj"))
            q = self.rotate(q.view(batch, length, self.heads, -1).transpose(1, 2))
            k = self.rotate(k.view(batch, length, self.kv_heads, -1).transpose(1, 2))
            v = v.view(batch, length, self.kv_heads, -1).transpose(1, 2)
            group = self.heads // self.kv_heads
            k = k.to(self.kv_dtype).double().repeat_interleave(group, 1)
            v = v.to(self.kv_dtype).double().repeat_interleave(group, 1)
            p = F.softmax(q @ k.transpose(2, 3) / math.sqrt(self.head_dim) + mask, -1)
            o = (p @ v).transpose(1, 2).reshape(batch, length, -1)
            o = rmsnorm(o, layer["attn_sub_norm"], self.eps)
            h = h + bit_linear(o, *layer["o_proj"])
            b = rmsnorm(h, layer["post_attention_layernorm"], self.eps)
            f = F.relu(bit_linear(b, *layer["gate_proj"])).square()
            f = f * bit_linear(b, *layer["up_proj"])
            f = rmsnorm(f, layer["ffn_sub_norm"], self.eps)
            h = h + bit_linear(f, *layer["down_proj"])
        return rmsnorm(h, self.norm, self.eps) @ self.head.T
