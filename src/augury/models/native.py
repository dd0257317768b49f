"""The compiled forward: binds ``native.c``, packs weights, owns the cache. For x86 Linux with AVX-512 or AVX2.

The C source is compiled on first use by the system's C compiler and kept in the user's cache directory. All
sizes are checked here before each call; C allocates nothing and trusts what it is given.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
import os
import platform
import shlex
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from augury.errors import InputError, ModelError
from augury.models.config import BlockConfig
from augury.models.forward import GUESS_ROWS, Ride, Segment, Short, checked_layers, checked_taps
from augury.models.machine import own_folder, processor
from augury.tree import FloatArray

MAX_ROWS = 256
"""Rows of one forward over all its segments; longer prompts go in chunks."""

PHASES = ("rows", "qkv", "heads", "attention", "o", "gate_up", "down", "head")
"""Parts of a forward whose time is kept; "rows" is embedding, norms and residual, "heads" rotation and cache."""

LANES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType({
    "AVX-512 bf16": (("avx512f", "avx512bw", "avx512vl", "avx512_bf16"), ()),
    "AVX-512": (("avx512f", "avx512bw", "avx512vl"), ("-mno-avx512bf16",)),
    "AVX2": (("avx2", "fma"), ("-mno-avx512f",)),
})  # fmt: skip
"""Kinds of registers the kernel is written for, best first: what the CPU must have, what the compiler is told."""

_SOURCES = [
    Path(__file__).with_name(name) for name in ("native.c", "lowbits.h", "sharpen.h", "lanes512.h", "lanes256.h")
]
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-std=gnu11", "-shared", "-fPIC", "-pthread")
_LANES, _BLOCK, _GROUP, _BINS = 16, 32, 12, 64  # as in native.c
_NEAR, _NEAREST = 8.0, 512  # logits in fewer bits that are so near the greatest are computed anew, so many at most


# ------------------------------------------------------------------------------------------------- building


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _compile(to: Path, flags: Sequence[str]) -> None:
    """Write the shared library atomically, so that processes starting together never load half a file."""
    part = to.with_name(f"{to.name}.{os.getpid()}")
    try:
        command = [*_compiler(), *flags, str(_SOURCES[0]), "-o", str(part), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            lines = [x for x in done.stderr.splitlines() if "error" in x] or [f"exit status {done.returncode}"]
            raise ModelError(f"{command[0]} could not compile {_SOURCES[0].name}: {lines[0]}")
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def _build(flags: Sequence[str]) -> ctypes.CDLL:
    """Load the library, compiling it unless this source, compiler and CPU were met before."""
    try:
        version = subprocess.run([*_compiler(), "--version"], capture_output=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        raise ModelError(f"no working C compiler: {_compiler()[0]!r} (set CC to choose one)") from None
    about = [" ".join(flags).encode(), version, " ".join(sorted(processor().flags)).encode()]
    parts = [*(source.read_bytes() for source in _SOURCES), *about]
    name = f"native-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}.so"
    folder = own_folder()
    if folder is not None:
        if not (folder / name).exists():
            _compile(folder / name, flags)
        return ctypes.CDLL(str(folder / name))
    with tempfile.TemporaryDirectory() as private:  # a loaded library stays loaded when its file is gone
        _compile(Path(private) / name, flags)
        return ctypes.CDLL(str(Path(private) / name))


def best_lanes() -> str | None:
    """The best kind of registers that this CPU has, of ``LANES``."""
    flags = processor().flags
    return next((kind for kind, (needed, _) in LANES.items() if flags.issuperset(needed)), None)


def chosen_lanes() -> str | None:
    """The kind that ``AUGURY_NATIVE`` names, else the best: machines that are to give the same bits multiply alike."""
    return os.environ.get("AUGURY_NATIVE") or best_lanes()


def _library(lanes: str | None = None) -> ctypes.CDLL | str:
    """The library for a kind of registers (default: the chosen one), or in one line why there is none."""
    return _built(lanes or chosen_lanes())


@functools.cache
def _built(kind: str | None) -> ctypes.CDLL | str:
    """The library with its signatures."""
    if kind == "0":
        return "switched off by AUGURY_NATIVE=0"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"needs Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    if kind is None:
        return "the CPU has no AVX-512 or AVX2"
    if kind not in LANES:
        return f"AUGURY_NATIVE is {kind}, and must be 0 or one of: {', '.join(LANES)}"
    if not processor().flags.issuperset(LANES[kind][0]):
        return f"the CPU has no {kind}"
    try:
        library = _build([*_FLAGS, *LANES[kind][1]])
    except (ModelError, OSError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]
    library.augury_lanes.restype = ctypes.c_char_p
    library.augury_pool_new.argtypes = [ctypes.c_int]
    library.augury_pool_new.restype = ctypes.c_void_p
    library.augury_pool_free.argtypes = [ctypes.c_void_p]
    library.augury_pool_free.restype = None
    library.augury_forward.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Model)]
    library.augury_forward.restype = None
    library.augury_move.argtypes = [
        ctypes.POINTER(_Model),
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
    ]
    library.augury_move.restype = None
    library.augury_low_bits.argtypes = [_P, _I, _I, _I, _P]
    library.augury_low_bits.restype = None
    library.augury_huge_pages.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.augury_huge_pages.restype = None
    library.augury_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.augury_read.restype = ctypes.c_float
    library.augury_multiply.argtypes = [ctypes.c_int64]
    library.augury_multiply.restype = ctypes.c_int64
    return library


def native_available(lanes: str | None = None) -> str | None:
    """None when the compiled forward can run here, else the reason in one line. Compiles on first use."""
    found = _library(lanes)
    return found if isinstance(found, str) else None


def floors(threads: int, megabytes: int = 256) -> tuple[float, float]:
    """What this machine can do at best: (GB/s that so many threads read, G multiply-adds/s that they do).

    Both are the best of some tries with the kernel's own registers and prefetching; they need ``native_available``.
    """
    library = _library()
    assert not isinstance(library, str)
    parts = [_zeros((megabytes * 1_000_000 // threads,), np.uint8, align=1 << 21) for _ in range(threads)]
    for part in parts:
        library.augury_huge_pages(part.ctypes.data, part.nbytes)
        part += np.uint8(1)  # pages that were never written share one that is always in the cache

    def best(work: Callable[[int], object]) -> float:
        seconds = math.inf
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(8):
                begin = time.perf_counter()
                list(pool.map(work, range(threads)))
                seconds = min(seconds, time.perf_counter() - begin)
        return seconds

    read = best(lambda t: library.augury_read(parts[t].ctypes.data, parts[t].nbytes))
    times = 2_000_000
    multiply = best(lambda _: library.augury_multiply(times))
    return sum(p.nbytes for p in parts) / read / 1e9, threads * library.augury_multiply(times) / multiply / 1e9


def default_threads() -> int:
    """Physical cores this process may use, a container's quota included."""
    allowed = os.sched_getaffinity(0)
    cores: set[tuple[str, str]] = set()
    entry: dict[str, str] = {}
    for line in [*Path("/proc/cpuinfo").read_text().splitlines(), ""]:
        key, _, value = line.partition(":")
        if key.strip():
            entry[key.strip()] = value.strip()
        elif entry:
            if int(entry.get("processor", -1)) in allowed:
                cores.add((entry.get("physical id", "0"), entry.get("core id", entry.get("processor", "0"))))
            entry = {}
    threads = len(cores) or len(allowed)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        threads = min(threads, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        pass
    return threads


# ------------------------------------------------------------------------------- what C is given, as in native.c

_P = ctypes.c_void_p
_I = ctypes.c_int64
_LAYER_POINTERS = (
    "pair_norm",
    "attn_norm",
    "q_norm",
    "k_norm",
    "post_attn_norm",
    "mlp_norm",
    "post_mlp_norm",
    "qkv_bias",
    "o_bias",
    "gate_up_bias",
    "down_bias",
    "cos",
    "sin",
    "keys",
    "values",
)


class _Layer(ctypes.Structure):
    _fields_ = [*((x, _P) for x in _LAYER_POINTERS), ("rotated", _I), ("window", _I)]


class _Model(ctypes.Structure):
    _fields_ = [
        *(
            (x, _I)
            for x in (
                "layers hidden width heads kv_heads head_dim head_pad value_pad inner qkv_width vocab_pad "
                "capacity slot_keys slot_values threads gelu"
            ).split()
        ),
        *((x, ctypes.c_float) for x in "eps attn_scale attn_softcap logit_softcap embed_scale near".split()),
        *((x, _P) for x in "embed final_norm layer weights".split()),
        ("bits", _I),
        ("head_rows", _P),
        ("vocab", _I),
        ("nearest", _I),
        ("greatest", _P),
        ("bins", _P),
        ("candidates", _P),
        ("order", _P),
        ("used", _I),
        ("tapped", _P),
        ("tap_of", _P),
        ("taps", _I),
        ("fused", _I),
        ("qkv_depth", _I),
        *((x, _P) for x in "residual inputs inner_inputs outputs scores logits hidden_out".split()),
        ("score_floats", _I),
        *((x, _P) for x in "spans group_start group_rows run".split()),
        *((x, _I) for x in "rows segments span_count logit_rows".split()),
        ("given", _P),
        ("fuse", _I),
        *((x, _P) for x in "tokens parents depths segment_of segment".split()),
        ("seconds", ctypes.c_double * len(PHASES)),
    ]


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _zeros(shape: tuple[int, ...], dtype: npt.DTypeLike, align: int = 64) -> npt.NDArray[Any]:
    """Zeros whose first byte lies at a multiple of ``align``; pages that are never touched cost no memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size].view(dtype).reshape(shape)


def _padded(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """``x`` with zeros appended on each axis up to ``shape``."""
    if x.shape == shape:
        return x
    out = x.new_zeros(shape)
    out[tuple(slice(n) for n in x.shape)] = x
    return out


def _blocks(weight: torch.Tensor) -> npt.NDArray[np.uint16]:
    """[n, k] with n a multiple of 32 -> u16[n/32, k, 32], each line of 32 outputs in pair order."""
    n, k = weight.shape
    bits = weight.to(torch.bfloat16).contiguous().view(torch.int16)
    pairs = bits.view(n // _BLOCK, 2, _LANES, k).permute(0, 3, 2, 1).contiguous()
    return pairs.view(n // _BLOCK, k, _BLOCK).numpy().view(np.uint16)


class _Stretch:
    """Each thread's share of all linears in one stretch of memory, in the order in which a forward reads it.

    Args:
        library: asks for huge pages.
        sizes: bytes, [linear][thread].

    Attributes:
        memory: u8, all of it.
        parts: [linear][thread], views of it.
        addresses: u64[linear, thread] of the parts.
    """

    def __init__(self, library: ctypes.CDLL, sizes: Sequence[Sequence[int]]) -> None:
        table = np.array(sizes, np.int64)
        ends = np.cumsum(table.T).reshape(table.T.shape).T
        self.memory = _zeros((int(table.sum()),), np.uint8, align=1 << 21)
        library.augury_huge_pages(self.memory.ctypes.data, self.memory.nbytes)
        self.parts = [
            [self.memory[end - size : end] for size, end in zip(row, until, strict=True)]
            for row, until in ((sizes[i], ends[i].tolist()) for i in range(len(sizes)))
        ]
        self.addresses = np.ascontiguousarray(self.memory.ctypes.data + ends - table, np.uint64)


class _Team:
    """The threads that compute; one model and the heads that ride on it share them."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library, self._threads = library, threads
        self._pool, self._owner = 0, -1
        self._start()

    @property
    def pool(self) -> int:
        """What C knows it by."""
        if os.getpid() != self._owner:  # in a forked child the threads of the parent do not exist
            self._start()
        return self._pool

    def _start(self) -> None:
        pool: int | None = self._library.augury_pool_new(self._threads)
        if not pool:
            raise ModelError(f"could not start {self._threads} threads; ask for fewer")
        self._pool, self._owner = pool, os.getpid()
        weakref.finalize(self, _free, self._library, pool, self._owner).atexit = False


def _free(library: ctypes.CDLL, pool: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has no such threads to join
        library.augury_pool_free(pool)


# ---------------------------------------------------------------------------------------------- the forward


class NativeForward:
    """One loaded model behind the ``Forward`` protocol; every row has the same bits whatever surrounds it.

    Args:
        config: the block's switches.
        weights: tensors named as in ``models/config.py``, any float dtype; linears and embedding are kept as
            bfloat16, norms and biases as float32. Nothing of ``weights`` but the embedding stays referenced.
        slots: caches held.
        capacity: cache rows of each: the context and one forward's rows behind it.
        threads: CPU threads; by default one for each physical core this process may use.
        lanes: of ``LANES``; by default the best this CPU has.
        beside: whose threads compute this one too, for a draft head; ``threads`` and ``lanes`` are then its.

    Raises:
        ModelError: the compiled forward cannot run here, or a weight has an unexpected shape.
        InputError: a size is out of range.
    """

    exact = True
    max_rows = MAX_ROWS
    short_bits = (16, 8, 4)

    def __init__(
        self,
        config: BlockConfig,
        weights: Mapping[str, torch.Tensor],
        slots: int,
        capacity: int,
        threads: int | None = None,
        lanes: str | None = None,
        beside: NativeForward | None = None,
    ) -> None:
        library: ctypes.CDLL | str = beside._library if beside else _library(lanes)
        if isinstance(library, str):
            raise ModelError(f"the native forward is not available: {library}")
        if slots < 1 or capacity < 1:
            raise InputError(f"slots and capacity must be at least 1, got {slots} and {capacity}")
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        if config.head_dim > 512 or config.heads % config.kv_heads:
            raise ModelError(
                f"heads of dimension {config.head_dim} (limit 512), {config.heads} over {config.kv_heads} kv heads "
                "(must divide) are not run natively"
            )
        self.name = f"native bf16 ({library.augury_lanes().decode()})"
        self.config = config
        self.threads: int = beside.threads if beside else threads or default_threads()
        self.slots = slots
        self.capacity = capacity
        self._library: ctypes.CDLL = library
        self._keep: list[Any] = []  # what C holds pointers to
        self._model = self._last = _Model()
        self._sizes()
        self._check(weights)
        self._load(weights)
        self._make_cache()
        self._make_scratch()
        self._team: _Team = beside._team if beside else _Team(library, self.threads)
        self.taps: tuple[int, ...] = ()

    # ---- construction

    def _sizes(self) -> None:
        c, m = self.config, self._model
        m.layers, m.hidden, m.width = c.layers, c.hidden_size, _up(c.hidden_size, _BLOCK)
        m.heads, m.kv_heads, m.head_dim = c.heads, c.kv_heads, c.head_dim
        m.head_pad, m.value_pad = _up(c.head_dim, _LANES), _up(c.head_dim, _BLOCK)
        m.inner = _up(c.intermediate_size, _LANES)
        m.qkv_width = _up((c.heads + 2 * c.kv_heads) * m.head_pad, _BLOCK)
        m.vocab_pad = _up(c.outputs, _BLOCK)
        m.fused, m.qkv_depth = _up(c.fused * c.hidden_size, _LANES), m.width * (2 if c.fused else 1)
        m.capacity, m.threads, m.gelu = _up(self.capacity, _BLOCK), self.threads, c.activation == "gelu_tanh"
        m.slot_keys = c.layers * c.kv_heads * m.capacity * m.head_pad
        m.slot_values = c.layers * c.kv_heads * m.capacity * m.value_pad
        m.eps, m.attn_scale, m.attn_softcap = c.norm_eps, c.attn_scale, c.attn_softcap
        m.logit_softcap, m.embed_scale = c.logit_softcap, c.embed_scale

    def _check(self, weights: Mapping[str, torch.Tensor]) -> None:
        from augury.models.weights import Weights, shapes

        c, n = self.config, self.config.head_dim
        # Files know the shapes of what they hold: reading a quantised weight to see its shape would unpack it.
        held = weights.shapes if isinstance(weights, Weights) else {name: tuple(w.shape) for name, w in weights.items()}
        for name, shape in shapes(c).items():
            if name not in held:
                raise ModelError(f"weight {name} {list(shape)} is missing")
            if held[name] != shape:
                raise ModelError(f"weight {name} is {list(held[name])}, expected {list(shape)}")
        for rope in c.rope_tables:
            if rope.cos.shape != rope.sin.shape or len(rope.cos) < c.context or rope.cos.shape[1] * 2 > n:
                raise ModelError(
                    f"a rope table is {list(rope.cos.shape)}, expected [{c.context}, at most {n // 2}], cos as sin"
                )
        if len(c.windows) != c.layers or len(c.ropes) != c.layers:
            raise ModelError(f"windows and ropes need {c.layers} entries, got {len(c.windows)} and {len(c.ropes)}")

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Pack all linears into one stretch of memory, thread after thread, each in the order of a forward."""
        c, m = self.config, self._model
        layer_shapes = [
            (m.qkv_width // _BLOCK, m.qkv_depth),
            (m.width // _BLOCK, c.heads * m.head_pad),
            (m.inner // _LANES, m.width),
            (m.width // _BLOCK, m.inner),
        ]
        self._linears = [*layer_shapes * c.layers, (m.vocab_pad // _BLOCK, m.width)]  # blocks of 32 outputs, inputs
        if c.fused:
            self._linears.append((m.width // _BLOCK, m.fused))
        self._weights = self._stretch(16)
        for op, (_, depth) in enumerate(self._linears):
            packed, done = _blocks(self._linear(weights, op)), 0
            for part in self._weights.parts[op]:
                lines = part.view(np.uint16).reshape(-1, depth, _BLOCK)
                lines[:] = packed[done : done + len(lines)]
                done += len(lines)
        self._head = self._weights.parts[4 * c.layers]
        self.weight_bytes = self._weights.memory.nbytes
        """Bytes of packed weights that one forward reads."""
        m.weights, m.bits = self._weights.addresses.ctypes.data, 16
        self._low = {16: self._weights}
        self.embed = weights["embed"].to(torch.bfloat16).contiguous()
        self._embed_bits = self.embed.view(torch.int16).numpy().view(np.uint16)
        m.embed = self.embed.data_ptr()
        self._head_rows = self._embed_bits if c.tied else None  # [V, d] in natural order, made when it is needed
        self.final_norm = weights["final_norm"].float()
        m.final_norm = self._floats(self.final_norm, m.width)
        self._ropes = [
            [self._pointer(np.ascontiguousarray(x, np.float32)) for x in (rope.cos, rope.sin)] for rope in c.rope_tables
        ]
        self._layers = (_Layer * c.layers)(*(self._layer(weights, i) for i in range(c.layers)))
        m.layer = ctypes.addressof(self._layers)
        self._all_layers = np.arange(c.layers)
        m.order, m.used = self._all_layers.ctypes.data, c.layers

    def _stretch(self, bits: int) -> _Stretch:
        """Room for all linears in so many bits a weight."""
        sizes = []
        for blocks, depth in self._linears:
            one = 2 * depth * _BLOCK if bits == 16 else 4 * (_BLOCK + -(-depth // _BLOCK) * _LANES + depth * bits)
            cuts = [blocks * t // self.threads for t in range(self.threads + 1)]
            sizes.append([(b - a) * one for a, b in itertools.pairwise(cuts)])
        return _Stretch(self._library, sizes)

    def _linear(self, weights: Mapping[str, torch.Tensor], op: int) -> torch.Tensor:
        """Weights of the op-th linear of a forward, [outputs, inputs] padded and in the order C expects."""
        c, m = self.config, self._model
        i, kind = divmod(op, 4)
        if i == c.layers and kind:
            return _padded(weights["fuse"], m.width, m.fused)
        if i == c.layers:
            return _padded(weights["embed" if c.tied else "head"], m.vocab_pad, m.width)
        if kind == 0:
            heads = weights[f"layers.{i}.qkv"].reshape(-1, c.head_dim, m.qkv_depth // m.width, c.hidden_size)
            padded = _padded(heads, len(heads), m.head_pad, m.qkv_depth // m.width, m.width)
            return _padded(padded.reshape(-1, m.qkv_depth), m.qkv_width, m.qkv_depth)
        if kind == 1:
            heads = weights[f"layers.{i}.o"].reshape(c.hidden_size, c.heads, c.head_dim)
            return _padded(heads, m.width, c.heads, m.head_pad).reshape(m.width, -1)
        if kind == 2:
            pair = weights[f"layers.{i}.gate_up"].reshape(2, c.intermediate_size, c.hidden_size)
            blocks = _padded(pair, 2, m.inner, m.width).reshape(2, -1, _LANES, m.width)
            return blocks.transpose(0, 1).reshape(2 * m.inner, m.width)
        return _padded(weights[f"layers.{i}.down"], m.width, m.inner)

    def _layer(self, weights: Mapping[str, torch.Tensor], i: int) -> _Layer:
        c, m, out = self.config, self._model, _Layer()
        given = {k: weights[f"layers.{i}.{k}"] for k in _LAYER_POINTERS if f"layers.{i}.{k}" in weights}
        if c.fused:
            out.pair_norm = self._floats(given["pair_norm"], m.width)
        out.attn_norm = self._floats(given["attn_norm"], m.width)
        out.mlp_norm = self._floats(given["mlp_norm"], m.width)
        if c.post_norms:
            out.post_attn_norm = self._floats(given["post_attn_norm"], m.width)
            out.post_mlp_norm = self._floats(given["post_mlp_norm"], m.width)
        if c.qk_norm:
            out.q_norm = self._floats(given["q_norm"], m.head_pad)
            out.k_norm = self._floats(given["k_norm"], m.head_pad)
        if c.qkv_bias:
            heads = given["qkv_bias"].reshape(-1, c.head_dim)
            out.qkv_bias = self._floats(_padded(heads, len(heads), m.head_pad).reshape(-1), m.qkv_width)
        if c.o_bias:
            out.o_bias = self._floats(given["o_bias"], m.width)
        if c.mlp_bias:
            pair = _padded(given["gate_up_bias"].reshape(2, -1), 2, m.inner).reshape(2, -1, _LANES)
            out.gate_up_bias = self._floats(pair.transpose(0, 1).reshape(-1), 2 * m.inner)
            out.down_bias = self._floats(given["down_bias"], m.width)
        if c.ropes[i] >= 0:
            out.rotated = c.rope_tables[c.ropes[i]].cos.shape[1]
            out.cos, out.sin = self._ropes[c.ropes[i]]
        out.window = c.windows[i]
        return out

    def _pointer(self, array: npt.NDArray[Any]) -> int:
        self._keep.append(array)
        return array.ctypes.data

    def _floats(self, x: torch.Tensor, length: int) -> int:
        return self._pointer(_padded(x.float(), length).contiguous().numpy().copy())

    def _make_cache(self) -> None:
        c, m = self.config, self._model
        self._k = _zeros((self.slots, c.layers, c.kv_heads, m.capacity // _BLOCK, m.head_pad, _LANES, 2), np.uint16)
        self._v = _zeros((self.slots, c.layers, c.kv_heads, m.value_pad // _BLOCK, m.capacity, _LANES, 2), np.uint16)
        for i, layer in enumerate(self._layers):
            layer.keys, layer.values = self._k[0, i].ctypes.data, self._v[0, i].ctypes.data

    def _make_scratch(self) -> None:
        c, m = self.config, self._model

        def floats(*shape: int) -> int:
            return self._pointer(_zeros(shape, np.float32))

        attention = c.heads * m.head_pad
        self._residual = _zeros((MAX_ROWS, m.width), np.float32)
        m.residual = self._residual.ctypes.data
        m.inputs = floats(MAX_ROWS, max(m.qkv_depth, m.fused, attention))
        m.inner_inputs = floats(MAX_ROWS, m.inner)
        m.outputs = floats(MAX_ROWS, max(m.width, m.qkv_width))
        m.score_floats = _GROUP * (m.head_pad + m.value_pad + m.capacity + _BLOCK)
        m.scores = floats(self.threads, m.score_floats)
        self._logits = _zeros((MAX_ROWS, m.vocab_pad), np.float32)
        self._hidden = _zeros((MAX_ROWS, m.width), np.float32)
        m.logits, m.hidden_out = self._logits.ctypes.data, self._hidden.ctypes.data
        m.spans = self._pointer(_zeros((MAX_ROWS * c.heads, 4), np.int64))
        self._rows = _zeros((7, MAX_ROWS), np.int32)
        self._segments = _zeros((MAX_ROWS, 4), np.int64)
        names = ("tokens", "parents", "depths", "segment_of", "group_start", "group_rows", "run")
        for name, row in zip(names, self._rows, strict=True):
            setattr(m, name, row.ctypes.data)
        m.segment = self._segments.ctypes.data

    # ---- the protocol

    def run(self, segments: Sequence[Segment], logits: bool) -> tuple[FloatArray | None, FloatArray | None]:
        """One forward over at most ``max_rows`` rows.

        Gives (logits f32[R, V], hidden f32[R, d]), views that are valid until the next ``run``; (None, None)
        with ``logits=False``, which writes keys and values and leaves out what only logits need.

        Raises:
            InputError: a slot, token, position or number of rows is out of range, or rows are not a tree.
        """
        return self._run(self._model, segments, logits)

    def _run(
        self, m: _Model, segments: Sequence[Segment], logits: bool | int
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """``logits``: of all rows or of none, or a number: of the last rows alone."""
        rows = 0
        for i, segment in enumerate(segments):
            rows = self._place(i, segment, rows)
        if not rows:
            raise InputError("a forward needs at least one row")
        if len({s.slot for s in segments}) != len(segments):
            raise InputError(f"a slot appears twice in one forward: {[s.slot for s in segments]}")
        m.rows, m.segments, m.logit_rows = rows, len(segments), rows if logits is True else logits
        self._last = m
        self._library.augury_forward(self._team.pool, ctypes.byref(m))
        if not logits:
            return None, None
        return self._logits[:rows, : self.config.outputs], self._hidden[:rows, : self.config.hidden_size]

    def shorten(self, bits: int, layers: Sequence[int]) -> Short:
        """See ``Shortens``. Weights of 4 or 8 bits are made once and kept: 9/32 or 17/32 of those of ``run``, and
        the head once more in natural order where it is not the embedding.

        Of logits in fewer bits the likely ones are computed anew with the head as it is: among tokens that nearly tie
        few bits choose wrongly, and a draw races all of them.
        """
        c = self.config
        order = checked_layers(layers, c.layers)
        weights = self._low[bits] = self._low.get(bits) or self._lowered(bits)
        # A struct of its own: an interrupt at any moment must leave that of ``run`` as it is.
        own = _Model.from_buffer_copy(self._model)
        own.weights, own.bits = weights.addresses.ctypes.data, bits
        own.order, own.used = order.ctypes.data, len(order)
        own.taps = 0
        if bits < 16 and self._head_rows is None:
            self._head_rows = self._words(np.arange(c.vocab_size, dtype=np.int32))
        if self._head_rows is not None:
            own.head_rows = self._head_rows.ctypes.data
        own.vocab, own.near, own.nearest = c.vocab_size, _NEAR, _NEAREST
        greatest = _zeros((self.threads, GUESS_ROWS), np.float32)
        bins = _zeros((self.threads, GUESS_ROWS, _BINS), np.int32)
        candidates = _zeros((GUESS_ROWS, _NEAREST), np.int32)
        own.greatest, own.bins, own.candidates = (x.ctypes.data for x in (greatest, bins, candidates))
        keep = (weights, order, greatest, bins, candidates)

        def short(segments: Sequence[Segment]) -> FloatArray:
            rows = sum(len(segment.tokens) for segment in segments)
            if bits < 16 and rows > GUESS_ROWS:
                raise InputError(f"weights of {bits} bits take {GUESS_ROWS} rows at a time, got {rows}")
            assert keep  # what C reads
            logits, _ = self._run(own, segments, logits=True)
            assert logits is not None
            return logits

        return short

    def tap(self, layers: Sequence[int]) -> None:
        """See ``Taps``."""
        c, m = self.config, self._model
        taps = checked_taps(layers, c.layers, self.taps)
        if taps == self.taps:
            return
        m.taps, self.taps = 0, ()  # first: an interrupt on the way must not leave C what is freed
        self._tapped = _zeros((self.slots, m.capacity, len(taps), m.width), np.uint16)
        places = np.full(c.layers + 1, -1, np.int64)
        places[list(taps)] = np.arange(len(taps))
        m.tapped, m.tap_of, m.taps = self._tapped.ctypes.data, self._pointer(places), len(taps)
        self.taps = taps

    def features(self, slot: int, begin: int, end: int, layers: Sequence[int]) -> FloatArray:
        """See ``Taps``."""
        places = [self.taps.index(layer) for layer in layers]
        bits = self._tapped[slot, begin:end][:, places, : self.config.hidden_size].astype(np.uint32) << 16
        return bits.reshape(end - begin, -1).view(np.float32)

    def words(self, ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """See ``Rides``."""
        return torch.from_numpy(self._words(ids).view(np.int16)).view(torch.bfloat16)

    def _words(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.uint16]:
        """Their bits, [n, d]."""
        c = self.config
        if c.tied:
            return np.asarray(self._embed_bits[ids])
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < c.vocab_size:
            raise IndexError(f"ids {int(ids.min())}..{int(ids.max())} are not all of the {c.vocab_size} tokens")
        block, at = ids // _BLOCK, ids % _BLOCK  # lines of a block are in pair order
        rows = np.empty((len(ids), c.hidden_size), np.uint16)
        first = 0
        for part in self._head:
            blocks = part.view(np.uint16).reshape(-1, self._model.width, _BLOCK)
            here = (block >= first) & (block < first + len(blocks))
            rows[here] = blocks[block[here] - first, : c.hidden_size, (at % _LANES * 2 + at // _LANES)[here]]
            first += len(blocks)
        return rows

    def attach(self, config: BlockConfig, weights: Mapping[str, torch.Tensor]) -> Ride:
        """See ``Rides``."""
        return NativeForward(config, weights, self.slots, self.capacity, beside=self).ride

    def ride(self, segment: Segment, given: FloatArray, fuse: bool, logits: int) -> tuple[FloatArray, FloatArray]:
        """See ``Ride``; of a draft head."""
        m, c = self._model, self.config
        rows, wide = len(segment.tokens), m.fused if fuse else m.width
        if given.shape != (rows, (c.fused if fuse else 1) * c.hidden_size):
            raise InputError(f"hidden states {list(given.shape)} are none of {rows} rows for this head")
        held = np.zeros((rows, wide), np.float32)
        held[:, : given.shape[1]] = given
        m.given, m.fuse = held.ctypes.data, fuse
        self._run(m, [segment], logits)
        return self._logits[rows - logits : rows, : c.outputs], self._residual[:rows, : c.hidden_size]

    def _lowered(self, bits: int) -> _Stretch:
        """All linears in fewer bits."""
        low = self._stretch(bits)
        with ThreadPoolExecutor(self.threads) as pool:
            done = [
                pool.submit(
                    self._library.augury_low_bits, whole.ctypes.data, whole.nbytes // (2 * depth * _BLOCK), depth, bits,
                    to.ctypes.data,
                )
                for op, (_, depth) in enumerate(self._linears)
                for whole, to in zip(self._weights.parts[op], low.parts[op], strict=True)
            ]  # fmt: skip
        for one in done:
            one.result()
        return low

    def _place(self, index: int, segment: Segment, first: int) -> int:
        """Check one segment and copy it to where C reads it; gives the first row of the next."""
        n, c, after = len(segment.tokens), self.config, first + len(segment.tokens)
        if after > MAX_ROWS:
            raise InputError(f"a forward has at most {MAX_ROWS} rows, got {after} or more; split it")
        if not n or len(segment.parents) != n or len(segment.depths) != n:
            raise InputError(f"segment {index} needs one parent and one depth for each of its {n} > 0 tokens")
        if not 0 <= segment.slot < self.slots:
            raise InputError(f"slot {segment.slot} does not exist; valid: 0 to {self.slots - 1}")
        if not 0 <= segment.length <= self.capacity - n:
            raise InputError(f"{segment.length} committed and {n} new rows exceed the capacity of {self.capacity}")
        tokens, parents, depths, segment_of = self._rows[:4, first:after]
        tokens[:], parents[:], depths[:], segment_of[:] = segment.tokens, segment.parents, segment.depths, index
        if tokens.min() < 0 or tokens.max() >= c.vocab_size:
            raise InputError(f"token ids must lie in 0 to {c.vocab_size - 1}")
        above = parents[1:]
        if parents[0] != -1 or (above < -1).any() or (above >= np.arange(1, n)).any():
            raise InputError(f"segment {index} is not made of trees: a row's parent is -1 or comes before it")
        if depths[0] or (depths[1:] != np.where(above < 0, 0, depths[above] + 1)).any():
            raise InputError(f"segment {index}: a row's depth must be one more than its parent's, or 0 without one")
        if segment.length + int(depths.max()) >= c.context:
            raise InputError(
                f"position {segment.length + int(depths.max())} is beyond the context of {c.context} tokens"
            )
        self._segments[index] = segment.slot, segment.length, first, n
        return after

    def move(self, slot: int, rows: Sequence[int], to: int) -> None:
        """Copy cache rows ``rows`` (ascending) to ``to``, ``to + 1``, ... in every layer; rows[j] >= to + j."""
        from_ = np.asarray(rows, np.int64)
        n = len(from_)
        if not 0 <= slot < self.slots:
            raise InputError(f"slot {slot} does not exist; valid: 0 to {self.slots - 1}")
        if n and not (
            to >= 0 and from_[-1] < self.capacity and (np.diff(from_) > 0).all() and (from_ >= to + np.arange(n)).all()
        ):
            raise InputError(f"cannot move cache rows {from_.tolist()} to {to} of {self.capacity}")
        self._library.augury_move(ctypes.byref(self._model), slot, from_.ctypes.data, n, to)

    def copy(self, source: int, slot: int, length: int) -> None:
        """See ``Forward.copy``."""
        blocks = -(-length // _BLOCK)
        self._k[slot, :, :, :blocks] = self._k[source, :, :, :blocks]
        self._v[slot, :, :, :, :length] = self._v[source, :, :, :, :length]
        if self.taps:
            self._tapped[slot, :length] = self._tapped[source, :length]

    def read(self, slot: int, length: int) -> list[FloatArray]:
        """Keys and values of the first ``length`` rows: f32[length, kv_heads, head_dim], k then v by layer."""
        c, m = self.config, self._model
        out: list[FloatArray] = []
        for i in range(c.layers):  # keys: [kv, block, d, lane, half], values: [kv, block, row, lane, half]
            k = self._k[slot, i].transpose(1, 4, 3, 0, 2).reshape(m.capacity, c.kv_heads, m.head_pad)
            v = self._v[slot, i].transpose(2, 0, 1, 4, 3).reshape(m.capacity, c.kv_heads, m.value_pad)
            for x in (k, v):
                bits = x[:length, :, : c.head_dim].astype(np.uint32) << 16
                out.append(bits.view(np.float32))
        return out

    @property
    def phases(self) -> dict[str, float]:
        """Milliseconds of the last forward by phase (waiting for other threads included)."""
        return {name: 1e3 * s for name, s in zip(PHASES, self._last.seconds, strict=True)}
