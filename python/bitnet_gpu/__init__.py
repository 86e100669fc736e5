"""BitNet b1.58 models on NVIDIA GPUs and on the CPU, with the same bits: Python over the C library.

    import bitnet_gpu
    session = bitnet_gpu.Session("models/demo")
    for text in session.stream("fn main() {", max_tokens=32, seed=1):
        print(text, end="")

Layers and products for PyTorch: `bitnet_gpu.torch`. Nothing is compiled here; the library is looked for in
`BITNET_LIBRARY`, beside this file (where `pip install` puts it), and in the `target/release` of the clone that this file is in.
"""

import ctypes
import itertools
import json
import operator
import os
import pathlib
import queue
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

__all__ = ["Batch", "Error", "Full", "Generated", "Output", "Session", "TokenLogprobs", "version"]


class Error(RuntimeError):
    """What the library refused, in its words."""


class Full(Error):
    """There is no room for a request now: step, and try again when another one has ended."""


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("device", ctypes.c_char_p),
        ("context", ctypes.c_size_t),
        ("threads", ctypes.c_size_t),
        ("pool_cap_bytes", ctypes.c_size_t),
        ("head", ctypes.c_int32),
        ("attention", ctypes.c_int32),
        ("kv", ctypes.c_int32),
        ("weights", ctypes.c_int32),
        ("max_batch", ctypes.c_size_t),
        ("pages", ctypes.c_size_t),
        ("prompt_share", ctypes.c_size_t),
        ("lookup", ctypes.c_size_t),
        ("no_prefix_cache", ctypes.c_int32),
    ]


_NAMED = {
    "head": {"auto": 0, "stored": 1, "int8": 2},
    "attention": {"exact": 0, "fast": 1},
    "kv": {"bf16": 0, "f32": 1, "int8": 2},
    "weights": {"auto": 0, "2bit": 1, "1.6bit": 2},
}


_GRAMMARS = {"json_schema": 1, "regex": 2, "grammar": 3}


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
        ("grammar", ctypes.c_char_p),
        ("grammar_kind", ctypes.c_int32),
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("bias_ids", ctypes.POINTER(ctypes.c_uint32)),
        ("bias", ctypes.POINTER(ctypes.c_float)),
        ("biases", ctypes.c_size_t),
        ("logprobs", ctypes.c_int32),
    ]


# Settings that stand in the struct by another name, or as something else.
_MADE = {"struct_bytes", "stop", "grammar", "grammar_kind", "bias_ids", "bias", "biases", "logprobs"}
_MAX_LOGPROBS = 20


class _Logprobs(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("logprob", ctypes.c_float),
        ("rank", ctypes.c_uint32),
        ("top", ctypes.c_uint32),
        ("top_ids", ctypes.c_uint32 * _MAX_LOGPROBS),
        ("top_logprobs", ctypes.c_float * _MAX_LOGPROBS),
    ]


class _Generated(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("prompt_tokens", ctypes.c_size_t),
        ("cached_tokens", ctypes.c_size_t),
        ("generated_tokens", ctypes.c_size_t),
        ("drafted_tokens", ctypes.c_size_t),
        ("accepted_tokens", ctypes.c_size_t),
        ("prefill_seconds", ctypes.c_double),
        ("decode_seconds", ctypes.c_double),
        ("finish", ctypes.c_int32),
    ]


class _Output(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("request", ctypes.c_uint64),
        ("text", ctypes.POINTER(ctypes.c_char)),
        ("text_bytes", ctypes.c_size_t),
        ("token", ctypes.c_uint32),
        ("finished", ctypes.c_int32),
        ("generated", _Generated),
        ("logprobs", ctypes.POINTER(_Logprobs)),
    ]


_ON_OUTPUT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Output))
_ON_TEXT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t
)
_FINISH = ("stop_token", "stop_string", "max_tokens", "context_full", "cancelled", "grammar", "grammar_limit")


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
        "bitnet_session_logprobs": [pointer, size, ctypes.POINTER(_Logprobs)],
        "bitnet_session_encode": [pointer, ctypes.c_char_p, size, ctypes.c_int, pointer, size, ctypes.POINTER(size)],
        "bitnet_batch_open": [ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(pointer)],
        "bitnet_batch_device": [pointer, ctypes.c_char_p, size],
        "bitnet_batch_add": [
            pointer, ctypes.c_char_p, size, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Sampling),
            ctypes.POINTER(ctypes.c_uint64),
        ],
        "bitnet_batch_remove": [pointer, ctypes.c_uint64],
        "bitnet_batch_len": [pointer, ctypes.POINTER(size)],
        "bitnet_batch_step": [pointer, _ON_OUTPUT, pointer],
        "bitnet_batch_encode": [pointer, ctypes.c_char_p, size, ctypes.c_int, pointer, size, ctypes.POINTER(size)],
        "bitnet_batch_score": [pointer, pointer, pointer, size, pointer, pointer],
        "bitnet_backend_open": [ctypes.c_char_p, ctypes.POINTER(pointer)],
        "bitnet_backend_describe": [pointer, ctypes.c_char_p, size],
        "bitnet_linear_new": [pointer, pointer, size, size, ctypes.c_float, ctypes.POINTER(pointer)],
        "bitnet_linear_workspace": [pointer, size, ctypes.POINTER(size)],
        "bitnet_linear_forward": [pointer, pointer, ctypes.c_int32, size, pointer, pointer, size, pointer],
    }
    for function, arguments in functions.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = ctypes.c_int
    for function in ("bitnet_session_free", "bitnet_batch_free", "bitnet_backend_free", "bitnet_linear_free"):
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
        raise {2: ValueError, 4: Full}.get(status, Error)(words)


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
class TokenLogprobs:
    """What is told of a token, with `logprobs=N`: the natural logarithm of the probability that the model gives it, before any bias, penalty,
    temperature or filter; its rank, 1 for the most likely one; and the N most likely tokens in its place, as pairs of id and log probability."""

    logprob: float
    rank: int
    top: List[Tuple[int, float]]


@dataclass(frozen=True)
class Generated:
    """A finished text; `logprobs` has one for each of `tokens`, if that was asked for."""

    text: str
    tokens: List[int]
    finish: str
    prompt_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    prefill_seconds: float
    decode_seconds: float
    logprobs: List[TokenLogprobs] = field(default_factory=list)


def _options(device: str, numbers: Dict[str, int], names: Dict[str, str]) -> _Options:
    """The library's options."""
    options = _Options()
    check(_library.bitnet_options_default(ctypes.byref(options)))
    options.device = _bytes("device", device)
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"{name} = {number} is below 0")
        setattr(options, name, number)
    for name, value in names.items():
        if value not in _NAMED[name]:
            raise ValueError(f"{name} = {value!r}; allowed: {', '.join(_NAMED[name])}")
        setattr(options, name, _NAMED[name][value])
    return options


def _sampling(settings: Dict[str, Any], stop: Optional[str]) -> _Sampling:
    """The library's sampling parameters."""
    params = _Sampling()
    check(_library.bitnet_sampling_default(ctypes.byref(params)))
    grammars = {name: value for name in _GRAMMARS if (value := settings.pop(name, None)) is not None}
    if len(grammars) > 1:
        raise ValueError(f"{' and '.join(grammars)} say different things; give one")
    for name, value in grammars.items():
        params.grammar = _bytes(name, value if isinstance(value, str) else json.dumps(value))
        params.grammar_kind = _GRAMMARS[name]
    _set_bias(params, settings.pop("logit_bias", None))
    logprobs = settings.pop("logprobs", None)
    if logprobs is not None:
        if not 0 <= operator.index(logprobs) <= _MAX_LOGPROBS:
            raise ValueError(f"logprobs = {logprobs} is out of range; 0 to {_MAX_LOGPROBS} are allowed")
        params.logprobs = logprobs
    known = {name for name, _ in _Sampling._fields_} - _MADE
    for name, value in settings.items():
        if name not in known:
            names = known | _GRAMMARS.keys() | {"logit_bias", "logprobs"}
            raise TypeError(f"{name} is no setting; there are {', '.join(sorted(names))}")
        if name in ("seed", "max_tokens", "top_k") and not 0 <= value < 1 << (32 if name == "top_k" else 64):
            raise ValueError(f"{name} = {value} is out of range")
        setattr(params, name, value)
    if stop is not None:
        params.stop = _bytes("stop", stop)
    return params


def _set_bias(params: _Sampling, bias: Optional[Mapping[int, float]]) -> None:
    """What is added to logits, which the struct keeps."""
    if not bias:
        return
    ids = [operator.index(token) for token in bias]
    params.bias_ids = _ids("logit_bias", ids)
    params.bias = (ctypes.c_float * len(ids))(*bias.values())
    params.biases = len(ids)


def _ids(what: str, ids: Sequence[int]) -> Any:
    """Ids of tokens as the library takes them."""
    for token in ids:
        if not 0 <= token < 1 << 32:
            raise ValueError(f"{what}: {token} is no id of a token")
    return (ctypes.c_uint32 * len(ids))(*ids)


def _encode(function: Any, handle: Any, text: str, bos: bool) -> List[int]:
    """The ids that `function` of the library has of a text: seldom more than its bytes."""
    data, count = text.encode(), ctypes.c_size_t()
    while True:
        room = max(len(data) + 1, count.value)
        ids = (ctypes.c_uint32 * room)()
        check(function(handle, data, len(data), bos, ids, room, ctypes.byref(count)))
        if count.value <= room:
            return ids[: count.value]


def _told(of: _Logprobs) -> TokenLogprobs:
    return TokenLogprobs(of.logprob, of.rank, list(zip(of.top_ids[: of.top], of.top_logprobs[: of.top])))


def _generated(pieces: List[str], tokens: List[int], made: _Generated, logprobs: List[TokenLogprobs]) -> Generated:
    # The tail of a text may come with its last token a second time.
    return Generated(
        "".join(pieces), tokens[: made.generated_tokens], _FINISH[made.finish], made.prompt_tokens, made.cached_tokens,
        made.drafted_tokens, made.accepted_tokens, made.prefill_seconds, made.decode_seconds, logprobs,
    )


@dataclass(frozen=True)
class Output:
    """What a step gave a request: its number, the next token, the text that became complete, at its end all of it, and what is told of the token."""

    request: int
    token: int
    text: str
    finished: Optional[Generated]
    logprobs: Optional[TokenLogprobs] = None


class Session:
    """A model, its tokenizer and one sequence. Calls from several threads wait for each other.

    `attention="fast"` is on tensor cores, with a stated error; `head`, `weights` and `kv` as the options of the program.
    Up to `lookup` tokens are guessed at once, by what stood behind the last ones before, and checked together: the same text, sooner where it repeats its
    prompt or itself.
    """

    def __init__(
        self, model: Union[str, "os.PathLike[str]"], device: str = "auto", *, context: int = 0, threads: int = 0,
        pool_cap_bytes: int = 0, head: str = "auto", attention: str = "exact", kv: str = "bf16", weights: str = "auto", lookup: int = 0,
    ) -> None:
        self._handle = None
        numbers = {"context": context, "threads": threads, "pool_cap_bytes": pool_cap_bytes, "lookup": lookup}
        options = _options(device, numbers, {"head": head, "attention": attention, "kv": kv, "weights": weights})
        handle = ctypes.c_void_p()
        path = _bytes("model", os.fspath(model))
        check(_library.bitnet_session_open(path, ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle
        # From a text until what is told of it was read.
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and _library is not None:
            _library.bitnet_session_free(self._handle)
            self._handle = None

    @property
    def device(self) -> str:
        """One line about the device."""
        return describe(_library.bitnet_session_device, self._handle)

    def encode(self, text: str, *, bos: bool = True) -> List[int]:
        """The ids of a text; with `bos` as those of a prompt, behind the model's BOS token if it wants one."""
        return _encode(_library.bitnet_session_encode, self._handle, text, bos)

    def generate(
        self, prompt: str, *, on_text: Optional[Callable[[str], Any]] = None, chat: bool = False, system: Optional[str] = None,
        stop: Optional[str] = None, **sampling: Any,
    ) -> Generated:
        """Continues `prompt` (with `chat`: answers it) and returns a `Generated`.

        `on_text(text)` gets the text as it comes; True from it ends it, and what it raises is raised here.
        `sampling`: temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias ({id: what is
        added to its logit}), seed, max_tokens, ignore_eos; logprobs=N, for a `TokenLogprobs` of each token with N others of its place; and what the text
        has to be: json_schema (a dict or JSON), regex, or grammar (Lark).
        """
        params = _sampling(sampling, stop)
        pieces, tokens, raised = [], [], []

        def take(_user, token, text, size):
            piece = ctypes.string_at(text, size).decode() if size else ""
            tokens.append(token)
            pieces.append(piece)
            try:
                return 1 if on_text is not None and piece and on_text(piece) else 0
            except BaseException as error:  # not through C
                raised.append(error)
                return 1

        made = _Generated(struct_bytes=ctypes.sizeof(_Generated))
        data = prompt.encode()
        with self._lock:
            check(
                _library.bitnet_session_generate(
                    self._handle, data, len(data), chat, None if system is None else _bytes("system", system),
                    ctypes.byref(params), _ON_TEXT(take), None, ctypes.byref(made),
                )
            )
            if raised:
                raise raised[0]
            logprobs = [self._logprobs(index) for index in range(made.generated_tokens)] if params.logprobs >= 0 else []
        return _generated(pieces, tokens, made, logprobs)

    def _logprobs(self, index: int) -> TokenLogprobs:
        told = _Logprobs(struct_bytes=ctypes.sizeof(_Logprobs))
        check(_library.bitnet_session_logprobs(self._handle, index, ctypes.byref(told)))
        return _told(told)

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


class Batch:
    """A model and requests that come and go between steps, on one device or on several GPUs (`device="cuda:0,1"`, `"cuda:all"`).

    Each request gives the text that it gives alone. `max_batch` run at once on each device (0: 32) and share `pages` of 64
    positions (0: enough for as many contexts). Up to `prompt_share` tokens of prompts run with a step (0: 768), and a prompt that begins
    like an earlier text takes over what was computed of that, unless `prefix_cache` is False. The other settings as of `Session`.
    """

    def __init__(
        self, model: Union[str, "os.PathLike[str]"], device: str = "auto", *, max_batch: int = 0, pages: int = 0, prompt_share: int = 0,
        prefix_cache: bool = True, context: int = 0, threads: int = 0, pool_cap_bytes: int = 0, head: str = "auto", attention: str = "exact",
        kv: str = "bf16", weights: str = "auto", lookup: int = 0,
    ) -> None:
        self._handle = None
        numbers = {
            "max_batch": max_batch, "pages": pages, "prompt_share": prompt_share, "no_prefix_cache": not prefix_cache, "context": context,
            "threads": threads, "pool_cap_bytes": pool_cap_bytes, "lookup": lookup,
        }
        options = _options(device, numbers, {"head": head, "attention": attention, "kv": kv, "weights": weights})
        handle = ctypes.c_void_p()
        path = _bytes("model", os.fspath(model))
        check(_library.bitnet_batch_open(path, ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle
        # One thread at a time; the texts of the requests so far.
        self._lock = threading.RLock()
        self._texts: Dict[int, Tuple[List[str], List[int], List[TokenLogprobs]]] = {}

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and _library is not None:
            _library.bitnet_batch_free(self._handle)
            self._handle = None

    def __len__(self) -> int:
        count = ctypes.c_size_t()
        check(_library.bitnet_batch_len(self._handle, ctypes.byref(count)))
        return count.value

    @property
    def device(self) -> str:
        """One line about the devices."""
        return describe(_library.bitnet_batch_device, self._handle)

    def add(
        self, prompt: str, *, chat: bool = False, system: Optional[str] = None, stop: Optional[str] = None, **sampling: Any
    ) -> int:
        """Adds a request, whose prompt runs in the steps that follow, and returns its number; raises `Full` while others have
        the room. Settings as of `Session.generate`."""
        params, data, request = _sampling(sampling, stop), prompt.encode(), ctypes.c_uint64()
        with self._lock:
            check(
                _library.bitnet_batch_add(
                    self._handle, data, len(data), chat, None if system is None else _bytes("system", system),
                    ctypes.byref(params), ctypes.byref(request),
                )
            )
            self._texts[request.value] = [], [], []
        return request.value

    def encode(self, text: str, *, bos: bool = True) -> List[int]:
        """The ids of a text; with `bos` as those of a prompt, behind the model's BOS token if it wants one."""
        return _encode(_library.bitnet_batch_encode, self._handle, text, bos)

    def score(self, texts: Sequence[Union[str, Sequence[int]]]) -> List[List[float]]:
        """How well the model knows each of `texts`, which are texts or ids: the natural logarithms of the probabilities of its tokens but the
        first, each behind those before it. A text is encoded as a prompt is. Raises `Full` while requests are under way."""
        if isinstance(texts, (str, bytes)):
            raise TypeError("score takes a list of texts; put this one into a list")
        encoded = [self.encode(text) if isinstance(text, str) else [operator.index(token) for token in text] for text in texts]
        lengths = [len(ids) for ids in encoded]
        ids = _ids("score", [token for ids in encoded for token in ids])
        logprobs = (ctypes.c_float * sum(max(length - 1, 0) for length in lengths))()
        with self._lock:
            lengths_given = (ctypes.c_size_t * len(lengths))(*lengths)
            check(_library.bitnet_batch_score(self._handle, ids, lengths_given, len(lengths), logprobs, None))
        found = iter(logprobs)
        return [list(itertools.islice(found, length - 1)) for length in lengths]

    def remove(self, request: int) -> None:
        """Takes a request out before its end, if it is still there."""
        if not 0 <= request < 1 << 64:
            raise ValueError(f"request = {request} is no number of a request")
        with self._lock:
            check(_library.bitnet_batch_remove(self._handle, request))
            self._texts.pop(request, None)

    def step(self) -> List[Output]:
        """Gives requests their next tokens: none while a prompt runs or a grammar is being
        followed. After an `Error` all requests are gone."""
        outputs: List[Output] = []

        def take(_user: Any, given: Any) -> None:
            output = given.contents
            piece = ctypes.string_at(output.text, output.text_bytes).decode() if output.text_bytes else ""
            told = _told(output.logprobs.contents) if output.logprobs else None
            pieces, tokens, logprobs = self._texts[output.request]
            pieces.append(piece)
            tokens.append(output.token)
            if told is not None:
                logprobs.append(told)
            finished = _generated(pieces, tokens, output.generated, logprobs) if output.finished else None
            outputs.append(Output(output.request, output.token, piece, finished, told))

        with self._lock:
            try:
                check(_library.bitnet_batch_step(self._handle, _ON_OUTPUT(take), None))
            except Error:
                self._texts.clear()
                raise
            for output in outputs:
                if output.finished is not None:
                    del self._texts[output.request]
        return outputs

    def generate(self, prompts: Sequence[str], *, on_output: Optional[Callable[[int, Output], Any]] = None, **settings: Any) -> List[Generated]:
        """Continues each of `prompts`, as many at once as there is room for, and returns the texts in the same order.

        `on_output(index, output)` sees every output with the index of its prompt. The settings are those of `add`, for all. What
        raises takes these requests out; others run along, and their outputs are lost.
        """
        waiting = list(range(len(prompts)))[::-1]
        running: Dict[int, int] = {}
        texts: List[Optional[Generated]] = [None] * len(prompts)
        with self._lock:
            try:
                while waiting or running:
                    while waiting:
                        try:
                            running[self.add(prompts[waiting[-1]], **settings)] = waiting[-1]
                        except Full:
                            break
                        waiting.pop()
                    for output in self.step():
                        index = running.get(output.request)
                        if index is None:
                            continue
                        if output.finished is not None:
                            texts[index] = output.finished
                            del running[output.request]
                        if on_output is not None:
                            on_output(index, output)
            finally:
                for request in running:
                    self.remove(request)
        return [text for text in texts if text is not None]
