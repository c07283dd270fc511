"""What an imported model's own float weights are for: the same weights for peers, and how near everybody is to them.

All of it happens in a process of its own (`aside`), before anything is timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_llm import kernels
from edge_llm.bench.aside import done_aside
from edge_llm.bench.peer import PeerSettings, PeerSpec, start
from edge_llm.bench.source_gguf import SourceWeights
from edge_llm.config import RuntimeConfig
from edge_llm.errors import ModelNotFound
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.progress import StageProgress
from edge_llm.quant.quality import Quality

OURS = ""
"""Our name among those whose quality is known."""


@dataclass(frozen=True)
class Prepared:
    """What is known before anything is timed."""

    source: SourceWeights | None = None
    """The weights that peers get; None: random ones."""
    quality: Mapping[str, Quality] = field(default_factory=dict)
    """By number format of a peer (`PeerSpec.variant`), and `OURS`."""


@dataclass(frozen=True)
class QualityWish:
    """How near models are to the float path is to be measured."""

    text: Path | None = None
    """On this text; None: the one that comes with us."""


@dataclass(frozen=True)
class _Order:
    folder: Path
    runtime: RuntimeConfig
    isa: str
    peers: tuple[tuple[str, bool], ...]
    """Number formats, and whether with flash attention."""
    quality: QualityWish | None


def prepare(
    bundle: Bundle,
    runtime: RuntimeConfig,
    peers: Sequence[PeerSpec],
    quality: QualityWish | None,
    progress: StageProgress,
) -> Prepared:
    """Have the models of ``peers`` made of the weights that ``bundle`` was imported from, and measure what is wished for.

    Raises `ModelNotFound` when these are not there any more.
    """
    if bundle.float_source() is None:
        raise ModelNotFound(
            f"the float weights of `{bundle.folder.name}` are not here any more; import the model again, "
            "with --keep-float to keep them in the bundle"
        )
    formats: dict[str, bool] = {}
    for spec in peers:
        if spec.engine.of_source is not None:
            formats.setdefault(spec.variant, spec.flash_attention)
    return done_aside(_prepared, _Order(bundle.folder, runtime, kernels.isa(), tuple(formats.items()), quality), progress)


def _prepared(order: _Order, progress: StageProgress) -> Prepared:
    from edge_llm.bench.held_out import OwnReader, PeerReader, Reader, compare_readers, held_out_windows
    from edge_llm.bench.peer import LLAMA_CPP
    from edge_llm.bench.source_gguf import FILE, source_ggufs
    from edge_llm.opening.runner import load_runner
    from edge_llm.sources import open_source
    from edge_llm.sources.lora_places import wishes_of
    from edge_llm.text.tokenizer import Tokenizer

    kernels.use_isa(order.isa)
    with open_bundle(order.folder) as bundle, ExitStack() as stack:
        place = bundle.float_source()
        assert place is not None
        lora = wishes_of(bundle.manifest["source"])
        opened = stack.enter_context(open_source(place, lora=lora))
        config, source = bundle.config, None
        if order.peers:
            source = SourceWeights(opened.place, opened.digest(progress), config, lora)
            made = [variant for variant, _ in order.peers if variant != FILE]
            if made:
                source_ggufs(source, made, progress)
        if order.quality is None:
            return Prepared(source)
        tokenizer = Tokenizer.from_folder(bundle.folder, config.vocab_size)
        windows = held_out_windows(order.quality.text, tokenizer, config.context)
        longest = max(map(len, windows))
        runner, runtime = load_runner(bundle, replace(order.runtime, context=None), longest)
        readers: dict[str, Reader] = {OURS: OwnReader(runner)}
        for variant, flash_attention in order.peers:
            settings = PeerSettings(config, longest, runtime.threads or 1, longest, longest, source)
            worker = start(PeerSpec(LLAMA_CPP, variant, flash_attention), settings)
            readers[variant] = stack.enter_context(PeerReader(worker, config.vocab_size))
            worker.receive()
        return Prepared(source, compare_readers(readers, opened, bundle.decoder, windows, progress))
