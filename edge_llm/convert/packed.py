"""What becomes of weights that somebody else has quantized, said before an import takes long."""

from __future__ import annotations

from edge_llm.config import INT8, W4
from edge_llm.convert.pace import expected_seconds
from edge_llm.progress import StageProgress, byte_count, rough_time
from edge_llm.sources.base import PackedSource, Source


def bits_in_words(source: Source, parameters: int, kind: str, mixed: float, *, fitted: bool) -> list[str]:
    """Lines on bits in, bits out and the time, none for a source of floats; a mixture of weights has ``mixed`` bits."""
    if not isinstance(source, PackedSource):
        return []
    bits = {INT8: 8.0, W4: 4.0}.get(kind, mixed)
    minutes = rough_time(expected_seconds(parameters, kind if fitted else "fast"))
    lines = [
        f"{source.quantization}, {source.bits_per_weight:.1f} bits per weight ({byte_count(source.nbytes)}), becomes weights "
        f"of {bits:g} bits ({byte_count(bits / 8 * parameters)}); about {minutes}"
    ]
    if bits < 8 and source.bits_per_weight < 8:
        lines.append("few bits out of few bits lose twice: 8 bits keep what the file has, or import the float model")
    return lines


def digest_in_floats(progress: StageProgress, parameters: int) -> StageProgress:
    """``progress`` that is told of a digest by the bytes of the weights in 16 bits, which the time of an import goes by."""

    def tell(stage: str, done: int, total: int) -> None:
        whole = 2 * parameters
        progress(stage, done * whole // total if total else whole, whole)

    return tell
