"""BitNet b1.58 models on NVIDIA GPUs and on the CPU, with the same bits: Python over the C library.

    import bitnet_gpu
    session = bitnet_gpu.Session("models/demo")
    for text in session.stream("fn main() {", max_tokens=32, seed=1):
        print(text, end="")

Layers and products for PyTorch: `bitnet_gpu.torch`. Nothing is compiled here; the library is looked for in
`BITNET_LIBRARY`, beside this file (where `pip install` puts it), and in the `target/release` of the clone that this file is in.
"""

import ctypes
import os
import pathlib
import queue
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Union

__all__ = ["Error", "Generated", "Session", "version"]


class Error(RuntimeError):
    """What the library refused, in its words."""


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("device", ctypes.c_char_p),
        ("context", ctypes.c_size_t),
        ("threads", ctypes.c_size_t),
        ("pool_cap_bytes", ctypes.c_size_t),
        ("head", ctypes.c_int32),
    ]


_HEADS = {"auto": 0, "stored": 1, "int8": 2}


class _Sampling(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("seed", ctypes.c_uint64),
        ("max_tokens", ctypes.c_size_t),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("top_k", ctypes.c_uint32),
        ("ignore_eos", ctypes.c_int32),
        ("stop", ctypes.c_char_p),
    ]


class _Generated(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("prompt_tokens", ctypes.c_size_t),
        ("generated_tokens", ctypes.c_size_t),
        ("prefill_seconds", ctypes.c_double),
        ("decode_seconds", ctypes.c_double),
        ("finish", ctypes.c_int32),
    ]


_ON_TEXT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t
)
_FINISH = ("stop_token", "stop_string", "max_tokens", "context_full", "cancelled")


def _load() -> Any:
    name = "libbitnet_c.so"
    here = pathlib.Path(__file__).resolve().parent
    given = os.environ.get("BITNET_LIBRARY")
    places = [pathlib.Path(given)] if given else [here / name, here.parents[1] / "target/release" / name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise Error(
            f"there is no {name} at {', '.join(map(str, places))}; "
            "try: cargo build --release -p bitnet-capi, or BITNET_LIBRARY=FILE"
        )
    library = ctypes.CDLL(str(found))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    functions = {
        "bitnet_options_default": [ctypes.POINTER(_Options)],
        "bitnet_sampling_default": [ctypes.POINTER(_Sampling)],
        "bitnet_session_open": [ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(pointer)],
        "bitnet_session_device": [pointer, ctypes.c_char_p, size],
        "bitnet_session_generate": [
            pointer, ctypes.c_char_p, size, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Sampling),
            _ON_TEXT, pointer, ctypes.POINTER(_Generated),
        ],
        "bitnet_backend_open": [ctypes.c_char_p, ctypes.POINTER(pointer)],
        "bitnet_backend_describe": [pointer, ctypes.c_char_p, size],
        "bitnet_linear_new": [pointer, pointer, size, size, ctypes.c_float, ctypes.POINTER(pointer)],
        "bitnet_linear_workspace": [pointer, size, ctypes.POINTER(size)],
        "bitnet_linear_forward": [pointer, pointer, ctypes.c_int32, size, pointer, pointer, size, pointer],
    }
    for function, arguments in functions.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = ctypes.c_int
    for function in ("bitnet_session_free", "bitnet_backend_free", "bitnet_linear_free"):
        getattr(library, function).argtypes = [pointer]
        getattr(library, function).restype = None
    for function in ("bitnet_version", "bitnet_last_error"):
        getattr(library, function).argtypes = []
        getattr(library, function).restype = ctypes.c_char_p
    return library


_library = _load()


def check(status: int) -> None:
    """Raises what the last call of this thread failed with."""
    if status != 0:
        words = _library.bitnet_last_error().decode(errors="replace")
        raise ValueError(words) if status == 2 else Error(words)


def version() -> str:
    """The version of the library."""
    return _library.bitnet_version().decode()


def describe(function: Any, handle: Any) -> str:
    """The line that `function` of the library has for a handle."""
    out = ctypes.create_string_buffer(256)
    check(function(handle, out, len(out)))
    return out.value.decode(errors="replace")


def _bytes(what: str, text: str) -> bytes:
    data = text.encode()
    if b"\0" in data:
        raise ValueError(f"{what} holds a zero byte")
    return data


@dataclass(frozen=True)
class Generated:
    """A finished text."""

    text: str
    tokens: List[int]
    finish: str
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float


class Session:
    """A model, its tokenizer and one sequence. Calls from several threads wait for each other."""

    def __init__(
        self, model: Union[str, "os.PathLike[str]"], device: str = "auto", *, context: int = 0, threads: int = 0,
        pool_cap_bytes: int = 0, head: str = "auto",
    ) -> None:
        self._handle = None
        for name, value in (("context", context), ("threads", threads), ("pool_cap_bytes", pool_cap_bytes)):
            if value < 0:
                raise ValueError(f"{name} = {value} is below 0")
        if head not in _HEADS:
            raise ValueError(f"head = {head!r}; auto, stored and int8 are allowed")
        options = _Options()
        check(_library.bitnet_options_default(ctypes.byref(options)))
        options.device = _bytes("device", device)
        options.context, options.threads = context, threads
        options.pool_cap_bytes, options.head = pool_cap_bytes, _HEADS[head]
        handle = ctypes.c_void_p()
        path = _bytes("model", os.fspath(model))
        check(_library.bitnet_session_open(path, ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and _library is not None:
            _library.bitnet_session_free(self._handle)
            self._handle = None

    @property
    def device(self) -> str:
        """One line about the device."""
        return describe(_library.bitnet_session_device, self._handle)

    def generate(
        self, prompt: str, *, on_text: Optional[Callable[[str], Any]] = None, chat: bool = False, system: Optional[str] = None,
        stop: Optional[str] = None, **sampling: Any,
    ) -> Generated:
        """Continues `prompt` (with `chat`: answers it) and returns a `Generated`.

        `on_text(text)` gets the text as it comes; True from it ends it, and what it raises is raised here.
        `sampling`: temperature, top_k, top_p, min_p, repetition_penalty, seed, max_tokens, ignore_eos.
        """
        params = _Sampling()
        check(_library.bitnet_sampling_default(ctypes.byref(params)))
        settings = {field[0] for field in _Sampling._fields_} - {"struct_bytes", "stop"}
        for name, value in sampling.items():
            if name not in settings:
                raise TypeError(f"{name} is no setting; there are {', '.join(sorted(settings))}")
            if name in ("seed", "max_tokens", "top_k") and not 0 <= value < 1 << (32 if name == "top_k" else 64):
                raise ValueError(f"{name} = {value} is out of range")
            setattr(params, name, value)
        if stop is not None:
            params.stop = _bytes("stop", stop)
        pieces, tokens, raised = [], [], []

        def take(_user, token, text, size):
            piece = ctypes.string_at(text, size).decode() if size else ""
            # The tail of a text comes with its last token a second time.
            tokens.append(token)
            pieces.append(piece)
            try:
                return 1 if on_text is not None and piece and on_text(piece) else 0
            except BaseException as error:  # not through C
                raised.append(error)
                return 1

        made = _Generated(struct_bytes=ctypes.sizeof(_Generated))
        data = prompt.encode()
        check(
            _library.bitnet_session_generate(
                self._handle, data, len(data), chat, None if system is None else _bytes("system", system),
                ctypes.byref(params), _ON_TEXT(take), None, ctypes.byref(made),
            )
        )
        if raised:
            raise raised[0]
        return Generated(
            "".join(pieces), tokens[: made.generated_tokens], _FINISH[made.finish], made.prompt_tokens,
            made.prefill_seconds, made.decode_seconds,
        )

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Yields the text of `generate` as it comes. Leaving the loop ends the text."""
        pieces: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        left = threading.Event()

        def take(text):
            pieces.put(text)
            return left.is_set()

        def work():
            try:
                self.generate(prompt, on_text=take, **settings)
                pieces.put(None)
            except BaseException as error:
                pieces.put(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            left.set()
            worker.join()
