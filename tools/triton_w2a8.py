"""A W2A8 product in Triton, as a peer of the kernels in Rust: `y = x @ ternary(w).T / scale * weight`.

Codes 0, 1, 2 for -1, 0, 1, four to a byte: byte b of a row holds k = b, b + K/4, b + K/2, b + 3K/4,
so that each of the four products of a tile reads neighbouring activations. Sums are exact in int32.
"""

import torch
import triton
import triton.language as tl


def configs():
    for rows, width, warps, stages in (
        (16, 256, 2, 5),
        (32, 128, 4, 5),
        (32, 256, 4, 4),
        (64, 128, 4, 4),
        (128, 64, 4, 4),
        (128, 128, 8, 3),
    ):
        yield triton.Config({"ROWS": rows, "WIDTH": width}, num_warps=warps, num_stages=stages)


@triton.autotune(list(configs()), key=["m", "n", "quarter"])
@triton.jit
def w2a8_kernel(
    x, w, scale, weight, y, m, n, quarter,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    total = tl.zeros((TOKENS, ROWS), tl.int32)
    for start in range(0, quarter, WIDTH):
        b = start + tl.arange(0, WIDTH)
        inside = b < quarter
        at = w + row[None, :].to(tl.int64) * quarter + b[:, None]
        codes = tl.load(at, mask=inside[:, None] & (row < n)[None, :], other=0x55)
        for part in tl.static_range(4):
            from_x = x + token[:, None] * (4 * quarter) + part * quarter + b[None, :]
            a = tl.load(from_x, mask=(token < m)[:, None] & inside[None, :], other=0)
            ternary = ((codes >> (2 * part)) & 3).to(tl.int8) - 1
            total = tl.dot(a, ternary, total, out_dtype=tl.int32)
    factor = tl.load(weight) / tl.load(scale + token, mask=token < m, other=1.0)
    out = y + token[:, None].to(tl.int64) * n + row[None, :]
    tl.store(out, total.to(tl.float32) * factor[:, None], mask=(token < m)[:, None] & (row < n)[None, :])


def pack(ternary):
    """Bytes `[n, k / 4]` of an int8 matrix of -1, 0 and 1."""
    n, k = ternary.shape
    parts = (ternary + 1).to(torch.uint8).view(n, 4, k // 4)
    return parts[:, 0] | parts[:, 1] << 2 | parts[:, 2] << 4 | parts[:, 3] << 6


def w2a8(x, w, scale, weight, y):
    """`x` int8 `[m, k]`, `w` of `pack`, `scale` f32 `[m]`, `weight` f32 `[1]`, `y` f32 `[m, n]`."""
    (m, n), quarter = y.shape, w.shape[1]
    tokens = min(128, max(16, triton.next_power_of_2(m)))

    def grid(meta):
        return triton.cdiv(n, meta["ROWS"]), triton.cdiv(m, tokens)

    w2a8_kernel[grid](x, w, scale, weight, y, m, n, quarter, TOKENS=tokens)


def check():
    """Holds the kernel against a product in f64, which is exact."""
    m, n, k = 3, 70, 640
    ternary = torch.randint(-1, 2, (n, k), device="cuda", dtype=torch.int8)
    x = torch.randint(-128, 128, (m, k), device="cuda", dtype=torch.int8)
    scale = torch.tensor([1.0, 2.0, 0.5], device="cuda")
    y = torch.full((m, n), float("nan"), device="cuda")
    w2a8(x, pack(ternary), scale, torch.ones(1, device="cuda"), y)
    expected = (x.double() @ ternary.double().T).float() / scale[:, None]
    assert torch.equal(y, expected), "the Triton kernel is wrong"
