"""One call of the benchmark: `BenchSettings` go in, rows with llama-bench's keys and ours come out as they are measured."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from edge_llm import kernels
from edge_llm.bench.breakdown import Breakdown, Clock, break_down
from edge_llm.bench.disk import DiskMeter, DiskUse, streaming
from edge_llm.bench.environment import CoreMeter, CoreUsage, core_warning, environment, load_warning, utc_now
from edge_llm.bench.first_token import CONTEXT, FirstToken, cold_worker, measure_first_token, own_worker
from edge_llm.bench.from_source import OURS, Prepared
from edge_llm.bench.measure import Measurement, OwnRunner, Ratio, Test, measure
from edge_llm.bench.memory import forget_peak, peak_rss_bytes
from edge_llm.bench.peer import BATCH, UBATCH, Peer, PeerSettings, PeerSpec, running, start
from edge_llm.bench.roofs import Costs, Roofs, measure_roofs, shares
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.sizes import float_sizes, sizes
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Site
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.base import FlashCounts, TokenBytes

NOISY = 0.05
"""Standard deviation over mean of the speed, from which a row deserves a warning."""

Row = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class BenchSettings:
    """What is to be measured, and how."""

    label: str
    """What tables call the model."""
    bundle: Bundle
    tests: tuple[Test, ...]
    runtime: RuntimeConfig
    """The ``threads`` of it are not used."""
    threads: tuple[int, ...]
    repetitions: int = 5
    warm_up: bool = True
    delay: float = 0.0
    """Seconds to wait before every test."""
    peers: tuple[PeerSpec, ...] = ()
    peer_batch: int = BATCH
    peer_ubatch: int = UBATCH
    roof: bool = False
    breakdown: bool = False
    first_token: bool = False
    prepared: Prepared = field(default_factory=Prepared)

    @property
    def context(self) -> int:
        return max(test.tokens for test in self.tests)

    def of_peers(self, context: int, threads: int) -> PeerSettings:
        """What peers are given.  Raises `UsageError` for a model that no other engine is given."""
        return PeerSettings(
            self.bundle.config, context, threads, self.peer_batch, self.peer_ubatch, self.prepared.source
        )


def run(settings: BenchSettings, warn: Tell, announce: Tell) -> Iterator[Row]:
    """Measure; every row is complete when it comes.  ``warn`` hears what makes numbers doubtful."""
    surroundings = environment()
    _say(warn, load_warning(surroundings["load_average_start"]))
    with ExitStack() as stack:
        peers: list[Peer] = []
        if settings.peers:
            announce(f"starting {', '.join(spec.name for spec in settings.peers)}")
            peer_settings = settings.of_peers(settings.context + 1, settings.threads[0])
            peers = stack.enter_context(running(settings.peers, peer_settings))
        for threads in settings.threads:
            for peer in peers:
                peer.use_threads(threads)
            yield from _with_threads(settings, threads, peers, surroundings, warn, announce)


def _with_threads(
    settings: BenchSettings, threads: int, peers: Sequence[Peer], surroundings: dict[str, Any], warn: Tell, announce: Tell
) -> Iterator[Row]:
    runtime = replace(settings.runtime, threads=threads)
    firsts = _first_tokens(settings, threads, announce)
    roof_meter = _RoofMeter(threads, settings.roof)
    started = time.perf_counter()
    runner, runtime = load_runner(settings.bundle, runtime, settings.context)
    weights = runner.model.weights if isinstance(runner, Int8Runner) else None
    streamed = 0 if weights is None else weights.streamed_bytes
    token = TokenBytes() if weights is None else weights.token_bytes
    facts = _Facts(settings, runtime, runner.site, firsts, time.perf_counter() - started, surroundings, streamed, token)
    disk_meter = DiskMeter(settings.bundle if streamed else None)
    load_peak = peak_rss_bytes()
    own = OwnRunner(runner, settings.bundle.config.vocab_size)
    del runner, weights
    rows: list[Row] = []
    for test in settings.tests:
        time.sleep(settings.delay)
        announce(f"{test.label}, {threads} threads")
        taking_part = [peer for peer in peers if peer.spec.takes_part(test)]
        meter = CoreMeter([peer.process_id for peer in taking_part])
        before = roof_meter.before()
        disk_before = disk_meter.before()
        experts_before = own.experts
        mine, *theirs = measure([own, *taking_part], test, settings.repetitions, warm_up=settings.warm_up)
        disk = disk_meter.after(disk_before, alone=not taking_part)
        mine = replace(mine, peak_rss_bytes=max(mine.peak_rss_bytes, load_peak))
        usage = meter.read()
        roofs = roof_meter.after(before)
        _say(warn, core_warning(usage, test.label))
        made = [facts.own_row(mine, roofs, usage, disk, _since(experts_before, own.experts))]
        made += [facts.peer_row(peer, m, mine, roofs, usage) for peer, m in zip(taking_part, theirs, strict=True)]
        for row in made:
            _say(warn, _noise_warning(row, advice="trust the ratio more" if peers else "repeat it when the machine is quiet"))
        rows += made
        if not settings.breakdown:
            yield from made
    if settings.breakdown:
        del own  # the weights are loaded anew
        gc.collect()
        announce(f"breakdown, {threads} threads")
        found = iter(_breakdowns(settings, runtime, threads))
        for row in rows:
            yield row | ({} if row["peer"] else {"breakdown": next(found).as_dict(roof_meter.best)})


def _since(before: FlashCounts | None, now: FlashCounts | None) -> FlashCounts | None:
    return None if before is None or now is None else now - before


def _breakdowns(settings: BenchSettings, runtime: RuntimeConfig, threads: int) -> list[Breakdown]:
    """Load the model once more, under a `Clock`, and run every test on it."""
    clock = Clock()
    runner, _ = load_runner(settings.bundle, runtime, settings.context, clock.watch)
    own = OwnRunner(runner, settings.bundle.config.vocab_size)
    return break_down(own, clock, settings.tests, settings.repetitions, threads)


class _RoofMeter:
    """Measures roofs around tests; what it measured after one test serves before the next.  ``best`` is the highest."""

    def __init__(self, threads: int, wanted: bool) -> None:
        self._pool = kernels.ThreadPool(threads) if wanted else None
        self._last = self.best = self._measure()

    def before(self) -> Roofs | None:
        return self._last

    def after(self, before: Roofs | None) -> Roofs | None:
        self._last = self._measure()
        if before is None or self._last is None or self.best is None:
            return None
        self.best = self.best.higher(self._last)
        return before.higher(self._last)

    def _measure(self) -> Roofs | None:
        if self._pool is None:
            return None
        roofs = measure_roofs(self._pool)
        forget_peak()  # it takes half a gigabyte, which no model asked for
        return roofs


def _first_tokens(settings: BenchSettings, threads: int, announce: Tell) -> dict[str, FirstToken]:
    """By the name of the peer; ours under the empty name."""
    if not settings.first_token:
        return {}
    announce(f"first token, {threads} threads")
    specs = [spec for spec in settings.peers if spec.engine.loads_a_file and not spec.at_depth_only]
    folder = settings.bundle.folder
    starters = [lambda: own_worker(folder, threads), lambda: cold_worker(folder, threads)]
    starters += [lambda spec=spec: start(spec, settings.of_peers(CONTEXT, threads)) for spec in specs]  # type: ignore[misc]
    own, cold, *others = measure_first_token(starters, settings.repetitions)
    measured = [replace(own, cold=cold.token), *others]
    return dict(zip(["", *(spec.name for spec in specs)], measured, strict=True))


@dataclass(frozen=True)
class _Facts:
    """What every row of one thread count says."""

    settings: BenchSettings
    runtime: RuntimeConfig
    site: Site
    firsts: dict[str, FirstToken]
    load_seconds: float
    surroundings: dict[str, Any]
    streamed_bytes: int
    """Bytes that our runner reads from flash for a generated token."""
    token: TokenBytes
    """All weights that it takes for one, by where they lie; nothing for a float model."""

    def own_row(
        self,
        measurement: Measurement,
        roofs: Roofs | None,
        usage: CoreUsage | None,
        disk: DiskUse | None,
        experts: FlashCounts | None,
    ) -> Row:
        settings, runtime = self.settings, self.runtime
        assert runtime.chunk is not None
        found = float_sizes(settings.bundle) if runtime.float_path else sizes(settings.bundle)
        kv_type = "f32" if runtime.float_path else "int8"
        model = {
            "peer": None,
            "peer_version": None,
            "peer_build": None,
            "backends": self.site.device,
            **asdict(self.site),
            "model_filename": settings.bundle.folder.name,
            "model_type": f"{settings.label} {'F32' if runtime.float_path else found.precision.upper()}",
            "model_size": found.nbytes if runtime.float_path else settings.bundle.size,
            "bits_per_weight": found.bits_per_weight,
            "n_batch": runtime.chunk * runtime.window,
            "n_ubatch": runtime.chunk,
            "type_k": kv_type,
            "type_v": kv_type,
            "flash_attn": True,
            "load_ms": 1e3 * self.load_seconds,
            **(dict.fromkeys(self.token.facts) if runtime.float_path else self.token.facts),
            **self._quality(OURS),
        }
        costs = None if runtime.float_path else Costs.of_bundle(settings.bundle)
        row = self._row("", model, measurement, costs, roofs, usage) | dict.fromkeys(_RATIO)
        return row | streaming(row, self.streamed_bytes, disk, experts)

    def peer_row(
        self, peer: Peer, measurement: Measurement, ours: Measurement, roofs: Roofs | None, usage: CoreUsage | None
    ) -> Row:
        spec, facts = peer.spec, peer.model_facts
        model = {
            "peer": spec.name,
            "peer_version": spec.engine.version,
            "peer_build": peer.build,
            "backends": spec.backend,
            **dict.fromkeys(field.name for field in fields(Site)),
            "model_type": f"{self.settings.label} {facts.pop('numbers')}",
            **facts,
            "n_batch": self.settings.peer_batch,
            "n_ubatch": self.settings.peer_ubatch,
            "flash_attn": spec.flash_attention,
            "load_ms": 1e3 * peer.load_seconds,
            **dict.fromkeys(self.token.facts),
            **self._quality(spec.variant if spec.engine.of_source is not None else None),
        }
        ratio = Ratio.of(ours, measurement)
        ratios = dict(zip(_RATIO, (ratio.median, ratio.low, ratio.high), strict=True))
        row = self._row(spec.name, model, measurement, peer.costs, roofs, usage) | ratios
        return row | streaming(row, 0, None)

    def _quality(self, name: str | None) -> Row:
        found = None if name is None else self.settings.prepared.quality.get(name)
        if found is None:
            return dict.fromkeys(_QUALITY)
        return dict(zip(_QUALITY, (found.mean_kl, found.top1_agreement, found.tokens), strict=True))

    def _row(
        self, name: str, model: Row, measurement: Measurement, costs: Costs | None, roofs: Roofs | None, usage: CoreUsage | None
    ) -> Row:
        rates: dict[str, float | None] = {"gops": None, "gb_s": None}
        if costs is not None:
            rates = costs.rates(measurement)
        first = self.firsts.get(name)
        surroundings = self.surroundings
        return {
            "build_version": surroundings["edge_llm"],
            "build_commit": surroundings["commit"],
            "cpu_info": surroundings["cpu"],
            "gpu_info": "",
            **model,
            "model_n_params": self.settings.bundle.decoder.parameters,
            "n_threads": self.runtime.threads,
            "isa": None if name else kernels.isa(),
            "test_time": utc_now(),
            **measurement.as_row(),
            **rates,
            **shares(rates, roofs),
            "roof_gops": None if roofs is None else roofs.operations / 1e9,
            "roof_gb_s": None if roofs is None else roofs.read_bytes / 1e9,
            **(dict.fromkeys(_FIRST) if first is None else first.as_dict()),
            "other_cores": None if usage is None else usage.others,
            "steal_cores": None if usage is None else usage.steal,
            "environment": surroundings | {"load_average_end": list(os.getloadavg())},
        }


_RATIO = ("ratio", "ratio_low", "ratio_high")
"""In the row of a peer: our speed over its speed (medians), and the range over pairs of neighbouring runs."""
_QUALITY = ("mean_kl", "top1_agreement", "quality_tokens")
"""Nearness to the float path on the held-out text: mean KL(float || model) in nats, equal best tokens, tokens predicted."""
_FIRST = ("ready_ms", "ttft_ms", "samples_ttft_ms", "ttft_cold_ms", "ttft_peak_rss_bytes")


def _noise_warning(row: Row, advice: str) -> str | None:
    if row["spread"] <= NOISY:
        return None
    who = row["peer"] or "edge-llm"
    return f"{row['test']}, {who}: runs differ by {row['spread']:.0%} (standard deviation over mean); {advice}"


def _say(tell: Tell, sentence: str | None) -> None:
    if sentence:
        tell(sentence)
