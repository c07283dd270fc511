"""What llama.cpp's number formats cost in the layers, beside ours: weights that its own quantizers make, in our float model.

    python benchmarks/peer_formats.py builtin
    python benchmarks/peer_formats.py FOLDER --text heldout.txt --calibration text.txt

Needs the extra `peers`.  Inputs, attention and output matrix stay in float, for both sides: weights alone.  The importance
matrix is the mean square of what a linear reads on the calibration text.  Where an input is no multiple of a format's block,
its rows are filled up with zeros, which are not counted: llama.cpp itself would take another format there.  Q4_K_M gives
values and `down` of half of the layers Q6_K, as its quantizer does.  Writes `benchmarks/results/peer-formats.md`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from threadpoolctl import threadpool_limits

try:
    import gguf
    import llama_cpp
except ModuleNotFoundError as missing:
    sys.exit(f"`{missing.name}` is not installed; install the extra `peers`: pip install '.[peers]'")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from plants import PLANTS, PlantedModel  # noqa: E402
from quantization import AS_IT_IS, PLANTED, TEXTS, Study, Texts, source_of  # noqa: E402
from quantizers import METHODS, NO_CHANNELS, Linear  # noqa: E402

from edge_llm.bench.report import markdown_lines  # noqa: E402

Type = gguf.GGMLQuantizationType


@dataclass(frozen=True)
class Weights:
    """What stands for a linear: other weights, and inputs as they are."""

    weight: np.ndarray
    """float32 [N, K]"""
    nbytes: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """x float32 [T, K] -> [T, N]."""
        return np.asarray(x @ self.weight.T)


Format = Callable[[Study, str, Linear], Weights]
"""(study, name of a linear, linear) -> what stands for it."""


def quantizer() -> Callable[[np.ndarray, np.ndarray | None, Type], np.ndarray]:
    """llama.cpp's: (weights float32 [N, K], importance [K] or None, type) -> what they stand for, float32 [N, K]."""
    chunk = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so")).ggml_quantize_chunk
    floats = ctypes.POINTER(ctypes.c_float)
    chunk.argtypes = [ctypes.c_int, floats, ctypes.c_void_p, *[ctypes.c_int64] * 3, floats]
    chunk.restype = ctypes.c_size_t

    def quantized(weight: np.ndarray, importance: np.ndarray | None, kind: Type) -> np.ndarray:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, columns = weight.shape
        room = ((0, 0), (0, -columns % block))
        filled = np.ascontiguousarray(np.pad(weight, room), np.float32)
        matrix = None if importance is None else np.ascontiguousarray(np.pad(importance, room[1]), np.float32)
        out = np.zeros((rows, filled.shape[1] // block * size), np.uint8)
        given = None if matrix is None else matrix.ctypes.data_as(floats)
        chunk(int(kind), filled.ctypes.data_as(floats), out.ctypes.data, 0, rows, filled.shape[1], given)
        return np.ascontiguousarray(gguf.quants.dequantize(out, kind)[:, :columns])

    return quantized


def peer(kind_of: Callable[[Study, str, np.ndarray], list[tuple[slice, Type]]], with_importance: bool) -> Format:
    """A format of llama.cpp, which says the type of every run of a linear's rows."""
    quantize = quantizer()

    def stand_in(study: Study, name: str, linear: Linear) -> Weights:
        importance = np.square(linear.seen.rows()).mean(axis=0) if with_importance else None
        found, nbytes = np.empty_like(linear.weight), 0.0
        for rows, kind in kind_of(study, name, linear.weight):
            found[rows] = quantize(linear.weight[rows], importance, kind)
            block, size = gguf.GGML_QUANT_SIZES[kind]
            nbytes += found[rows].size * size / block
        return Weights(found, nbytes)

    return stand_in


def all_in(kind: Type) -> Callable[[Study, str, np.ndarray], list[tuple[slice, Type]]]:
    """One type for all rows."""
    return lambda study, name, weight: [(slice(None), kind)]


def medium(study: Study, name: str, weight: np.ndarray) -> list[tuple[slice, Type]]:
    """Q4_K_M: Q6_K for the values and `down` of the layers that llama.cpp gives more bits, else Q4_K."""
    _, index, kind = name.split(".")
    layers, layer = study.layers, int(index)
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if kind == "qkv" and more:
        values = len(weight) - study.value_rows
        return [(slice(0, values), Type.Q4_K), (slice(values, None), Type.Q6_K)]
    return [(slice(None), Type.Q6_K if kind == "down" and more else Type.Q4_K)]


def ours(method: str, scheme: str) -> Format:
    """A method of `quantizers`, its changes of channels undone in the weights."""

    def stand_in(study: Study, name: str, linear: Linear) -> Weights:
        changed = linear
        for change in METHODS[method].changes:
            changed = change(changed, scheme)
        weight, nbytes = METHODS[method].rounding(changed, NO_CHANNELS, scheme)
        identity = np.eye(linear.weight.shape[1], dtype=np.float32)
        return Weights(np.ascontiguousarray(weight @ changed.turn(identity).T), nbytes)

    return stand_in


def formats() -> Mapping[str, Format]:
    """All that are compared."""
    return {
        "llama.cpp Q8_0": peer(all_in(Type.Q8_0), False),
        "llama.cpp Q4_0": peer(all_in(Type.Q4_0), False),
        "llama.cpp Q4_0, importance matrix": peer(all_in(Type.Q4_0), True),
        "llama.cpp IQ4_XS, importance matrix": peer(all_in(Type.IQ4_XS), True),
        "llama.cpp Q4_K_M": peer(medium, False),
        "llama.cpp Q4_K_M, importance matrix": peer(medium, True),
        "INT8, folds": ours("folds", "int8"),
        "INT8, folds and GPTQ": ours("folds, GPTQ", "int8"),
        "W4, folds": ours("folds", "w4"),
        "W4, folds and GPTQ (import)": ours("folds, GPTQ", "w4"),
    }


HEAD = ["weights", "bits", "KL x 1000", "perplexity", "top-1"]


def rows_of(study: Study) -> dict[str, list[str]]:
    """The numbers of every format."""
    size = sum(linear.weight.size for linear in study.linears.values())
    found = {}
    for name, stand_in in formats().items():
        made = {at: stand_in(study, at, linear) for at, linear in study.linears.items()}
        quality = study.quality(made)
        rise = quality.perplexity / quality.float_perplexity
        bits = 8 * sum(one.nbytes for one in made.values()) / size
        found[name] = [f"{bits:.2f}", f"{1000 * quality.mean_kl:.2f}", f"x{rise:.4f}", f"{quality.top1_agreement:.1%}"]
        print(name, *found[name], file=sys.stderr, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="`builtin`, or a Hugging Face folder")
    parser.add_argument("--calibration", type=Path, default=TEXTS / "calibration.txt", help="text that methods may see")
    parser.add_argument("--text", type=Path, default=TEXTS / "heldout.txt", help="held-out text; default: the built-in model's")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "peer-formats.md")
    options = parser.parse_args(arguments)
    texts = Texts(options.calibration.read_text("utf-8"), options.text.read_text("utf-8"))
    with TemporaryDirectory() as temporary, threadpool_limits(1):
        source = source_of(options.model, Path(temporary))
        planted = PlantedModel(source).write(Path(temporary) / "planted", PLANTS[PLANTED])
        found = {plant: rows_of(Study(one, texts)) for plant, one in ((AS_IT_IS, source), (PLANTED, planted))}
    rows = [[name, *found[AS_IT_IS][name], *found[PLANTED][name]] for name in found[AS_IT_IS]]
    lines = markdown_lines([*HEAD, *(f"planted: {name}" for name in HEAD[1:])], rows)
    scope = f"Weights of the layers alone; planted: {PLANTED}."
    text = "\n".join([f"## {Path(options.model).name}", "", scope, "", *lines, ""])
    options.results.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
