"""Other engines as contestants: which there are, how they are named, and what they are given.

A peer runs in its own process with the model's own weights or random ones of the same shape, and takes turns with us.  Names
are ``llama.cpp``, ``llama.cpp:q4_0`` (types mixed as in published files), ``llama.cpp:q4_0-pure``, ``llama.cpp:q8_0:nofa``
(without flash attention), ``llama.cpp:file`` (the GGUF file that the model was imported from), ``genai``, ``openvino:int8``,
``torch``, ``torch:onednn``.  A new engine is a worker (and a writer of its models, if it reads files) and an entry in
`ENGINES`.
When nothing is said about flash attention, tests at a depth are run both with it (llama.cpp's default) and without, because on
a CPU that may be faster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edge_llm.bench.llama_shape import llama_shape
from edge_llm.bench.measure import Test
from edge_llm.bench.peer_model import PeerModel, WeightBytes, shape_name
from edge_llm.bench.roofs import Costs, operations
from edge_llm.bench.source_gguf import FILE, SourceWeights, source_gguf_model
from edge_llm.bench.synthetic_gguf import VARIANTS, gguf_model
from edge_llm.bench.synthetic_onnx import VARIANTS as GENAI_VARIANTS
from edge_llm.bench.synthetic_onnx import synthetic_onnx
from edge_llm.bench.synthetic_openvino import VARIANTS as OPENVINO_VARIANTS
from edge_llm.bench.synthetic_openvino import synthetic_openvino
from edge_llm.bench.worker import Worker
from edge_llm.config import LlamaConfig, ModelConfig
from edge_llm.errors import DeviceError, UsageError
from edge_llm.extras import install_extra
from edge_llm.formats.sizes import bits_per_weight
from edge_llm.models import describe as describe_model
from edge_llm.paths import synthetic_folder

BATCH, UBATCH = 2048, 512
"""llama.cpp's own defaults."""


@dataclass(frozen=True, eq=False)
class PeerEngine:
    """A kind of peer."""

    name: str
    module: str
    """Run as its worker."""
    variants: tuple[str, ...]
    """The first is the default."""
    packages: Mapping[str, str]
    """Distribution to module; the first one's version is the engine's."""
    advice: str
    """How to get them."""
    model: Callable[[LlamaConfig, str], PeerModel]
    """Its model at a shape, made unless it is there; the second argument is one of ``variants``."""
    choices: Callable[[PeerSpec, PeerSettings], dict[str, Any]] = lambda spec, settings: {}
    """What its worker is told beside the model, the context and the threads."""
    flash_attention_is_a_choice: bool = False
    loads_a_file: bool = False
    """Else its weights are made up at the start, and the time to its first token says nothing."""
    of_source: Callable[[SourceWeights, str], PeerModel] | None = None
    """Its model of given weights; None: it has random ones only."""
    keeps_contexts: bool = False
    """Its worker writes the keys and values of a depth to a file and reads them again."""

    @property
    def version(self) -> str:
        from importlib.metadata import PackageNotFoundError, version  # parses e-mail headers: a megabyte, for peers only

        try:
            return version(next(iter(self.packages)))
        except PackageNotFoundError:
            return "unknown"


def _llama_cpp_choices(spec: PeerSpec, settings: PeerSettings) -> dict[str, Any]:
    return {"batch": settings.batch, "ubatch": settings.ubatch, "flash_attention": spec.flash_attention}


def _torch_model(config: LlamaConfig, library: str) -> PeerModel:
    """INT8 linears, and an embedding that stays float32."""
    linears = sum(operations(describe_model(config))) // 2
    everything = linears + 4 * config.vocab_size * config.hidden_size
    setting = {"config": asdict(config), "library": library}
    return PeerModel(setting, "", f"INT8 {library}", everything, lambda: WeightBytes(everything, linears), "f32", 4)


_EXTRA = f"they come with {install_extra('peers')}"
LLAMA_CPP = PeerEngine(
    "llama.cpp",
    "edge_llm.bench.peer_llama_cpp",
    (*VARIANTS, FILE),
    {"llama-cpp-python": "llama_cpp", "gguf": "gguf"},
    _EXTRA,
    gguf_model,
    _llama_cpp_choices,
    flash_attention_is_a_choice=True,
    loads_a_file=True,
    of_source=source_gguf_model,
    keeps_contexts=True,
)
GENAI = PeerEngine(
    "genai",
    "edge_llm.bench.peer_genai",
    GENAI_VARIANTS,
    {"onnxruntime-genai": "onnxruntime_genai", "onnx": "onnx"},
    _EXTRA,
    synthetic_onnx,
    loads_a_file=True,
)
OPENVINO = PeerEngine(
    "openvino",
    "edge_llm.bench.peer_openvino",
    OPENVINO_VARIANTS,
    {"openvino": "openvino"},
    _EXTRA,
    synthetic_openvino,
    loads_a_file=True,
)
TORCH = PeerEngine(
    "torch",
    "edge_llm.bench.peer_torch",
    ("x86", "fbgemm", "onednn"),
    {"torch": "torch"},
    "install it: pip install torch",
    _torch_model,
)
ENGINES = {engine.name: engine for engine in (LLAMA_CPP, GENAI, OPENVINO, TORCH)}


@dataclass(frozen=True)
class PeerSpec:
    """One way to run a peer."""

    engine: PeerEngine
    variant: str
    """Number format of the weights; torch: library that multiplies INT8 matrices."""
    flash_attention: bool = True
    at_depth_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.backend} {self.variant}"

    @property
    def backend(self) -> str:
        return self.engine.name if self.flash_attention else f"{self.engine.name} fa=0"

    def takes_part(self, test: Test) -> bool:
        return test.depth > 0 or not self.at_depth_only


def parse_peers(texts: Sequence[str], tests: Sequence[Test], *, of_file: bool = False) -> tuple[PeerSpec, ...]:
    """The peers that ``texts`` (each a list with commas) name; `UsageError`, or `DeviceError` for a missing package.

    of_file: llama.cpp, where nothing is said of the type, gets the file of the model.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    deep = any(test.depth for test in tests)
    specs = list(dict.fromkeys(spec for name in names for spec in _parse(name, deep, of_file)))
    for engine in dict.fromkeys(spec.engine.name for spec in specs):
        _require_packages(ENGINES[engine])
    return tuple(specs)


def _parse(name: str, deep: bool, of_file: bool) -> Iterator[PeerSpec]:
    first, *words = name.split(":")
    engine = ENGINES.get(first)
    if engine is None:
        raise UsageError(f"no peer `{name}`; there are: {', '.join(_known())}", param="peer")
    choices = ("fa", "nofa") if engine.flash_attention_is_a_choice else ()
    variants = [word for word in words if word in engine.variants]
    attention = [word for word in words if word in choices]
    if len(variants) > 1 or len(attention) > 1 or len(variants) + len(attention) < len(words):
        raise UsageError(f"no peer `{name}`; there are: {', '.join(_known())}", param="peer")
    default = FILE if of_file and engine is LLAMA_CPP else engine.variants[0]
    spec = PeerSpec(engine, variants[0] if variants else default, flash_attention=attention != ["nofa"])
    yield spec
    if choices and not attention and deep:
        yield replace(spec, flash_attention=False, at_depth_only=True)


def _known() -> list[str]:
    names = [f"{engine.name}:{variant}" for engine in ENGINES.values() for variant in engine.variants]
    return [*names, f"{LLAMA_CPP.name}:{LLAMA_CPP.variants[0]}:nofa"]


def _require_packages(engine: PeerEngine) -> None:
    missing = [package for package, module in engine.packages.items() if find_spec(module) is None]
    if missing:
        names = " and ".join(f"`{package}`" for package in missing)
        raise DeviceError(f"--peer {engine.name} needs {names}; {engine.advice}")


@dataclass(frozen=True)
class PeerSettings:
    """What all peers of a run are given."""

    config: ModelConfig
    context: int
    threads: int
    batch: int = BATCH
    ubatch: int = UBATCH
    source: SourceWeights | None = None
    """The weights that they get; None: random ones, which some have anyway."""


class Peer:
    """A peer in its worker process, as a contestant."""

    def __init__(self, spec: PeerSpec, settings: PeerSettings) -> None:
        self.spec = spec
        self._settings = settings
        self._model = model_of(spec, settings)
        self._worker = start(spec, settings)
        try:
            self.load_seconds = float(self._worker.receive())
            self.build = str(self._worker.ask("describe"))
            """What it was compiled for, in its own words."""
        except BaseException:
            self._worker.close()
            raise

    @property
    def process_id(self) -> int:
        return self._worker.process_id

    @property
    def costs(self) -> Costs:
        decoder, model = describe_model(self._settings.config), self._model
        values = 2 * sum(attention.kv_size for attention in decoder.attentions)  # keys and values of a token
        return Costs(*operations(decoder), model.count().read, model.kv_bytes * values)

    @property
    def model_facts(self) -> dict[str, Any]:
        """What a row says of the model: its file, type and size, and the types of keys and values."""
        model = self._model
        return {
            "model_filename": model.filename,
            "numbers": model.numbers,
            "model_size": model.size,
            "bits_per_weight": bits_per_weight(model.count().all, describe_model(self._settings.config).parameters),
            "type_k": model.kv_type,
            "type_v": model.kv_type,
        }

    def begin(self, depth: int) -> None:
        state = str(self._state_file(depth)) if depth and self.spec.engine.keeps_contexts else None
        self._worker.ask("begin", depth=depth, threads=self._settings.threads, state=state)

    def run(self, test: Test) -> float:
        return float(self._worker.ask("run", prompt=test.prompt, generate=test.generate))

    def use_threads(self, threads: int) -> None:
        """From the next `begin` on."""
        self._settings = replace(self._settings, threads=threads)

    def peak_rss_bytes(self) -> int:
        return self._worker.peak_rss_bytes()

    def close(self) -> None:
        self._worker.close()

    def _state_file(self, depth: int) -> Path:
        """Keys and values of random tokens: how they are laid out depends on flash attention, not on the weights' quant."""
        layout = "fa" if self.spec.flash_attention else "nofa"
        name = self._settings.config.family if self.spec.variant == FILE else shape_name(llama_shape(self._settings.config))
        return synthetic_folder() / f"{name}{self._of_file}-d{depth}-{layout}-{self.spec.engine.version}.state"

    @property
    def _of_file(self) -> str:
        """What tells the file of a model from others: nothing where its shape does."""
        source = self._settings.source
        return f"-{hashlib.sha256(source.digest.encode()).hexdigest()[:16]}" if source and self.spec.variant == FILE else ""


def model_of(spec: PeerSpec, settings: PeerSettings) -> PeerModel:
    """Its model, made unless it is there."""
    if settings.source is not None and spec.engine.of_source is not None:
        return spec.engine.of_source(settings.source, spec.variant)
    if spec.variant == FILE and spec.engine is LLAMA_CPP:
        raise UsageError(
            f"--peer {LLAMA_CPP.name}:{FILE} runs the GGUF file of a model, which is not here any more; name a type, such as "
            f"{LLAMA_CPP.name}:{LLAMA_CPP.variants[0]}",
            param="peer",
        )
    return spec.engine.model(llama_shape(settings.config), spec.variant)


def start(spec: PeerSpec, settings: PeerSettings) -> Worker:
    """A worker that says when it has loaded its model, and then serves requests."""
    model = model_of(spec, settings)
    setting = {"context": settings.context, "threads": settings.threads} | model.setting | spec.engine.choices(spec, settings)
    return Worker(spec.engine.module, setting, spec.name)


@contextmanager
def running(specs: Sequence[PeerSpec], settings: PeerSettings) -> Iterator[list[Peer]]:
    """All of ``specs`` started, and ended again whatever happens."""
    with ExitStack() as stack:
        peers = []
        for spec in specs:
            peers.append(Peer(spec, settings))
            stack.callback(peers[-1].close)
        yield peers
