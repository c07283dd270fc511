"""Adapters per request: near the merged model, beside anything in a step with the bits that each has alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import adapter_gguf, merged, pairs, write_adapter
from families import family_folder
from gguf_files import model_gguf
from model_files import random_tensors, safetensors_bytes, tiny_config, write_model

from edge_llm import LLM
from edge_llm.cli.main import run as cli
from edge_llm.config import RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.importer import import_model
from edge_llm.errors import DeviceError, EdgeLLMError, InvalidModel, OutOfMemory, UnsupportedModel, UsageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.models.reference import FloatModel
from edge_llm.opening import resolve as opening
from edge_llm.opening.adapters import open_adapters
from edge_llm.opening.load import plan_of
from edge_llm.opening.runner import load_runner
from edge_llm.paths import builtin_bundle, name_of
from edge_llm.runner.base import Segment
from edge_llm.sources import open_source

pytestmark = pytest.mark.thorough(file=5)

RAW = tiny_config("llama", num_hidden_layers=5)
PROMPT = np.random.default_rng(7).integers(3, 250, 70).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, two adapters of all its linears, `a` and `b`, and one of two linears, `few`."""
    folder = tmp_path_factory.mktemp("adapters")
    write_model(folder / "base", RAW)
    tensors = random_tensors(RAW)
    write_adapter(folder / "a", pairs(tensors, seed=1))
    write_adapter(folder / "b", pairs(tensors, rank=6, seed=2), r=6)
    few = ["v_proj", "down_proj"]
    write_adapter(folder / "few", pairs(tensors, targets=few, seed=3), target_modules=few)
    return folder


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    """The model, folded and turned, as an import makes it."""
    import_model(folder / "base", target=folder / "bundle")
    return open_bundle(folder / "bundle")


def lora(folder: Path, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}={folder / name}" for name in names)


def runner_of(bundle: Bundle, *texts: str, **options: Any) -> Any:
    adapters = open_adapters(texts, bundle, name_of(bundle.folder)) if texts else None
    return load_runner(bundle, RuntimeConfig(threads=2, kv_tokens=1024, **options), 200, adapters=adapters)[0]


def logits(runner: Any, adapter: int, tokens: Sequence[int] = PROMPT) -> np.ndarray:
    return np.asarray(runner.run([Segment(runner.memory.open((), adapter), tokens, len(tokens))])[0])


def float_logits(source: Path) -> np.ndarray:
    with open_source(source) as opened:
        return FloatModel(opened, opened.config).forward(PROMPT)


def as_floats(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


WAYS: dict[str, dict[str, Any]] = {
    "as imports are": {},
    "static scales": {"runtime": {"activations": "static"}},
    "4 bits": {"weights": LayerBits("w4")},
    "as it was": {"fold": False, "turn": 0},
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_as_near_the_merged_model_as_the_model_is_to_itself(way: str, folder: Path, tmp_path: Path) -> None:
    how = dict(WAYS[way])
    runtime = how.pop("runtime", {})
    import_model(folder / "base", target=tmp_path / "bundle", **how)
    tensors = random_tensors(RAW)
    runner = runner_of(open_bundle(tmp_path / "bundle"), *lora(folder, "a"), **runtime)
    base = float_logits(folder / "base")
    changed = as_floats(merged(tensors, pairs(tensors, seed=1)))
    with_a = float_logits(write_model(tmp_path / "m", RAW, tensors=changed))
    assert error(base, with_a) > 0.1
    assert error(logits(runner, 1), with_a) < 1.5 * error(logits(runner, 0), base)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("name", ["gemma2", "granite", "phi3", "glm4", "qwen2", "olmo2"])
def test_families_with_factors_slices_pairs_and_biases(name: str, tmp_path: Path) -> None:
    """The rows of queries and keys lie otherwise here, one module gives several linears, and factors are in the weights."""
    if name == "qwen2":
        source, raw = write_model(tmp_path / "base", tiny_config("qwen2")), tiny_config("qwen2")
        tensors = random_tensors(raw)
    else:
        source, _ = family_folder(tmp_path / "base", name)
        with open_source(source) as opened:
            tensors = {one: opened.read(one) for one in opened.names()}
    targets = ["q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_up_proj", "gate_proj", "up_proj", "down_proj"]
    matrices = pairs(tensors, targets=targets)
    named = sorted({one.split(".lora_")[0].rpartition(".")[2] for one in matrices})
    write_adapter(tmp_path / "a", matrices, target_modules=named)
    import_model(source, target=tmp_path / "bundle")
    runner = runner_of(open_bundle(tmp_path / "bundle"), f"a={tmp_path / 'a'}")
    base, changed = float_logits(source), tmp_path / "changed"
    changed.mkdir()
    for file in source.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    (changed / "model.safetensors").write_bytes(safetensors_bytes(as_floats(merged(tensors, matrices)), "F32"))
    with_a = float_logits(changed)
    assert error(base, with_a) > 0.02
    assert error(logits(runner, 1), with_a) < 1.5 * error(logits(runner, 0), base)


def test_blocks_of_a_gguf_file_and_a_gguf_adapter(tmp_path: Path) -> None:
    raw = tiny_config("llama")
    tensors = random_tensors(raw)
    (tmp_path / "base.gguf").write_bytes(model_gguf(raw, tensors))
    matrices = pairs(tensors)
    (tmp_path / "a.gguf").write_bytes(adapter_gguf(raw, matrices))
    import_model(tmp_path / "base.gguf", target=tmp_path / "bundle")
    runner = runner_of(open_bundle(tmp_path / "bundle"), str(tmp_path / "a.gguf"))
    base = float_logits(tmp_path / "base.gguf")
    with_a = float_logits(write_model(tmp_path / "m", raw, tensors=as_floats(merged(tensors, matrices))))
    assert error(logits(runner, 1), with_a) < 1.5 * error(logits(runner, 0), base) + 1e-3


@pytest.mark.parametrize("options", [{}, {"memory": "less"}, {"chunk": 32, "window": 2}], ids=str)
def test_a_step_of_several_gives_each_what_it_gets_alone(options: dict[str, Any], folder: Path, bundle: Bundle) -> None:
    texts = lora(folder, "a", "b", "few")
    if "memory" in options:  # the adapters are among it
        memory = plan_of(bundle.folder, RuntimeConfig(lora=texts)).memory
        options = {"memory": str(memory.adapters + memory.weights - 1000)}
    runner, plain = runner_of(bundle, *texts, **options), runner_of(bundle)
    assert bool(runner.model.weights.streamed) == ("memory" in options)
    numbers, prompts = [0, 1, 3, 1, 2], [PROMPT, PROMPT[:50], PROMPT[3:], PROMPT[:50], PROMPT[:4]]

    def answers(runner: Any, some: Sequence[int]) -> list[np.ndarray]:
        """Logits of the prompts' ends, then of three tokens that follow, in steps of ``some`` sequences."""
        sequences = [runner.memory.open((), numbers[one]) for one in some]
        found = runner.run([Segment(each, prompts[one], 3) for each, one in zip(sequences, some, strict=True)])
        for token in (5, 9, 17):
            more = runner.run([Segment(each, [token]) for each in sequences])
            found = [np.concatenate(both) for both in zip(found, more, strict=True)]
        for each in sequences:
            each.close()
        return found

    together = answers(runner, range(5))
    for one in range(5):
        np.testing.assert_array_equal(answers(runner, [one])[0], together[one])
    np.testing.assert_array_equal(answers(plain, [0])[0], together[0])
    np.testing.assert_array_equal(together[1], together[3])
    assert not np.array_equal(together[1][-1], together[2][-1])
    assert error(logits(runner, 1), logits(runner, 2)) > 0.05


def test_pages_belong_to_one_adapter(folder: Path, bundle: Bundle) -> None:
    memory = runner_of(bundle, *lora(folder, "a", "b")).memory
    sequence = memory.open(PROMPT, 1)
    memory.reserve(sequence, len(PROMPT))
    sequence.length = len(PROMPT)
    memory.remember(sequence, PROMPT)
    assert [memory.open(PROMPT, number).length for number in (0, 1, 2)] == [0, 64, 0]


def test_pages_on_disk_belong_to_one_adapter(folder: Path, bundle: Bundle) -> None:
    """What it was computed with decides, not its name or its number."""
    found = []
    for names in (("a", "b"), ("b", "a"), ("a",)):
        runner = runner_of(bundle, *lora(folder, *names), prefix_cache="64MiB")
        for number, name in enumerate(names, 1):
            sequence = runner.memory.open(PROMPT, number)
            found.append((name, sequence.length, runner.forward(sequence, PROMPT[sequence.length :]).tobytes()))
            runner.memory.remember(sequence, PROMPT)
        runner.memory._disk.flush()
    assert [length for _, length, _ in found] == [0, 0, 64, 64, 64]
    assert len({(name, last) for name, _, last in found}) == 2


# -- faces -----------------------------------------------------------------------------------------------------------------


def test_answers_with_and_without_it(
    folder: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(bundle.folder, threads=1, draft="none", lora=lora(folder, "a", "b"))
    how = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    said = [one.generate("Once upon a time", **how) for one in (llm, llm.adapted("a"), llm.adapted("b"))]
    assert len(set(said)) == 3
    drafted = LLM(bundle.folder, threads=1, lora=str(folder / "a"))
    assert drafted.adapted("a").generate("Once upon a time", **how) == said[1]
    assert drafted.generate("Once upon a time", **how) == said[0]
    with pytest.raises(UsageError, match="`a`, `b`"):
        llm.adapted("c")
    options = ["--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--raw", "--lora", str(folder / "a")]
    monkeypatch.setattr("sys.stdin", None)
    assert cli(["run", str(bundle.folder), "Once upon a time", *options]) == 0
    assert capsys.readouterr().out.rstrip("\n") == said[1].rstrip("\n")


def test_it_counts_in_the_plan(folder: Path, bundle: Bundle) -> None:
    plain, plan = (plan_of(bundle.folder, RuntimeConfig(lora=texts)) for texts in ((), lora(folder, "a", "b")))
    layers = plan.bundle.decoder.layers
    linears = [one for layer in layers for one in layer.linears]
    sizes = sum(rank * (one.rows + len(one.sources) * one.columns) for one in linears for rank in (4, 6))
    assert plan.memory.adapters == 2 * sizes
    assert plan.memory.main == plain.memory.main + 2 * sizes
    assert plan.facts["adapters"] == ["a", "b"]


# -- what cannot be --------------------------------------------------------------------------------------------------------


def refusal(bundle: Bundle, *texts: str, **options: Any) -> EdgeLLMError:
    with pytest.raises(EdgeLLMError) as caught:
        plan_of(bundle.folder, RuntimeConfig(lora=texts, **options))
    assert "\n" not in str(caught.value)
    return caught.value


def test_other_ranks_models_and_kinds(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    tensors = random_tensors(RAW)
    wrong = {
        "rank": (pairs(tensors), {"r": 5}, InvalidModel, "rank"),
        "shape": ({name: values[..., :-1] if "_A" in name else values for name, values in pairs(tensors).items()}, {},
                  InvalidModel, "wants"),
        "model": (pairs({"model.layers.17.mlp.up_proj.weight": np.zeros((8, 8))}), {}, InvalidModel, "does not have"),
        "whole": (pairs(tensors) | {"base_model.model.model.norm.weight": np.ones(64, np.float32)},
                  {"modules_to_save": ["norm"]}, UnsupportedModel, "whole"),
        "head": (pairs(tensors, targets=["lm_head"]), {"target_modules": ["lm_head"]}, UnsupportedModel, "lm_head"),
    }  # fmt: skip
    for name, (matrices, changes, kind, said) in wrong.items():
        error = refusal(bundle, str(write_adapter(tmp_path / name, matrices, **changes)))
        assert isinstance(error, kind), name
        assert said in str(error), name
        assert kind is not UnsupportedModel or "import MODEL --lora" in str(error)
    magnitudes = {
        name.replace("lora_A.weight", "lora_magnitude_vector"): np.ones(len(matrices), np.float32)
        for name, matrices in ((name, tensors[name.removeprefix("base_model.model.").replace("lora_A.", "")])
                               for name in pairs(tensors) if "lora_A" in name)
    }  # fmt: skip
    error = refusal(bundle, str(write_adapter(tmp_path / "dora", pairs(tensors) | magnitudes, use_dora=True)))
    assert "DoRA" in str(error)
    assert "adapter" in str(refusal(bundle, f"x={tmp_path / 'none'}"))


def test_names_that_are_taken_or_none(folder: Path, bundle: Bundle) -> None:
    assert "taken" in str(refusal(bundle, f"bundle={folder / 'a'}"))
    assert "taken" in str(refusal(bundle, f"x={folder / 'a'}", f"x={folder / 'b'}"))
    assert "characters" in str(refusal(bundle, f"={folder / 'a'}"))
    assert "characters" in str(refusal(bundle, f"a\tb={folder / 'a'}"))


def test_more_than_memory(folder: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--memory `20KiB` allows" in str(refusal(bundle, *lora(folder, "a"), memory="20KiB"))
    assert "adapters take" in str(refusal(bundle, *lora(folder, "a"), memory="120KiB"))
    monkeypatch.setattr(opening, "free_memory", lambda: 1000)
    error = refusal(bundle, *lora(folder, "a", "b"))
    assert isinstance(error, OutOfMemory)
    assert "the 2 adapters take" in str(error)


def test_what_does_not_add_adapters(folder: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    texts = lora(folder, "a")
    error = refusal(bundle, *texts, device="emulated")
    assert isinstance(error, DeviceError)
    assert "--device host" in str(error)
    assert "--float" in str(refusal(bundle, *texts, float_path=True))
    with open_bundle(builtin_bundle()) as builtin:  # its factors were not kept
        assert "built-in model takes no adapters" in str(refusal(builtin, *texts))
    assert cli(["serve", "--lora", texts[0]]) == 2
    assert "give MODEL" in capsys.readouterr().err
    assert cli(["serve", "builtin", "--port", "0", "--lora", texts[0]]) == 1
    assert "takes no adapters" in (said := capsys.readouterr().err) and "Serving" not in said
