"""What other libraries take for the cases of a benchmark, timed as benches/ times ours; prints JSON.

    python3 tools/peers.py [--cold-mb 512] [--device 0] [--ms-kernel LIBRARY] BENCH CASE ...

BENCH is the name of a benchmark, CASE the name of one of its cases; cases that no peer here can run
give no row. CUDA graphs of about a millisecond, events around each replay, median of 30. Cold: the
calls rotate over copies of all tensors, of `--cold-mb` megabytes together (at least two of them);
warm: one copy. LIBRARY is a build of the `bitlinear_int8xint2` that microsoft/BitNet publishes. Copies are as many as the benchmarks take: none beyond 512.
"""

import argparse
import ctypes
import json
import re
import statistics
import sys

BENCHES = {}

# The library of `--ms-kernel`, and the shapes that the published kernel has code for.
MS_KERNEL = None
MS_SHAPES = (
    (3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912), (4800, 3200),
    (3200, 3200), (20480, 3200), (3200, 10240), (5120, 27648), (55296, 5120),
)  # fmt: skip


def bench(name):
    """Registers a generator of `(peer, bytes that one call moves, copy)` for each case of a bench;
    `copy()` makes the tensors of one copy and returns the call on them."""

    def register(function):
        BENCHES[name] = function
        return function

    return register


def part(name, case):
    """The part of a case's name that its peers depend on, beside their own names: cases that differ in our side alone
    are measured once."""
    if name == "conv2d":
        return case.split(" ", 1)[1]
    return case.rsplit(" ", 1)[0] if name == "sparse" else case


def numbers(case):
    return [int(n) for n in re.findall(r"\d+", case)]


def element(torch, case):
    """The element type at the end of the name of a case."""
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    return types[case.split()[-1]]


def rows(torch, case):
    """Rows of the case's shape and their length, the element type, and how many bytes its tensor has."""
    m, k = numbers(case.split()[-2])
    dtype = element(torch, case)
    return m, k, dtype, m * k * dtype.itemsize


@bench("activation")
def activation(torch, case):
    m, k, dtype, size = rows(torch, case)
    f = torch.nn.functional
    name = case.split()[0].removesuffix("_gate")
    gate = name != case.split()[0]
    function = {
        "relu": f.relu,
        "relu2": lambda x: f.relu(x).square(),
        "silu": f.silu,
        "gelu": f.gelu,
        "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
    }[name]

    def copy():
        x = torch.randn(m, 2 * k if gate else k, device="cuda", dtype=dtype)
        return (lambda: function(x[:, :k]) * x[:, k:]) if gate else lambda: function(x)

    yield "torch", (3 if gate else 2) * size, copy


def attend(torch, batch, m, shape, positions):
    """SDPA in bf16 of `m` rows at the end of each of `batch` sequences, whose keys and values are contiguous."""
    from torch.nn.attention.bias import causal_lower_right

    heads, kv_heads, head_dim = shape

    def copy():
        of = {"device": "cuda", "dtype": torch.bfloat16}
        q = torch.randn(batch, heads, m, head_dim, **of)
        k, v = (torch.randn(batch, kv_heads, positions, head_dim, **of) for _ in range(2))
        mask = causal_lower_right(m, positions) if m > 1 else None
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return lambda: sdpa(q, k, v, mask, enable_gqa=True)

    elements = batch * (2 * positions * kv_heads + 2 * m * heads) * head_dim
    yield "torch_sdpa_bf16", 2 * elements, copy


@bench("attention")
def attention(torch, case):
    m, *shape, positions = numbers(case)
    yield from attend(torch, 1, m, shape, positions)


@bench("attention_paged")
def attention_paged(torch, case):
    if case.startswith("copy"):
        pages, layers, kv_heads, head_dim = numbers(case)
        size = kv_heads * 64 * head_dim

        def copy():
            # All layers in one tensor, which an index takes at once.
            sides = torch.randn(2 * layers, 2 * pages, size, device="cuda").bfloat16()
            index = torch.arange(0, 2 * pages, 2, device="cuda")
            to = index.flip(0) + 1
            return lambda: sides.index_copy_(1, to, sides.index_select(1, index))

        yield "torch_index_copy", 8 * pages * layers * size, copy
        return
    count, *rest = numbers(case)
    m, *shape, positions = rest if "runs" in case else [1, *rest]
    yield from attend(torch, count, m, shape, positions)


@bench("bmm")
def bmm(torch, case):
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    kind, shape = case.split()
    batch, m, n, k = numbers(shape)
    # PyTorch has no batched i8 product: bf16 stands in, and its i8 product where there is one matrix.
    dtype = dtypes.get(kind, torch.bfloat16)

    def copy():
        a = torch.randn(batch, m, k, device="cuda").to(dtype)
        b = torch.randn(batch, k, n, device="cuda").to(dtype)
        c = torch.empty(batch, m, n, device="cuda", dtype=dtype)
        return lambda: torch.bmm(a, b, out=c)

    size = dtype.itemsize * batch * (m * k + k * n + m * n)
    yield "torch_bmm" if kind in dtypes else "torch_bmm_bf16", size, copy
    if kind not in dtypes and batch == 1:
        yield from cublaslt_int8(torch, m, n, k)


@bench("conv2d")
def conv2d(torch, case):
    kind, rest = case.split(" ", 1)
    n, c, size, k, r, stride, groups = numbers(rest)
    dtype = torch.float32 if kind == "f32" else torch.bfloat16
    form = torch.contiguous_format if case.endswith("nchw") else torch.channels_last

    def copy():
        of = {"device": "cuda", "dtype": dtype}
        x = torch.randn(n, c, size, size, **of).contiguous(memory_format=form)
        w = torch.randn(k, c // groups, r, r, **of).contiguous(memory_format=form)
        padding = 0 if r == stride else r // 2
        return lambda: torch.nn.functional.conv2d(x, w, None, stride, padding, 1, groups)

    elements = n * c * size * size + k * c // groups * r * r + n * k * (-(-size // stride)) ** 2
    yield "cudnn_f32" if kind == "f32" else "cudnn_bf16", elements * dtype.itemsize, copy


@bench("elementwise")
def elementwise(torch, case):
    m, k, dtype, size = rows(torch, case)
    form = case.split()[0]

    def copy():
        a = torch.randn(m, k, device="cuda", dtype=dtype)
        one = torch.ones((), device="cuda", dtype=dtype)
        b = torch.randn(*((m, k) if form == "add_relu" else (k,)), device="cuda", dtype=dtype)
        return {
            "add_relu": lambda: torch.relu(a + b),
            "mul_row": lambda: a * b,
            "affine": lambda: torch.add(one, a, alpha=0.5),
        }[form]

    yield "torch", (3 if form == "add_relu" else 2) * size, copy


@bench("layernorm")
def layernorm(torch, case):
    m, k, dtype, size = rows(torch, case)

    def copy():
        x, w, b = (torch.randn(*s, device="cuda", dtype=dtype) for s in ((m, k), (k,), (k,)))
        return lambda: torch.nn.functional.layer_norm(x, (k,), w, b)

    yield "torch", 2 * size, copy


@bench("pool2d")
def pool2d(torch, case):
    name, shape, layout, _ = case.split()
    n, c, h, w = numbers(shape)
    dtype = element(torch, case)
    f = torch.nn.functional
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    kind, window = name.split("_")
    if kind == "global":
        whole = {"avg": f.adaptive_avg_pool2d, "max": f.adaptive_max_pool2d}[window]

        def function(x):
            return whole(x, 1)

    else:
        pool = {"avg": f.avg_pool2d, "max": f.max_pool2d}[kind]
        kernel, stride, padding = (int(side) for side in re.fullmatch(r"k(\d+)s(\d+)p(\d+)", window).groups())

        def function(x):
            return pool(x, kernel, stride, padding)

    def copy():
        x = torch.randn(n, c, h, w, device="cuda", dtype=dtype).contiguous(memory_format=form)
        return lambda: function(x)

    yield "torch", n * c * h * w * dtype.itemsize, copy


@bench("rmsnorm")
def rmsnorm(torch, case):
    m, k, dtype, size = rows(torch, case)

    def copy():
        x, d, w = (torch.randn(*s, device="cuda", dtype=dtype) for s in ((m, k), (m, k), (k,)))
        return lambda: torch.nn.functional.rms_norm(x.add_(d), (k,), w, 1e-5)

    yield "torch", 4 * size, copy


@bench("softmax")
def softmax(torch, case):
    m, k, dtype, size = rows(torch, case)
    function = torch.log_softmax if case.startswith("log") else torch.softmax

    def copy():
        x = torch.randn(m, k, device="cuda", dtype=dtype)
        return lambda: function(x, 1)

    yield "torch", 2 * size, copy


@bench("sparse")
def sparse(torch, case):
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    if case.startswith("linear"):
        m, n, k, _ = numbers(case)

        def copy():
            w, x = torch.randn(n, k, **bf16), torch.randn(m, k, **bf16)
            return lambda: torch.nn.functional.linear(x, w)

        yield "cublas_dense_bf16", 2 * n * k, copy
    else:
        batch, height, width, channels, n, side, _ = numbers(case)

        def copy():
            last = {"memory_format": torch.channels_last}
            x = torch.randn(batch, channels, height, width, **bf16).to(**last)
            w = torch.randn(n, channels, side, side, **bf16).to(**last)
            return lambda: torch.nn.functional.conv2d(x, w, padding=side // 2)

        yield "cudnn_dense_bf16", 1 << 40, copy


def linear_bf16(torch, m, n, k):
    def copy():
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.nn.functional.linear(x, w)

    return "torch_bf16", 2 * (n * k + m * k + m * n), copy


def random_int8(torch, *shape):
    return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)


def cublaslt_int8(torch, m, n, k):
    """Nothing for shapes that it refuses."""
    if m <= 16 or n % 8 or k % 8:
        return

    def copy():
        w, x = random_int8(torch, n, k).t(), random_int8(torch, m, k)
        return lambda: torch._int_mm(x, w)

    yield "cublaslt_int8", n * k + m * k + 4 * m * n, copy


def triton_w2a8(torch, m, n, k):
    """Ours, in triton_w2a8.py; nothing where Triton is not installed."""
    try:
        import triton_w2a8 as ours
    except ImportError:
        return
    if k % 4:
        return
    ours.check()

    def copy():
        w = torch.randint(0, 256, (n, k // 4), device="cuda", dtype=torch.uint8) & 0xAA
        x, scale = random_int8(torch, m, k), torch.ones(m, device="cuda")
        weight, y = torch.ones(1, device="cuda"), torch.empty(m, n, device="cuda")
        return lambda: ours.w2a8(x, w, scale, weight, y)

    yield "triton_w2a8", n * k // 4 + m * k + 4 * m * n, copy


@bench("w2a8_gemm")
def w2a8_gemm(torch, case):
    m, n, k = numbers(case)
    yield linear_bf16(torch, m, n, k)
    yield from cublaslt_int8(torch, m, n, k)
    yield from triton_w2a8(torch, m, n, k)


@bench("w2a8_gemv")
def w2a8_gemv(torch, case):
    n, k = numbers(case)
    yield linear_bf16(torch, 1, n, k)
    yield from triton_w2a8(torch, 1, n, k)
    if MS_KERNEL and (n, k) in MS_SHAPES:

        def copy():
            w, x = random_int8(torch, n * k // 4), random_int8(torch, k)
            bf16 = {"device": "cuda", "dtype": torch.bfloat16}
            y, scale, weights = torch.empty(n, **bf16), torch.ones(1, **bf16), torch.ones(8, **bf16)
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, w, y, scale, weights)]
            tensors = (x, w, y, scale, weights)

            def call(_keep=tensors):
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                MS_KERNEL.bitlinear_int8xint2(*pointers, 1, n, k, stream)

            return call

        yield "ms_kernel", n * k // 4, copy


def graph_of(torch, calls, launches):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:  # libraries set themselves up outside of the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph


def median_us(torch, graph, launches, replays=30):
    for _ in range(3):
        graph.replay()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(replays)
    ]
    for start, end in pairs:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(s.elapsed_time(e) * 1e3 / launches for s, e in pairs)


def measure(torch, peer, size, copy, cold_mb):
    wanted = -(-cold_mb * 10**6 // max(size, 1))
    calls = [copy() for _ in range(max(2, wanted) if wanted <= 512 else 1)]
    row = {"peer": peer}
    once = median_us(torch, graph_of(torch, calls[:1], 4), 4, 4)
    target = min(512, max(20, int(1000 / once)))
    for regime, chosen in (("cold_us", calls), ("warm_us", calls[:1])):
        if regime == "warm_us" or len(chosen) > 1:
            launches = -(-target // len(chosen)) * len(chosen)
            replays = min(30, max(3, int(100_000 / (once * launches))))
            row[regime] = median_us(torch, graph_of(torch, chosen, launches), launches, replays)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", metavar="BENCH")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--cold-mb", type=int, default=512)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--ms-kernel", metavar="LIBRARY")
    args = parser.parse_args()
    if args.ms_kernel:
        global MS_KERNEL
        MS_KERNEL = ctypes.CDLL(args.ms_kernel)
    try:
        import torch
    except ImportError as error:
        sys.exit(f"peers: {error}; install PyTorch with CUDA")
    if not torch.cuda.is_available():
        sys.exit("peers: this PyTorch sees no GPU")
    torch.cuda.set_device(args.device)
    # Full f32 products, and the fastest algorithm that cuDNN can find.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    rows, measured = [], {}
    for case in args.cases if args.bench in BENCHES else []:
        for peer, size, copy in BENCHES[args.bench](torch, case):
            same = (peer, part(args.bench, case))
            if same not in measured:
                with torch.no_grad():
                    measured[same] = measure(torch, peer, size, copy, args.cold_mb)
                torch.cuda.empty_cache()
            rows.append({"case": case, **measured[same]})
    about = (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}"
    )
    json.dump({"about": about, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
