"""Launches one kernel of a PTX file beside torch: for trying a variant before it has its host side.

    from loader import Kernel, pointer, timed

    kernel = Kernel("sm_90a.ptx", "rmsnorm_f32", max_smem=0)
    args = struct.pack("QQ...", pointer(x), pointer(y), ...)    # the `Args` of the contract, field by field
    kernel((rows,), 256, args, smem=0, pdl=False, cluster=0, cooperative=False)
    print(kernel.resources(), timed([lambda: kernel(...)]))

Nothing is checked: what the contract's `SPEC` states, grid, block, shared memory and cluster, is the caller's to keep.
Loading a file compiles all of its kernels: cut out the one that is wanted.
"""

import ctypes
import struct

import torch

torch.cuda.init()
torch.zeros(1, device="cuda")  # makes the context that the driver calls below use
CUDA = ctypes.CDLL("libcuda.so.1")

JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES = 5, 6
STATIC_SMEM, LOCAL_BYTES, REGISTERS, MAX_DYNAMIC_SMEM, CARVEOUT = 1, 3, 4, 8, 9
COOPERATIVE, CLUSTER, PROGRAMMATIC_SERIALIZATION = 2, 4, 6


def check(code, what):
    if code:
        name = ctypes.c_char_p()
        CUDA.cuGetErrorName(code, ctypes.byref(name))
        raise RuntimeError(f"{what}: {code} {name.value}")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_ubyte * 64)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


def three(sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (ctypes.c_uint * 3)(*sizes, *(1,) * (3 - len(sizes)))


class Kernel:
    """Kernel `symbol` of the PTX or cubin at `path`; a launch takes up to `max_smem` bytes of dynamic shared memory."""

    def __init__(self, path, symbol, max_smem=0):
        self.symbol = symbol
        with open(path, "rb") as file:
            text = file.read() + b"\0"
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), len(log))
        code = CUDA.cuModuleLoadDataEx(ctypes.byref(module), text, 2, options, values)
        check(code, f"loading {path}: {log.value.decode(errors='replace')}")
        self.function = ctypes.c_void_p()
        check(CUDA.cuModuleGetFunction(ctypes.byref(self.function), module, symbol.encode()), symbol)
        if max_smem > 48 * 1024:
            check(CUDA.cuFuncSetAttribute(self.function, MAX_DYNAMIC_SMEM, max_smem), symbol)

    def resources(self):
        """Registers of a thread, local memory of a thread and static shared memory of a block, in bytes."""
        found = []
        for attribute in (REGISTERS, LOCAL_BYTES, STATIC_SMEM):
            value = ctypes.c_int()
            check(CUDA.cuFuncGetAttribute(ctypes.byref(value), attribute, self.function), self.symbol)
            found.append(value.value)
        return tuple(found)

    def all_shared(self):
        """As `LaunchSpec::all_shared`."""
        check(CUDA.cuFuncSetAttribute(self.function, CARVEOUT, 100), self.symbol)

    def __call__(self, grid, block, args, smem=0, pdl=False, cluster=0, cooperative=False):
        """Launches it on torch's stream; `args` are the bytes of its one parameter."""
        room = ctypes.create_string_buffer(len(args) + 64)
        aligned = (ctypes.addressof(room) + 63) & ~63  # tensor maps in front need it
        ctypes.memmove(aligned, args, len(args))
        wanted = []
        if pdl:
            wanted.append((PROGRAMMATIC_SERIALIZATION, struct.pack("i", 1)))
        if cluster:
            wanted.append((CLUSTER, struct.pack("III", cluster, 1, 1)))
        if cooperative:
            wanted.append((COOPERATIVE, struct.pack("i", 1)))
        attributes = (Attribute * 3)()
        for attribute, (number, value) in zip(attributes, wanted):
            attribute.id = number
            ctypes.memmove(attribute.value, value, len(value))
        stream = torch.cuda.current_stream().cuda_stream
        config = Config(three(grid), three(block), smem, stream, attributes, len(wanted))
        parameters = (ctypes.c_void_p * 1)(aligned)
        check(CUDA.cuLaunchKernelEx(ctypes.byref(config), self.function, parameters, None), self.symbol)


def pointer(tensor):
    return tensor.data_ptr()


def timed(calls, repeats=20, rounds=5):
    """Median microseconds of one of `calls`, in a CUDA graph of all of them: one for each copy of the tensors, cold when
    the copies are larger than the cache."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    replays, times = max(1, repeats // len(calls)), []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / replays / len(calls))
    return sorted(times)[len(times) // 2]
