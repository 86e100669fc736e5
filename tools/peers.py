"""What other libraries take for the cases of a benchmark, timed as benches/ times ours; prints JSON.

    python3 tools/peers.py [--cold-mb 512] [--device 0] BENCH CASE ...

BENCH is the name of a benchmark, CASE the name of one of its cases; cases that no peer here can run
give no row. CUDA graphs of about a millisecond, events around each replay, median of 30. Cold: the
calls rotate over copies of all tensors, of `--cold-mb` megabytes together (at least two of them);
warm: one copy. Copies are as many as the benchmarks take: none beyond 512.
"""

import argparse
import json
import re
import statistics
import sys

BENCHES = {}


def bench(name):
    """Registers a generator of `(peer, bytes that one call moves, copy)` for each case of a bench;
    `copy()` makes the tensors of one copy and returns the call on them."""

    def register(function):
        BENCHES[name] = function
        return function

    return register


def numbers(case):
    return [int(n) for n in re.findall(r"\d+", case)]


@bench("w2a8_gemv")
def w2a8_gemv(torch, case):
    n, k = numbers(case)

    def copy():
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(1, k, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.nn.functional.linear(x, w)

    yield "torch_bf16", 2 * n * k, copy


@bench("w2a8_gemm")
def w2a8_gemm(torch, case):
    m, n, k = numbers(case)

    def copy():
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.nn.functional.linear(x, w)

    yield "torch_bf16", 2 * (n * k + m * k + m * n), copy


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


def measure(torch, case, peer, size, copy, cold_mb):
    wanted = -(-cold_mb * 10**6 // max(size, 1))
    calls = [copy() for _ in range(max(2, wanted) if wanted <= 512 else 1)]
    row = {"case": case, "peer": peer}
    once = median_us(torch, graph_of(torch, calls[:1], 4), 4, 4)
    target = min(512, max(20, int(1000 / once)))
    for regime, chosen in (("cold_us", calls), ("warm_us", calls[:1])):
        if regime == "warm_us" or len(chosen) > 1:
            launches = -(-target // len(chosen)) * len(chosen)
            replays = min(30, max(3, int(300_000 / (once * launches))))
            row[regime] = median_us(torch, graph_of(torch, chosen, launches), launches, replays)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", metavar="BENCH")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--cold-mb", type=int, default=512)
    parser.add_argument("--device", type=int, default=0)
    args = parser.parse_args()
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
    rows = []
    for case in args.cases if args.bench in BENCHES else []:
        for peer, size, copy in BENCHES[args.bench](torch, case):
            with torch.no_grad():
                rows.append(measure(torch, case, peer, size, copy, args.cold_mb))
            torch.cuda.empty_cache()
    about = (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}"
    )
    json.dump({"about": about, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
