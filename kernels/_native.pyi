from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_F16 = npt.NDArray[np.float16]
_F32 = npt.NDArray[np.float32]
_F64 = npt.NDArray[np.float64]
_I8 = npt.NDArray[np.int8]
_U8 = npt.NDArray[np.uint8]
_I32 = npt.NDArray[np.int32]
_I64 = npt.NDArray[np.int64]

class ThreadPool:
    """The threads of one kernel call at a time: the calling thread and `threads - 1` workers.

    `cpus` names one CPU per thread (the first, the caller's, is not bound); None leaves them to the system. Pools of as many
    threads and the same CPUs have the same workers: a call that runs alone has all of them, calls of several pools at once
    have a part each, and none waits. Workers sleep when there is nothing to do. Raises ValueError for fewer than 1 or more
    than 1024 threads.
    """

    def __init__(self, threads: int, cpus: list[int] | None = None) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def overflow(self) -> int:
        """Activation values that overflowed in `quantize` and `linear` so far and were kept in a residual."""

def isa() -> str: ...
def isa_variants() -> list[str]: ...
def emulated_isas() -> list[str]: ...
def isa_refusal() -> str: ...
def use_isa(name: str) -> None: ...

# ---- layout, checksum (bind_layout.cpp) ----

def pack_tiles(weight: _I8, /) -> _I8: ...
def unpack_tiles(tiles: _I8, n: int, k: int, /) -> _I8: ...
def gather_rows(tiles: _I8, rows: _I64, k: int, /) -> _I8: ...
def row_sums(tiles: _I8, n: int, /) -> _I32: ...
def crc32c(data: bytes | bytearray | memoryview | npt.NDArray[Any], pool: ThreadPool | None, /) -> int: ...
def crc32c_methods(data: bytes | bytearray | memoryview | npt.NDArray[Any], /) -> dict[str, int]: ...

# ---- ranges of files (bind_range_reader.cpp) ----

class Reading:
    """A range that is on its way; its array must not be touched before `wait`."""

    def wait(self) -> tuple[int, npt.NDArray[np.uint32]]: ...
    def again(self) -> None: ...
    def hurry(self) -> None: ...
    def drop(self) -> None: ...
    @property
    def nbytes(self) -> int: ...

class RangeReader:
    """Reads ranges of files in the background, see `kernels.range_reader`."""

    def __init__(self, threads: int, request_bytes: int) -> None: ...
    def start(
        self,
        fd: int,
        out: npt.NDArray[np.uint8],
        offset: int,
        ends: _I64,
        urgent: bool = False,
        beside: Reading | None = None,
    ) -> Reading: ...
    @property
    def read_bytes(self) -> int:
        """Bytes read since it was made."""

# ---- linear, roofs (bind_linear.cpp) ----

def quantize(
    x: _F32, input_scale: float, hot: _I32, pool: ThreadPool, residual: bool, gain: _F32 | None, eps: float, turn: int, /
) -> tuple[_I8, _I64, _I32, _F32]: ...
def linear_int8(
    q: _I8,
    tiles: _I8,
    n: int,
    product_scale: _F32,
    row_sum: _I32,
    pool: ThreadPool,
    bias: _F32 | None,
    out: _F32 | None,
    /,
) -> _F32: ...
def linear_rounded(
    q: _I8,
    tiles: _I8,
    n: int,
    scale: _F32,
    bias: _I32 | None,
    row_sum: _I32,
    pool: ThreadPool,
    out: _F32 | None,
    /,
) -> _F32: ...
def hot_product(x: _F32, hot: _I32, hot_weight: _F16, pool: ThreadPool, out: _F32 | None, /) -> _F32: ...
def overflow_product(
    row_start: _I64, column: _I32, value: _F32, tiles: _I8, n: int, k: int, pool: ThreadPool, out: _F32 | None, /
) -> _F32: ...
def merge(
    y: _F32,
    hot_sum: _F32 | None,
    row_start: _I64 | None,
    overflow_sum: _F32 | None,
    product_scale: _F32,
    pool: ThreadPool,
    add: _F32 | None,
    /,
) -> None: ...
class Int8Linear:
    """The weight of a linear, see `kernels.linear`."""

    def __init__(
        self,
        tiles: _I8,
        n: int,
        k: int,
        input_scale: float | None,
        product_scale: _F32,
        row_sum: _I32,
        hot: _I32,
        hot_weight: _F16,
        bias: _F32 | None,
        rounded_scale: _F32 | None = None,
        rounded_bias: _I32 | None = None,
        /,
        *,
        turn: int = 0,
    ) -> None: ...
    @staticmethod
    def of_codes(
        codes: _U8,
        n: int,
        k: int,
        input_scale: float | None,
        product_scale: _F32,
        row_sum: _I32,
        hot: _I32,
        hot_weight: _F16,
        bias: _F32 | None,
        rounded_scale: _F32 | None = None,
        rounded_bias: _I32 | None = None,
        /,
        *,
        turn: int = 0,
    ) -> Int8Linear: ...
    @staticmethod
    def of_parts(
        integers: Sequence[_I8 | _U8],
        counts: Sequence[int],
        k: int,
        input_scale: float | None,
        product_scale: _F32,
        row_sum: _I32,
        hot: _I32,
        hot_weight: _F16,
        bias: _F32 | None,
        rounded_scale: _F32 | None = None,
        rounded_bias: _I32 | None = None,
        /,
        *,
        turn: int = 0,
    ) -> Int8Linear: ...
    @property
    def swiglu_in_one_pass(self) -> bool: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...

def linear(
    x: _F32,
    weight: Int8Linear,
    pool: ThreadPool,
    add: _F32 | None,
    shadow: bool,
    out: _F32 | None,
    gain: _F32 | None,
    eps: float,
    gate: int,
    limit: float,
    /,
) -> _F32: ...
def int8_operations(repeats: int, pool: ThreadPool, /) -> int: ...
def read_stream(data: _I8, pool: ThreadPool, /) -> int: ...

# ---- float16 linear, its roof (bind_half.cpp) ----

def half_linear(
    x: _F32,
    weight: _F16,
    pool: ThreadPool,
    bias: _F32 | None,
    add: _F32 | None,
    gain: _F32 | None,
    eps: float,
    gate: int,
    limit: float,
    out: _F32 | None,
    /,
) -> _F32: ...
def float_operations(repeats: int, pool: ThreadPool, /) -> int: ...

# ---- adapters (bind_low_rank.cpp) ----

class LowRank:
    """What adapters add to a linear's products [M, channels] of x [M, columns]; an entry each, None for one that adds nothing.

    An entry is its first matrix f16[columns, rank] and what its ranks give to output channels: (first rank, first channel,
    f16[ranks, channels]).
    """

    def __init__(
        self, columns: int, channels: int, entries: Sequence[tuple[_F16, Sequence[tuple[int, int, _F16]]] | None], /
    ) -> None: ...
    @property
    def widest(self) -> int:
        """The greatest rank."""
        ...

# ---- weights in blocks (bind_blocks.cpp) ----

class BlockLinear:
    def __init__(self, panels: Sequence[_U8], kinds: Sequence[int], counts: Sequence[int], columns: int, /) -> None: ...
    @property
    def gated_in_one_pass(self) -> bool: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...

def lay_out_blocks(raw: _U8, kind: int, n: int, k: int, pool: ThreadPool, /) -> _U8: ...
def block_rows(panels: _U8, kind: int, k: int, rows: _I64, pool: ThreadPool, /) -> _F32: ...
def block_linear(
    x: _F32,
    weight: BlockLinear,
    pool: ThreadPool,
    bias: _F32 | None,
    add: _F32 | None,
    gain: _F32 | None,
    eps: float,
    gate: int,
    limit: float,
    out: _F32 | None,
    /,
) -> _F32: ...

# ---- experts (bind_experts.cpp) ----

class Expert:
    """The linears gate_up [2 * width, K] and down [K, width] of an expert, see `kernels.experts`."""

    def __init__(
        self,
        gate_up: Int8Linear | BlockLinear,
        down: Int8Linear | BlockLinear,
        gate_up_bias: _F32 | None = None,
        down_bias: _F32 | None = None,
        /,
    ) -> None: ...
    @property
    def width(self) -> int: ...

def choose_experts(scores: _F32, used: int, /) -> _I64: ...
def experts(
    x: _F32,
    chosen: _I64,
    shares: _F32,
    weights: Sequence[Expert | None],
    pool: ThreadPool,
    gate: int,
    limit: float,
    add: _F32 | None,
    out: _F32 | None,
    /,
) -> _F32: ...

# ---- attention (bind_attention.cpp) ----

def rope_append(
    qkv: _F32,
    heads: int,
    kv_heads: int,
    head_dim: int,
    positions: _I32,
    cos: _F32,
    sin: _F32,
    q_gain: _F32 | None,
    k_gain: _F32 | None,
    eps: float,
    k_offset: _F32,
    k_pages: _I8,
    k_scales: _F16,
    v_pages: _I8,
    v_scales: _F16,
    slots: _I64,
    pool: ThreadPool,
    turn: int,
    v_gain: _F32 | None,
    norm_last: bool,
    q_scale: _F32 | None,
) -> None: ...
def paged_attention(
    q: npt.NDArray[np.float32],
    k_pages: npt.NDArray[np.int8],
    k_scales: npt.NDArray[np.float16],
    v_pages: npt.NDArray[np.int8],
    v_scales: npt.NDArray[np.float16],
    page_table: npt.NDArray[np.int32],
    row_sequence: npt.NDArray[np.int32],
    row_position: npt.NDArray[np.int32],
    softmax_scale: float,
    pool: ThreadPool,
    out: npt.NDArray[np.float32] | None,
    window: int,
    cap: float,
    sinks: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.float32]: ...

# ---- sampling (bind_sampling.cpp) ----

def sampling_best(logits: _F32, /) -> float: ...
def sampling_draw(
    logits: _F32,
    best: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    chance: float,
    pool: ThreadPool | None,
    /,
) -> int: ...
def sampling_candidates(
    logits: _F32, best: float, temperature: float, top_k: int, top_p: float, min_p: float, pool: ThreadPool | None, /
) -> tuple[_I64, _I64]: ...
def sampling_log_sum(logits: _F32, best: float, pool: ThreadPool | None, /) -> float: ...
def sampling_likeliest(logits: _F32, count: int, /) -> _I64: ...
def sampling_mask(logits: _F32, bits: npt.NDArray[np.uint8], out: _F32, /) -> int: ...

# ---- floats (bind_floats.cpp) ----

def float_product(x: _F32, weight: _F32, pool: ThreadPool, /) -> _F32: ...
def float_exp(x: _F32, pool: ThreadPool, /) -> _F32: ...
def rounding_errors(x: _F32, inverse: float, pool: ThreadPool, /) -> tuple[_F64, _F64, _I64]: ...
def channel_powers(x: _F32, pairs: int, pool: ThreadPool, /) -> tuple[_F32, _F64]: ...
def column_squares(x: _F32, unit: float, pool: ThreadPool, /) -> _F64: ...
def quantize_rows(weight: _F32, hot: _I32, pool: ThreadPool, /) -> tuple[_I8, _F32, _I32]: ...
def row_levels(x: _F32, index: int, pool: ThreadPool, /) -> _F32: ...
def float_attention(queries: _F32, keys: _F32, values: _F32, scale: float, pool: ThreadPool, /) -> _F32: ...
def widen(x: npt.NDArray[np.uint16], out: _F32, bfloat16: bool, /) -> float: ...

# ---- neurons that are named (bind_neurons.cpp) ----

def add_columns(q: _I8, neurons: _I64, held: _I8, places: _I64, sums: _I32, pool: ThreadPool, /) -> None: ...
def dot_rows(q: _I8, neurons: _I64, held: _I8, places: _I64, sums: _I32, pool: ThreadPool, /) -> None: ...

# ---- mixers with a state of fixed size (bind_recurrent.cpp) ----

def short_convolution(
    x: _F32, weight: _F32, bias: _F32 | None, tails: _F32, runs: _I32, silu: bool, pool: ThreadPool, out: _F32 | None, /
) -> _F32: ...
def recurrent_rates(
    steps: _F32, bias: _F32, rate: _F32, write: _F32 | None, low: float, high: float, pool: ThreadPool, /
) -> tuple[_F32, _F32]: ...
def recurrence(
    q: _F32,
    k: _F32,
    v: _F32,
    decay: _F32,
    strength: _F32,
    skip: _F32 | None,
    states: _F32,
    runs: _I32,
    corrects: bool,
    pool: ThreadPool,
    out: _F32 | None,
    /,
) -> _F32: ...
def gated_norm(
    x: _F32, gate: _F32, gain: _F32, eps: float, group: int, gate_first: bool, pool: ThreadPool, out: _F32 | None, /
) -> _F32: ...
def sigmoid_gate(x: _F32, gate: _F32, pool: ThreadPool, out: _F32 | None, /) -> _F32: ...

# ---- embeddings (bind_embedding.cpp) ----

def embedding(
    tokens: _I64,
    integers: _I8 | _U8,
    columns: int,
    scale: _F32,
    hot: _I32,
    hot_weight: _F16,
    pool: ThreadPool,
    out: _F32 | None,
    turn: int,
    /,
) -> _F32: ...

# ---- memory of arrays (bind_memory.cpp) ----

class Memory:
    """Where the data of NumPy's new arrays lies, see `kernels.memory`."""

def recycled_memory() -> Memory: ...
def stop_recycling(memory: Memory, /) -> None: ...
def thread_memory() -> Memory: ...
def use_memory(memory: Memory, /) -> None: ...

# ---- pointwise (bind_pointwise.cpp) ----

def rms_norm(
    x: _F32, gain: _F32, eps: float, pool: ThreadPool, out: _F32 | None, add: _F32 | None, /
) -> _F32: ...
def layer_norm(
    x: _F32, gain: _F32, bias: _F32 | None, eps: float, pool: ThreadPool, out: _F32 | None, add: _F32 | None, /
) -> _F32: ...
def head_norm(x: npt.NDArray[np.float32], gain: npt.NDArray[np.float32], eps: float, pool: ThreadPool) -> None: ...
def rope(
    x: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    cos: npt.NDArray[np.float32],
    sin: npt.NDArray[np.float32],
    pool: ThreadPool,
) -> None: ...
def turn(x: npt.NDArray[np.float32], block: int, pool: ThreadPool) -> None: ...
def gated(gate_up: _F32, gate: int, limit: float, pool: ThreadPool, out: _F32 | None, /) -> _F32: ...
def activate(x: _F32, kind: int, limit: float, pool: ThreadPool, out: _F32 | None, /) -> _F32: ...

# ---- programs (bind_program.cpp) ----

class Program:
    """Kernel calls over fixed arrays, see `kernels.program`."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def embedding(
        self, integers: _I8 | _U8, columns: int, scale: _F32, hot: _I32, hot_weight: _F16, out: _F32, turn: int, /
    ) -> None: ...
    def linear(
        self,
        x: _F32,
        weight: Int8Linear,
        add: _F32 | None,
        shadow: bool,
        gain: _F32 | None,
        eps: float,
        gate: int,
        limit: float,
        out: _F32 | None,
        /,
    ) -> None: ...
    def half_linear(
        self,
        x: _F32,
        weight: _F16,
        bias: _F32 | None,
        add: _F32 | None,
        gain: _F32 | None,
        eps: float,
        gate: int,
        limit: float,
        out: _F32 | None,
        /,
    ) -> None: ...
    def low_rank_down(self, x: _F32, low_rank: LowRank, gain: _F32 | None, eps: float, t: _F32, /) -> None: ...
    def low_rank_up(self, t: _F32, low_rank: LowRank, out: _F32, /) -> None: ...
    def block_linear(
        self,
        x: _F32,
        weight: BlockLinear,
        bias: _F32 | None,
        add: _F32 | None,
        gain: _F32 | None,
        eps: float,
        gate: int,
        limit: float,
        out: _F32 | None,
        /,
    ) -> None: ...
    def block_embedding(self, panels: _U8, kind: int, channels: int, columns: int, factor: float, out: _F32, /) -> None: ...
    def rms_norm(self, x: _F32, gain: _F32, eps: float, out: _F32, add: _F32 | None, /) -> None: ...
    def layer_norm(
        self, x: _F32, gain: _F32, bias: _F32 | None, eps: float, out: _F32, add: _F32 | None, /
    ) -> None: ...
    def gated(self, gate_up: _F32, gate: int, limit: float, out: _F32, /) -> None: ...
    def activate(self, x: _F32, kind: int, limit: float, out: _F32, /) -> None: ...
    def rope_append(
        self,
        qkv: _F32,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cos: _F32,
        sin: _F32,
        q_gain: _F32 | None,
        k_gain: _F32 | None,
        eps: float,
        k_offset: _F32,
        k_pages: _I8,
        k_scales: _F16,
        v_pages: _I8,
        v_scales: _F16,
        turn: int,
        v_gain: _F32 | None,
        norm_last: bool,
        q_scale: _F32 | None,
        /,
    ) -> None: ...
    def paged_attention(
        self,
        q: _F32,
        k_pages: _I8,
        k_scales: _F16,
        v_pages: _I8,
        v_scales: _F16,
        softmax_scale: float,
        out: _F32,
        window: int,
        cap: float,
        sinks: _F32 | None,
        /,
    ) -> None: ...
    def wait(self, reading: Reading, checksums: npt.NDArray[np.uint32], /) -> int: ...
    def request(self, reading: Reading, /) -> None: ...
    def run(
        self,
        tokens: _I64,
        positions: _I32,
        slots: _I64,
        row_sequence: _I32,
        page_table: _I32,
        pool: ThreadPool,
        out: _F32 | None,
        start: int,
        patience: float,
        seconds: _F64 | None,
        adapters: _I32 | None,
        /,
    ) -> int: ...
    def run_row(self, token: int, position: int, pages: _I32, pool: ThreadPool, seconds: _F64 | None, /) -> _F32: ...

def expand_codes(codes: _U8, n: int, k: int, pool: ThreadPool, /) -> _I8: ...
def search_codes(weight: _F32, importance: _F32, pool: ThreadPool, /) -> tuple[_U8, _U8, _U8, _F32]: ...
def encode_codes(weight: _F32, scale: _F32, multiplier: _U8, shift: _U8, pool: ThreadPool, /) -> _U8: ...
def energy_panels(energy: _F32, order: _I64, pool: ThreadPool, /) -> _F32: ...
def factor_energy(panels: _F32, pool: ThreadPool, /) -> bool: ...
def fit_weight(
    weight: _F32,
    panels: _F32,
    order: _I64,
    kept: int,
    step: _F32,
    inverse: _F32 | None,
    shift: _F32 | None,
    pool: ThreadPool,
    /,
) -> _F32: ...
def descend_weight(
    weight: _F32,
    found: _F32,
    panels: _F32,
    order: _I64,
    kept: int,
    step: _F32,
    inverse: _F32 | None,
    shift: _F32 | None,
    passes: int,
    pool: ThreadPool,
    /,
) -> None: ...
