"""One import: the source opened and checked, and how its bundle is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from edge_llm.config import BLOCKS, INT8, W4
from edge_llm.convert.allocate import LayerBits, allocate, in_schemes, that_fit
from edge_llm.convert.blocks import KeptBlocks
from edge_llm.convert.calibrate import CalibrationText
from edge_llm.convert.choose import Outliers, largest_turn, refuse_beside
from edge_llm.convert.coding import FEWEST, Coder
from edge_llm.convert.float_copy import float_copy
from edge_llm.convert.kept_folds import folds_file
from edge_llm.convert.origin import made_from
from edge_llm.convert.packed import bits_in_words, digest_in_floats
from edge_llm.convert.saved import Saved
from edge_llm.convert.sensitivity import Costs, four_bit_costs
from edge_llm.convert.survey import Survey, Wishes, survey_model
from edge_llm.convert.taken import taken_from
from edge_llm.convert.texts import coded_tokens, texts_of
from edge_llm.convert.trial import Trial, held_out_texts
from edge_llm.convert.turns import with_turns
from edge_llm.convert.usable import check_usable
from edge_llm.convert.writing import Written, write_weights, written_before
from edge_llm.files import shown
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.formats.manifest import FOLDS
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.weights import check_tensors
from edge_llm.progress import StageProgress
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
from edge_llm.quant.quality import Closeness, Quality
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.w4 import fits
from edge_llm.schemes import scheme_of
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.sources import Source
from edge_llm.sources.base import BlockSource
from edge_llm.text.ends import turn_end


class Job:
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
        self.kept = KeptBlocks(source, plain) if weights.kind == BLOCKS and isinstance(source, BlockSource) else None
        if self.kept is not None:
            self.fold, self.turn, self.decoder = False, 0, self.kept.decoder
        self.tokenizer = source.tokenizer()
        source.template(self.tokenizer).check()
        check_usable(source, self.tokenizer, notice)
        self.turn_end = self._turn_end()
        bits = partial(bits_in_words, source, self.decoder.parameters, weights.kind, weights.bits, fitted=weights.fitted)
        for line in bits() if self.kept is None else self.kept.told():
            notice(line)
        in_floats = digest_in_floats(progress, self.decoder.parameters)
        self.digest = source.digest(in_floats if self.kept is None else lambda _, done, total: progress("read", done, total))
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
            "calibration": self.text.digest if self.kept is None else "none",
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
        if self.kept is not None:
            written_before(folder, saved)
            self._write_kept(folder, self.kept)
            return
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
            if self.fold:
                writer.add_file(FOLDS, folds_file(survey.folds))
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

    def _write_kept(self, folder: Path, kept: KeptBlocks) -> None:
        """The bundle of blocks, from its beginning: it takes little longer than to read what another process wrote."""
        with BundleWriter(folder) as writer:
            kept.write(writer, self.progress)
            self._write_files(writer)
            writer.finish(
                self.config,
                {},
                schemes=kept.schemes,
                heads=self.decoder.head_turns,
                profile={},
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
    ) -> Quality | Closeness | None:
        """Write all weights; how near the bundle is to the float model on text that no weight was fitted to."""
        coder, held_out = self._coder(treated, sequences), held_out_texts(self.tokenizer, self.config)
        decoder = self._model_of(treated)
        trial = Trial(self.source, decoder, held_out, survey, treated) if held_out else None
        parts = treated, coder, trial, self.progress, saved, written, self.taken
        quality = write_weights(writer, self.source, decoder, survey, *parts)
        for told in self.taken.told() if self.taken is not None else ():
            self.notice(told)
        if coder:
            self.notice(f"{coder.fitted} linears are fitted to the calibration text, {coder.rounded} rounded")
        if coder and coder.scarce:
            self.notice(f"{coder.scarce} linears of experts are rounded because fewer than {FEWEST} rows of it went to them")
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
