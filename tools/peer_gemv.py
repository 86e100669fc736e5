"""PyTorch's bf16 GEMV (cuBLAS), timed as `benches/w2a8_gemv.rs` times ours; prints JSON.

    python3 tools/peer_gemv.py [--cold-mb 512] [--device 0] NxK ...

CUDA graphs of about a millisecond, events around each replay, median of 30. Cold: the calls rotate
over distinct weights of `--cold-mb` megabytes together (at least two of them); warm: one weight.
"""

import argparse
import json
import statistics
import sys


def graph_of(torch, weights, x, launches):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for w in weights[:3]:  # libraries set themselves up outside of the capture
            torch.nn.functional.linear(x, w)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            torch.nn.functional.linear(x, weights[i % len(weights)])
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="+", metavar="NxK")
    parser.add_argument("--cold-mb", type=int, default=512)
    parser.add_argument("--device", type=int, default=0)
    args = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"peer_gemv: {error}; install PyTorch with CUDA")
    if not torch.cuda.is_available():
        sys.exit("peer_gemv: this PyTorch sees no GPU")
    torch.cuda.set_device(args.device)
    rows = []
    for shape in args.shapes:
        n, k = map(int, shape.split("x"))
        copies = max(2, -(-args.cold_mb * 10**6 // (2 * n * k)))
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        x = torch.randn(1, k, device="cuda", dtype=torch.bfloat16)
        us = []
        for chosen in (weights, weights[:1]):
            target = min(512, max(20, int(1000 / (1 + 2 * n * k / 3.5e6))))
            launches = -(-target // len(chosen)) * len(chosen)
            us.append(median_us(torch, graph_of(torch, chosen, x, launches), launches))
        rows.append({"n": n, "k": k, "cold_us": us[0], "warm_us": us[1]})
        del weights
    about = (
        f"torch {torch.__version__} F.linear, bf16, M = 1, CUDA {torch.version.cuda}, "
        f"{torch.cuda.get_device_name()}"
    )
    json.dump({"about": about, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
