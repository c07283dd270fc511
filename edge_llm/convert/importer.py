"""Import: a float model becomes a bundle, in a few sweeps over its layers.

    digest the source -> tokenizer, template, calibration sequences
    -> survey: the float model on the calibration text: which folds make its channels even, the static scales behind turns
    -> write: embedding, per layer read, fold, turn, fit or round, write; final norm, output -> text files, float copy if wanted
    -> manifest -> rename

At any time about one layer is in memory, beside the embedding while it is quantized.  The bundle grows in a hidden
folder beside its place and appears by a rename, so a half-written one is never visible.  An import that is stopped by
Ctrl-C, a kill or a full disk leaves the folder, with all that it found out; the same import then goes on from there, and
gives the same bytes (`unfinished`).

    path = import_model("~/models/qwen2.5-0.5b", name="qwen")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from edge_llm.config import INT8, W4
from edge_llm.convert.allocate import LayerBits, allocate, in_schemes, that_fit
from edge_llm.convert.calibrate import CalibrationText, read_calibration
from edge_llm.convert.choose import Outliers, largest_turn, refuse_beside
from edge_llm.convert.coding import Coder
from edge_llm.convert.float_copy import float_copy
from edge_llm.convert.origin import made_from
from edge_llm.convert.packed import bits_in_words, digest_in_floats
from edge_llm.convert.saved import Saved
from edge_llm.convert.sensitivity import Costs, four_bit_costs
from edge_llm.convert.survey import Survey, Wishes, survey_model
from edge_llm.convert.taken import taken_from
from edge_llm.convert.target import check_space, existing, refuse_overlap, taken
from edge_llm.convert.texts import coded_tokens, texts_of
from edge_llm.convert.trial import held_out_sequences
from edge_llm.convert.turns import with_turns
from edge_llm.convert.unfinished import Unfinished, refuse_second
from edge_llm.convert.usable import check_usable
from edge_llm.convert.writing import Written, write_weights, written_before
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.formats.leftovers import clear_leftovers, remove_stopped
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.weights import check_tensors
from edge_llm.paths import BUILTIN_MODEL_NAME, bundle_path
from edge_llm.progress import StageProgress, ignore
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.folding import Fold
from edge_llm.quant.profile import (
    HOT_FACTOR,
    HOT_SHARE,
    OVERFLOW_PRICE,
    TURNED_HEAD_PRICE,
    TURNED_PRICE,
    OutlierProfile,
    linear_profile,
    naive_treatment,
    treatments,
    turned_treatments,
)
from edge_llm.quant.quality import Quality
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.w4 import fits
from edge_llm.schemes import scheme_of
from edge_llm.schemes.parts import is_multiplied_as_int8
from edge_llm.sources import Source, open_source
from edge_llm.sources.lora_places import Wish
from edge_llm.sources.names import default_name
from edge_llm.text.ends import turn_end
from kernels.memory import recycled


def import_model(
    source: str | Path,
    name: str | None = None,
    *,
    revision: str | None = None,
    lora: Sequence[Wish] = (),
    target: Path | None = None,
    calibration: Path | str | None = None,
    keep_float: bool = False,
    outliers: Outliers | None = None,
    fold: bool = True,
    turn: int | None = None,
    weights: LayerBits | None = None,
    overwrite: bool = False,
    fresh: bool = False,
    progress: StageProgress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Path:
    """Import ``source`` (a Hugging Face folder, a hub id ``org/name``, its page, a short name) and return the bundle's folder.

    name: what the bundle will be called (default: what the source is called).  lora: adapters to merge, in order.  target: a
    folder to write instead of the one that belongs to the name.  calibration: a UTF-8 text to use instead of the built-in one;
    `BY_MODEL`: the float model writes half of it.  keep_float: put the float weights (float16) into the bundle.  outliers:
    what is done about what a static scale cuts off, and where nothing is turned.  fold: make uneven channels even, by factors
    that cancel.  turn: the largest block of channels that is turned, 0: none (default: `MAX_TURN`; 0 where the mode of
    ``outliers`` is full or naive).  weights: how many bits the layers get, and whether INT8 is fitted (default: INT8, rounded;
    the command fits).  overwrite: replace another model of this name.  fresh: do not go on where the same import was stopped.
    notice: told a line at a time.

    The same source under the same name again is a quick no-op, or a repair if the bundle was damaged.
    Raises `UsageError` (a name that is taken), `Unavailable` (another import of this name is at work), `ModelNotFound`,
    `InvalidModel`, `UnsupportedModel`, `HubError` or `StorageError`.  What is done stays for the same import after a
    `StorageError` or Ctrl-C; the others leave nothing behind.
    """
    if name == BUILTIN_MODEL_NAME and target is None:
        raise UsageError("`builtin` is the built-in model; choose another `--name`", param="name")
    tell_progress = progress or ignore
    tell = notice or ignore
    weights = weights or LayerBits()
    text = read_calibration(calibration, coded=weights.fitted)
    if target is None:
        target = bundle_path(default_name(source, [one.source for one in lora]) if name is None else name)
    target = target.absolute()
    refuse_second(target)  # before the source is downloaded and read
    with open_source(source, revision=revision, progress=tell_progress, notice=tell, lora=lora) as opened:
        refuse_overlap(Path(opened.place), target)
        clear_leftovers(target.parent)
        if fresh:
            remove_stopped(target)
        job = _Job(opened, text, keep_float, outliers or Outliers(), fold, turn, weights, tell_progress, tell)
        state = existing(target, job.made_by, job.keep_float)
        if not _stays(target, state, overwrite, job):
            _make(target, job, replace=overwrite or state == "damaged")
    return target


def _stays(target: Path, state: str, overwrite: bool, job: _Job) -> bool:
    """Whether what is at ``target`` is as good as what ``job`` would make, which is said; refuses another model."""
    if state == "older" and not overwrite:
        job.notice(f"`{target.name}` was imported from this source by an older edge-llm and stays so; `--overwrite` renews it")
        return True
    if state == "same":
        remove_stopped(target)
        job.notice(f"`{target.name}` is already imported from this source; nothing to do")
        job.progress("unchanged", 1, 1)
        return True
    if state == "other" and not overwrite:
        raise taken(target)
    return False


def _make(target: Path, job: _Job, *, replace: bool) -> None:
    with Unfinished(target, job.facts, job.notice) as unfinished:
        check_space(unfinished.folder, job.decoder, keep_float=job.keep_float, fitted_tokens=job.fitted_tokens)
        with recycled():
            job.write(unfinished.bundle, unfinished.saved)
        job.source.check_unchanged()
        if not unfinished.publish(replace=replace) and existing(target, job.made_by, job.keep_float) != "same":
            raise taken(target)  # where nothing can be locked, another import was faster, with another model


class _Job:
    """One import: the source opened and checked, and how its bundle is written."""

    def __init__(
        self,
        source: Source,
        text: CalibrationText,
        keep_float: bool,
        outliers: Outliers,
        fold: bool,
        turn: int | None,
        weights: LayerBits,
        progress: StageProgress,
        notice: Callable[[str], None],
    ) -> None:
        self.source = source
        self.text = text
        self.keep_float = keep_float
        self.outliers = outliers
        self.fold = fold and outliers.mode != "naive"
        self.weights = weights
        self.progress = progress
        self.notice = notice
        self.config = source.config
        self.turn = largest_turn(turn, outliers)
        plain = describe(self.config)
        self.taken = taken_from(source, plain)
        self.asked = {**outliers.asked(plain), **weights.asked(plain)}
        if self.taken is not None:
            refuse_beside(keep_float, outliers, weights.kind)
            self.fold, self.weights, self.asked = False, LayerBits(), self.taken.floats
        self.decoder = with_turns(plain.with_schemes(self.asked), self.turn).with_schemes(dict.fromkeys(self.asked, INT8))
        if self.taken is not None:
            self.decoder = self.taken.turned(plain, self.decoder)
        self.unused = check_tensors(source, self.decoder)
        self.tokenizer = source.tokenizer()
        source.template(self.tokenizer).check()
        check_usable(source, self.tokenizer, notice)
        self.turn_end = self._turn_end()
        for line in bits_in_words(source, self.decoder.parameters, weights.kind, weights.bits, fitted=weights.fitted):
            notice(line)
        self.digest = source.digest(digest_in_floats(progress, self.decoder.parameters))
        if self.unused:
            names = ", ".join(f"`{shown(name)}`" for name in self.unused[:3])
            notice(f"{len(self.unused)} tensors of the source are not part of this architecture: {names}")

    @property
    def folds(self) -> str:
        """As a manifest holds it; bundles from before there were folds say nothing."""
        return "even" if self.fold else "none"

    @property
    def made_by(self) -> dict[str, str]:
        """The source's content and what was asked for, as a manifest says it."""
        return {
            "digest": self.digest,
            "calibration": self.text.digest,
            "outliers": str(self.outliers),
            "folds": self.folds,
            "turns": f"at most {self.turn}" if self.turn else "none",
            "weights": str(self.weights),
        }

    @property
    def fitted_tokens(self) -> int:
        """Tokens that weights are fitted to, at most; 0: none are fitted."""
        return coded_tokens(self.decoder, codes=self.weights.kind != INT8) if self.weights.fitted else 0

    @property
    def facts(self) -> dict[str, str]:
        """All that the bytes of the bundle depend on."""
        return {
            **self.made_by,
            "float": str(self.keep_float),
            "version": _version(),
            "numpy": np.__version__,
        }

    def write(self, folder: Path, saved: Saved) -> None:
        """Write the bundle into ``folder``, going on from what is ``saved``."""
        most = self.fitted_tokens
        texts = texts_of(self.text, self.source, self.decoder, self.tokenizer, most, saved, self.progress, self.notice)
        wishes = Wishes(self._treat, self.fold, self.asked, bool(self.turn) and self.taken is None)
        survey = survey_model(self.source, self.decoder, self.config.context, texts.measured, wishes, saved, self.progress)
        self._tell_folds(survey.found_folds)
        chosen = self._treated(survey)
        treated = self._in_scheme(chosen, partial(self._four_bit_costs, survey, saved, chosen))
        written = written_before(folder, saved)
        with BundleWriter(folder, written.tensors) as writer:
            quality = self._write_weights(writer, treated, survey, texts.coded, saved, written)
            self._write_files(writer)
            profile = OutlierProfile(
                calibration=self.text.digest,
                tokens=survey.tokens,
                hot_factor=HOT_FACTOR,
                hot_share=0.0 if self.turn else HOT_SHARE,
                overflow_price=TURNED_PRICE if self.turn else OVERFLOW_PRICE,
                linears={name: linear_profile(one, survey.treatments[name]) for name, one in treated.items()},
                folds=survey.found_folds,
                held_out={} if quality is None else quality.to_fields(),
            )
            writer.finish(
                self.config,
                {name: one.input_scale for name, one in treated.items()},
                shadows={name: one.shadow for name, one in treated.items()},
                schemes={name: one.scheme for name, one in treated.items()},
                facts={name: scheme_of(one).facts_of(treated[name]) for name, one in self._model_of(treated).linears().items()},
                turns={name: one.turn for name, one in self.decoder.linears().items()},
                heads=self.decoder.head_turns,
                profile=profile.to_fields(),
                source=made_from(self.source, self.made_by, self.keep_float),
                created_with=_version(),
            )

    def _treated(self, survey: Survey) -> dict[str, Treatment]:
        """How every linear is treated in INT8, or in the scheme that was asked for."""
        kept = 0 if self.outliers.mode == "none" else -1
        options = survey.treatments | {name: (survey.others[name],) for name in self.asked}
        return {name: found[kept] for name, found in options.items()}

    def _in_scheme(
        self, chosen: Mapping[str, Treatment], costs_of: Callable[[Collection[str]], Costs]
    ) -> dict[str, Treatment]:
        """What was ``chosen`` for INT8, with the linears in the weights that were asked for."""
        if self.weights.kind == INT8:
            return dict(chosen)
        found = self._layers_in_scheme(chosen, costs_of)
        if self.weights.head == INT8:
            return found
        if not fits(self.decoder.output.columns):
            self.notice("the output matrix stays INT8: its input channels are no multiple of 4")
            return found
        return in_schemes(found, {"output": W4})

    def _layers_in_scheme(
        self, chosen: Mapping[str, Treatment], costs_of: Callable[[Collection[str]], Costs]
    ) -> dict[str, Treatment]:
        linears = [name for name, one in chosen.items() if name != "output" and one.scheme == INT8]
        whole = that_fit(self.decoder, chosen)
        if len(whole) < len(linears):
            self.notice(f"{len(linears) - len(whole)} linears stay INT8: their input channels are no multiple of 4")
        if self.weights.kind == W4:
            return in_schemes(chosen, {name: self.weights.fixed.get(name, W4) for name in whole})
        return allocate(self.decoder, chosen, self.weights.bits, costs_of, self.weights.fixed)

    def _treat(self, seen: ChannelStatistics, weight: np.ndarray, judged: np.ndarray) -> tuple[Treatment, ...]:
        if self.taken is not None and seen.name in self.taken:
            return self.taken.treatments(seen, weight)
        if self.turn:
            return turned_treatments(seen, weight, TURNED_HEAD_PRICE if seen.name == "output" else TURNED_PRICE)
        return (naive_treatment(seen, judged),) if self.outliers.mode == "naive" else treatments(seen, weight, judged)

    def _four_bit_costs(
        self, survey: Survey, saved: Saved, chosen: Mapping[str, Treatment], names: Collection[str]
    ) -> Costs:
        """What 4 bits cost in the linears ``names``, from what is ``saved`` where it is there."""
        found = saved.load("costs")
        if found is None:
            tell = partial(self.progress, "costs of 4 bits")
            found = four_bit_costs(self.source, self.decoder, survey, chosen, names, tell)
            saved.save("costs", found)
        return dict(found)

    def _tell_folds(self, found: Mapping[str, Fold]) -> None:
        """Say how many of the places were folded; where nothing was to be folded, nothing."""
        if not self.fold:
            return
        folded = [fold for fold in found.values() if any(fold.powers)]
        self.notice(f"folded uneven channels in {len(folded)} of {len(found)} places; the float model is the same")

    def _model_of(self, treated: Mapping[str, Treatment]) -> Decoder:
        """The model with the weight schemes that its linears got."""
        return self.decoder.with_schemes({name: one.scheme for name, one in treated.items()})

    def _write_weights(
        self,
        writer: BundleWriter,
        treated: Mapping[str, Treatment],
        survey: Survey,
        sequences: list[np.ndarray],
        saved: Saved,
        written: Written,
    ) -> Quality | None:
        """Write all weights; how near the bundle is to the float model on text that no weight was fitted to."""
        coder, held_out = self._coder(treated, sequences), held_out_sequences(self.tokenizer, self.config)
        decoder = self._model_of(treated)
        parts = treated, coder, held_out, self.progress, saved, written, self.taken
        quality = write_weights(writer, self.source, decoder, survey, *parts)
        for told in self.taken.told() if self.taken is not None else ():
            self.notice(told)
        if coder:
            self.notice(f"{coder.fitted} linears are fitted to the calibration text, {coder.rounded} rounded")
        if quality:
            self.notice(f"on held-out text: {quality}")
        return quality

    def _coder(self, treated: Mapping[str, Treatment], sequences: list[np.ndarray]) -> Coder | None:
        """What fits weights to the calibration text, where that is asked for."""
        if not self.weights.fitted or not any(is_multiplied_as_int8(one.scheme) for one in treated.values()):
            return None
        return Coder.begin(self.source, self.decoder, sequences)

    def _turn_end(self) -> int | None:
        """A token that ends turns in the template and that the configs do not name, which is told."""
        token = turn_end(self.source.template(self.tokenizer), self.tokenizer)
        if token is not None:
            text = shown(self.tokenizer.token_text(token), 40)
            self.notice(f"`{text}` ends a turn in the chat template and no config names it: it ends answers, too")
        return token

    def _side_files(self) -> dict[str, bytes]:
        files = dict(self.source.side_files())
        if self.turn_end is not None:
            ends = {"eos_token_id": sorted({*self.tokenizer.eos_ids, self.turn_end})}
            files["generation_config.json"] = json.dumps(self.source.generation_config() | ends, indent=2).encode()
        return files

    def _write_files(self, writer: BundleWriter) -> None:
        files = self._side_files()
        for name, data in files.items():
            writer.add_file(name, [data])
        if self.keep_float:
            writer.add_file("source/config.json", [files["config.json"]])
            writer.add_file("source/model.safetensors", float_copy(self.source, self.unused, self.progress))


def _version() -> str:
    import edge_llm

    return edge_llm.__version__
