"""The bundle: what was written comes back, and nothing that was changed does."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_llm.config import LlamaConfig, ModelConfig, RopeScaling
from edge_llm.errors import CorruptBundle, EdgeLLMError, ModelNotFound, StorageError, UnsupportedModel
from edge_llm.formats import bundle as bundle_module
from edge_llm.formats.bundle import aligned_empty, open_bundle
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.formats.checksum import combine_crc32c
from edge_llm.formats.layout import BLOCK_ALIGNMENT, tensor_layout
from edge_llm.formats.manifest import VERSION, encode_manifest
from edge_llm.kernels.checksum import crc32c
from edge_llm.models import describe
from edge_llm.models.layer import DescribedConfig
from edge_llm.weights.resident import ResidentWeights

CONFIG = LlamaConfig(
    family="llama",
    vocab_size=40,
    hidden_size=24,
    intermediate_size=20,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    context=64,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tied_embeddings=True,
)
SOURCE = {"kind": "folder", "path": "tiny", "digest": "sha256:0", "float": None}


def random_arrays(config: ModelConfig, hot: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {}
    for tensor in tensor_layout(describe(config), hot):
        if tensor.name.endswith("hot_index"):
            arrays[tensor.name] = np.arange(tensor.shape[0], dtype=np.int32)
        elif tensor.dtype == "int8":
            arrays[tensor.name] = rng.integers(-127, 128, tensor.shape, np.int8)
        else:
            lowest = 0 if tensor.name.endswith("scale") else -4
            arrays[tensor.name] = rng.uniform(lowest, 4, tensor.shape).astype(tensor.dtype)
    return arrays


def write(folder: Path, config: ModelConfig = CONFIG, hot: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    folder.mkdir()
    arrays = random_arrays(config, hot or {})
    with BundleWriter(folder) as writer:
        for name, array in arrays.items():
            writer.add(name, array)
        writer.add_file("tokenizer.json", [b'{"model"', b": {}}"])
        writer.add_file("generation_config.json", [b'{"do_sample": true, "temperature": 0.7}'])
        scales = {name: 0.01 * (1 + index) for index, name in enumerate(describe(config).linears())}
        writer.finish(config, scales, profile={"version": 1}, source=SOURCE, created_with="0.0.0")
    return arrays


@pytest.fixture
def bundle_folder(tmp_path: Path) -> Path:
    write(tmp_path / "tiny", hot={"output": 1, "layers.1.down": 2})
    return tmp_path / "tiny"


def rewrite_manifest(folder: Path, change: Any) -> None:
    """Change the fields and give the manifest a valid checksum again, as an attacker would."""
    fields = json.loads((folder / "manifest.json").read_text())
    fields.pop("checksum")
    change(fields)
    (folder / "manifest.json").write_bytes(encode_manifest(fields))


def configs() -> st.SearchStrategy[ModelConfig]:
    return st.builds(
        lambda heads, groups, dim, hidden, inner, vocab, layers, flags, scaling: LlamaConfig(
            family="qwen3",
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=inner,
            num_layers=layers,
            num_heads=heads * groups,
            num_kv_heads=heads,
            head_dim=2 * dim,
            context=128,
            norm_eps=1e-6,
            rope_theta=5e5,
            rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192) if scaling else None,
            tied_embeddings=flags & 1 > 0,
            qkv_bias=flags & 2 > 0,
            output_bias=flags & 4 > 0,
            mlp_bias=flags & 8 > 0,
            qk_norm=flags & 16 > 0,
        ),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 4),
        st.integers(1, 40),
        st.integers(1, 40),
        st.integers(1, 70),
        st.integers(1, 3),
        st.integers(0, 31),
        st.booleans(),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs(), data=st.data())
def test_what_is_written_comes_back(config: ModelConfig, data: st.DataObject, tmp_path_factory: Any) -> None:
    linears = describe(config).linears()
    hot = {name: data.draw(st.integers(0, min(3, linear.columns)), label=name) for name, linear in linears.items()}
    folder = tmp_path_factory.mktemp("round") / "model"
    arrays = write(folder, config, hot)
    with open_bundle(folder) as bundle:
        assert bundle.config.decoder == describe(config)
        assert bundle.size == (folder / "weights.bin").stat().st_size
        for source in (bundle.read_all(), {name: bundle.read(name) for name in bundle.tensors}):
            assert list(source) == list(arrays)
            for name, array in arrays.items():
                np.testing.assert_array_equal(source[name], array, strict=True)
        blocks = {}
        for name in bundle.blocks:
            blocks |= bundle.read_block(name)
        assert all((blocks[name] == array).all() for name, array in arrays.items())
    shutil.rmtree(folder)


def test_blocks_are_aligned_layers(bundle_folder: Path) -> None:
    with open_bundle(bundle_folder) as bundle:
        assert list(bundle.blocks) == ["layers.0", "layers.1", "final_norm", "embedding"]
        end = 0
        for block in bundle.blocks.values():
            assert block.offset == end
            assert block.offset % BLOCK_ALIGNMENT == block.nbytes % BLOCK_ALIGNMENT == 0
            end = block.offset + block.nbytes
        assert end == bundle.size
        assert bundle.read("layers.0.qkv.tiles").ctypes.data % BLOCK_ALIGNMENT == 0
        slot = aligned_empty(bundle.blocks["layers.1"].nbytes + 100)
        arrays = bundle.read_block("layers.1", slot)
        assert all(np.shares_memory(array, slot) for array in arrays.values() if array.size)
        with pytest.raises(ValueError, match="aligned uint8"):
            bundle.read_block("layers.1", slot[:100])


def test_untied_bundle_has_both_matrices(tmp_path: Path) -> None:
    write(tmp_path / "m", replace(CONFIG, tied_embeddings=False))
    with open_bundle(tmp_path / "m") as bundle:
        assert list(bundle.blocks) == ["embedding", "layers.0", "layers.1", "final_norm", "output"]
        assert bundle.columns("embedding") == bundle.columns("output") == 24


def test_facts_and_side_files(bundle_folder: Path) -> None:
    with open_bundle(bundle_folder) as bundle:
        assert bundle.facts["layers.0.qkv"]["input_scale"] == 0.01
        assert bundle.facts["output"]["input_scale"] == pytest.approx(0.09)
        assert bundle.columns("layers.1.down") == 20
        assert bundle.generation_config == {"do_sample": True, "temperature": 0.7}
        assert bundle.read_file("tokenizer.json") == b'{"model": {}}'
        assert not bundle.has_file("chat_template.jinja")
        assert bundle.float_source() is None
        seen: list[tuple[int, int]] = []
        bundle.read_all(lambda done, total: seen.append((done, total)))
        assert seen[-1] == (bundle.size, bundle.size)
        bundle.verify()


def test_modes_are_private(bundle_folder: Path) -> None:
    for path in bundle_folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_every_flipped_byte_of_the_weights_is_found_and_named(bundle_folder: Path) -> None:
    path = bundle_folder / "weights.bin"
    good = path.read_bytes()
    rng = np.random.default_rng(1)
    with open_bundle(bundle_folder) as bundle, path.open("r+b") as file:
        for at in [0, len(good) - 1, *rng.integers(0, len(good), 300)]:
            at = int(at)
            os.pwrite(file.fileno(), bytes([good[at] ^ (1 << int(rng.integers(8)))]), at)
            tensor = next(t for t in bundle.tensors.values() if t.offset <= at < t.end)
            with pytest.raises(CorruptBundle, match=f"`{tensor.name}`"):
                bundle.read(tensor.name)
            with pytest.raises(CorruptBundle, match=f"`{tensor.name}`"):
                bundle.read_block(".".join(tensor.name.split(".")[: 2 if tensor.name[0] == "l" else 1]))
            os.pwrite(file.fileno(), good[at : at + 1], at)
        bundle.read_all()
        os.pwrite(file.fileno(), bytes([good[5] ^ 1]), 5)
        with pytest.raises(CorruptBundle):
            bundle.read_all()


@pytest.mark.parametrize("piece", [64, 4096, 12288])
def test_all_is_read_in_pieces_of_any_size(bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(bundle_module, "READ_BYTES", piece)
    path = bundle_folder / "weights.bin"
    with open_bundle(bundle_folder) as bundle:
        arrays = bundle.read_all()
        assert list(arrays) == list(bundle.tensors)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, bundle.read(name), strict=True)
        largest = max(bundle.tensors.values(), key=lambda tensor: tensor.nbytes)
        with path.open("r+b") as file:
            file.seek(largest.offset + largest.nbytes - 1)
            last = file.read(1)[0]
            os.pwrite(file.fileno(), bytes([last ^ 1]), largest.offset + largest.nbytes - 1)
        with pytest.raises(CorruptBundle, match=f"`{largest.name}`"):
            bundle.read_all()


def test_cut_and_extended_weights(bundle_folder: Path) -> None:
    path = bundle_folder / "weights.bin"
    good = path.read_bytes()
    for size in (0, 1, 4095, 4096, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptBundle, match="is cut: tensor `"):
            open_bundle(bundle_folder)
    path.write_bytes(good + b"\0")
    with pytest.raises(CorruptBundle, match="extra bytes"):
        open_bundle(bundle_folder)
    path.write_bytes(good)
    with open_bundle(bundle_folder) as bundle:
        os.truncate(path, len(good) // 2)
        with pytest.raises(CorruptBundle, match="cut while it was open"):
            bundle.read_all()


def test_every_flipped_byte_and_every_cut_of_the_manifest_is_refused(bundle_folder: Path) -> None:
    path = bundle_folder / "manifest.json"
    good = path.read_bytes()
    rng = np.random.default_rng(2)
    for at in range(0, len(good), 7):
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(CorruptBundle):
            open_bundle(bundle_folder)
    for size in range(0, len(good), 31):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptBundle):
            open_bundle(bundle_folder)
    for odd in (
        good + b" ",
        good.replace(b"\n", b"\n "),
        b"[" * 100_000,
        b"null",
        good[:1] + b'"format": 1,' + good[1:],
    ):
        path.write_bytes(odd)
        with pytest.raises(CorruptBundle):
            open_bundle(bundle_folder)


def change(*path: Any, to: Any) -> Any:
    def apply(fields: dict[str, Any]) -> None:
        at: Any = fields
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return apply


def test_layers_that_a_manifest_has_no_linears_for_are_not_described(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[Any] = []
    monkeypatch.setattr("edge_llm.formats.bundle.describe", described.append)
    rewrite_manifest(bundle_folder, change("description", "pattern", to=["0"] * 4096))
    with pytest.raises(CorruptBundle, match="has no layers, too many"):
        open_bundle(bundle_folder)
    rewrite_manifest(bundle_folder, of_version_3(replace(CONFIG, num_layers=4096)))
    with pytest.raises(CorruptBundle, match="linears in the manifest are not those of the model"):
        open_bundle(bundle_folder)
    assert not described


def of_version_3(config: LlamaConfig = CONFIG) -> Any:
    """Makes a manifest that of version 3, which says the numbers of a Llama."""

    def apply(fields: dict[str, Any]) -> None:
        del fields["description"]
        fields |= {"version": 3, "model": asdict(config)}

    return apply


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs())
def test_a_bundle_of_version_3_is_the_one_that_describes_itself(config: LlamaConfig, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("older") / "model"
    write(folder, config)
    with open_bundle(folder) as bundle:
        described = bundle.decoder
        assert bundle.config == DescribedConfig(
            family=config.family, vocab_size=config.vocab_size, hidden_size=config.hidden_size, context=config.context,
            tied_embeddings=config.tied_embeddings, decoder=describe(config),
        )  # fmt: skip
    rewrite_manifest(folder, of_version_3(config))
    with open_bundle(folder) as bundle:
        assert (bundle.config, bundle.decoder) == (config, described)


def norm(**changes: Any) -> dict[str, Any]:
    """The last norm as a manifest holds it."""
    gain = {"name": "final_norm", "source": "model.norm.weight", "size": 24}
    return {"kind": "norm", "gain": gain, "eps": 1e-5, "reads": "hidden", "writes": "normed"} | changes


@pytest.mark.parametrize(
    "damage",
    [
        change("description", "norm", to=norm(kind="median")),
        change("description", "norm", to=norm(trimmed=0.1)),
        change("description", "norm", "gain", "unit", to="dB"),
        change("description", "kinds", "0", 0, "kind", to="ring"),
        change("description", "kinds", "0", 2, "rope", "base", to=2),
        change("description", "recurrent", to=True),
    ],
)
def test_a_description_with_words_that_are_unknown_here_is_of_a_newer_version(bundle_folder: Path, damage: Any) -> None:
    rewrite_manifest(bundle_folder, damage)
    with pytest.raises(UnsupportedModel, match="newer edge-llm.*upgrade"):
        open_bundle(bundle_folder)


def scaling(**changes: float) -> dict[str, float]:
    """Llama 3's frequency scaling as a manifest holds it."""
    values = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_context": 8192}
    return values | changes


@pytest.mark.parametrize(
    "damage",
    [
        *(of_version_3(replace(CONFIG, hidden_size=value)) for value in (0, -1, 23, 1.5, "24", True, None, 10**12, 10**400)),
        *(of_version_3(replace(CONFIG, num_layers=value)) for value in (0, 1, 3, 10**9)),
        *(of_version_3(replace(CONFIG, num_kv_heads=value)) for value in (0, 3, 4)),
        of_version_3(replace(CONFIG, vocab_size=2**62)),
        of_version_3(replace(CONFIG, norm_eps=0.0)),
        of_version_3(replace(CONFIG, norm_eps=10**400)),
        *(of_version_3(replace(CONFIG, rope_scaling=RopeScaling(**scaling(**{key: 0.0})))) for key in scaling()),
        of_version_3(replace(CONFIG, context=0)),
        *(change("description", "output", "columns", to=value) for value in (0, -1, 23, 1.5, "24", True, None, 2**62, 10**400)),
        *(change("description", "embedding", "rows", to=value) for value in (0, 39, 2**62)),
        *(change("description", "pattern", to=value) for value in ([], ["0"], ["0"] * 3, ["0", "1"], [0, 0], "00", None)),
        *(change("description", "prefixes", to=value) for value in ("", "layers.", "{}{}", "x" * 300 + "{}", 1)),
        change("description", "kinds", to={}),
        change("description", "kinds", "0", to=[]),
        change("description", "kinds", "0", 2, to={}),
        *(change("description", "kinds", "0", 2, "kv_heads", to=value) for value in (0, 3, 4)),
        *(change("description", "kinds", "0", 2, "rope", "theta", to=value) for value in (0.0, -1.0, 10**400, "1", None)),
        *(change("description", "kinds", "0", 2, "rope", to=value) for value in (None, [], {}, {"dim": 6})),
        change("description", "kinds", "0", 2, "reads", to="nothing"),
        change("description", "kinds", "0", 1, "sources", to=[]),
        *(change("description", "norm", to=norm(**odd)) for odd in ({"eps": 0.0}, {"eps": None}, {"reads": "x"}, {"gain": 1})),
        change("description", "tied", to=1),
        change("description", to=[]),
        change("model", "context", to=0),
        change("model", "family", to=1),
        change("model", "extra", to=1),
        change("model", to=[]),
        *(change("linears", "layers.0.qkv", "input_scale", to=value) for value in (0.0, -1.0, 1e300, 1e-40, "1", None)),
        change("linears", "layers.0.qkv", "rows", to=49),
        change("linears", "layers.0.qkv", to=3),
        change("linears", to={}),
        change("tensors", 0, "offset", to=64),
        change("tensors", 0, "offset", to=-4096),
        change("tensors", 1, "offset", to=0),
        change("tensors", 3, "bytes", to=2**62),
        change("tensors", 3, "dtype", to="float64"),
        change("tensors", 3, "shape", to=[1, 2]),
        change("tensors", 3, "name", to="../../x\0y"),
        change("tensors", 4, "shape", to=[2**62]),
        change("tensors", 3, "crc32c", to=2**32),
        change("tensors", 3, "crc32c", to="0"),
        change("tensors", 3, to="x"),
        change("tensors", to=[]),
        change("tensors", to={}),
        change("files", 0, "name", to="../tokenizer.json"),
        change("files", 0, "name", to=["tokenizer.json"]),
        change("files", 0, "name", to="generation_config.json"),
        change("files", 0, "bytes", to=1),
        change("files", 0, to=None),
        change("files", to=[]),
        change("source", "float", to="../elsewhere"),
        change("source", "float", to=7),
        change("source", to={}),
        change("profile", to=None),
        change("version", to=0),
        change("version", to="1"),
        change("format", to="other"),
        lambda fields: fields.pop("profile"),
    ],
)
def test_manifests_that_contradict_themselves_are_refused(bundle_folder: Path, damage: Any) -> None:
    rewrite_manifest(bundle_folder, damage)
    with pytest.raises(CorruptBundle):
        open_bundle(bundle_folder)


ODD = st.sampled_from(
    [None, True, False, 0, 1, -1, 2**31, 2**62, 10**400, 0.0, -0.5, 1e-320, 1e300, "", "x", "../x\0", "source", [], [1], {}]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_the_manifest_opens_or_is_refused(bundle_folder: Path, data: st.DataObject) -> None:
    path = bundle_folder / "manifest.json"
    good = path.read_bytes()

    def damage(fields: dict[str, Any]) -> None:
        at: Any = fields
        while True:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
                break
            at = at[key]
        if isinstance(at, dict) and data.draw(st.booleans()):
            del at[key]
        else:
            at[key] = data.draw(ODD)

    try:
        rewrite_manifest(bundle_folder, damage)
        with open_bundle(bundle_folder) as bundle:
            bundle.read_all()
    except EdgeLLMError:
        pass
    finally:
        path.write_bytes(good)


def at_the_end(where: str, place: int) -> Any:
    """The operation at ``place`` of a layer, ``where`` something else stands behind the layers."""

    def apply(fields: dict[str, Any]) -> None:
        fields["description"][where] = fields["description"]["kinds"]["0"][place]

    return apply


@pytest.mark.parametrize(
    "damage",
    [
        *(at_the_end("norm", place) for place in range(6)),
        *(at_the_end("output", place) for place in range(6)),
        change("description", "norm", "gain", "name", to="normed"),
        change("description", "output", "name", to="head"),
        change("description", "cap", to=-3.0),
    ],
)
def test_behind_the_layers_stand_the_last_norm_and_the_output_matrix(bundle_folder: Path, damage: Any) -> None:
    rewrite_manifest(bundle_folder, damage)
    with pytest.raises(CorruptBundle):
        open_bundle(bundle_folder)


def test_newer_version_is_said_so(bundle_folder: Path) -> None:
    rewrite_manifest(bundle_folder, lambda fields: fields.update(version=VERSION + 1, surprise={}))
    with pytest.raises(UnsupportedModel, match="made by a newer edge-llm"):
        open_bundle(bundle_folder)


def test_a_bundle_remembers_which_shadows_it_keeps(tmp_path: Path) -> None:
    kept = dict.fromkeys(describe(CONFIG).linears(), "cold") | {"layers.0.o": "none", "output": "full"}
    folder = tmp_path / "m"
    folder.mkdir()
    with BundleWriter(folder) as writer:
        for name, array in random_arrays(CONFIG, {}).items():
            writer.add(name, array)
        writer.add_file("tokenizer.json", [b"{}"])
        scales = dict.fromkeys(describe(CONFIG).linears(), 1.0)
        writer.finish(CONFIG, scales, shadows=kept, profile={}, source=SOURCE, created_with="0")
    with open_bundle(folder) as bundle:
        assert dict(bundle.shadows) == kept
    weights = ResidentWeights(open_bundle(folder))
    assert not weights.use(0).linears["o"].residual
    assert weights.use(0).linears["qkv"].residual and weights.head.linears["output"].residual


def test_a_bundle_that_says_nothing_of_shadows_keeps_them_all(bundle_folder: Path) -> None:
    with open_bundle(bundle_folder) as bundle:
        assert "shadow" not in bundle.manifest["linears"]["output"]
        assert set(bundle.shadows.values()) == {"full"}
    assert ResidentWeights(open_bundle(bundle_folder)).use(0).linears["o"].residual


@pytest.mark.parametrize("value", ["some", "", None, 1, ["full"]])
def test_an_unknown_shadow_is_refused(bundle_folder: Path, value: object) -> None:
    rewrite_manifest(bundle_folder, lambda fields: fields["linears"]["layers.0.qkv"].update(shadow=value))
    with pytest.raises(CorruptBundle, match=r"layers\.0\.qkv` in the manifest has the shadow"):
        open_bundle(bundle_folder)


def test_crafted_hot_channels_never_reach_a_kernel(tmp_path: Path) -> None:
    for number, index in enumerate(([3, 3], [5, 4], [-1, 2], [0, 24])):
        folder = tmp_path / f"m{number}"
        folder.mkdir()
        arrays = random_arrays(CONFIG, {"layers.0.qkv": 2})
        arrays["layers.0.qkv.hot_index"] = np.array(index, np.int32)
        with BundleWriter(folder) as writer:
            for name, array in arrays.items():
                writer.add(name, array)
            writer.add_file("tokenizer.json", [b"{}"])
            scales = dict.fromkeys(describe(CONFIG).linears(), 1.0)
            writer.finish(CONFIG, scales, profile={}, source=SOURCE, created_with="0")
        with open_bundle(folder) as bundle, pytest.raises(CorruptBundle, match="ascending channels"):
            bundle.read_all()


def test_side_files_are_checked(bundle_folder: Path) -> None:
    path = bundle_folder / "tokenizer.json"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"]")
    with pytest.raises(CorruptBundle, match="tokenizer"):
        open_bundle(bundle_folder)
    path.write_bytes(good + b" ")
    with pytest.raises(CorruptBundle, match="tokenizer"):
        open_bundle(bundle_folder)
    path.unlink()
    with pytest.raises(CorruptBundle, match="tokenizer"):
        open_bundle(bundle_folder)


def test_missing_and_odd_places(tmp_path: Path, bundle_folder: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_bundle(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="not an imported model"):
        open_bundle(tmp_path / "empty")
    (bundle_folder / "weights.bin").unlink()
    with pytest.raises(CorruptBundle, match="missing"):
        open_bundle(bundle_folder)
    os.mkfifo(bundle_folder / "weights.bin")
    with pytest.raises(CorruptBundle, match="a regular file is needed"):
        open_bundle(bundle_folder)
    (bundle_folder / "weights.bin").unlink()
    (bundle_folder / "weights.bin").mkdir()
    with pytest.raises(CorruptBundle, match="a regular file is needed"):
        open_bundle(bundle_folder)


def test_read_error_is_tried_once_more(bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    failures = [1]

    def flaky(*arguments: Any) -> int:
        if failures[0] > 0:
            failures[0] -= 1
            raise OSError(5, "Input/output error")
        view = arguments[1][0]
        return real(arguments[0], [view[: max(1, len(view) // 2)]], arguments[2])  # and short reads

    with open_bundle(bundle_folder) as bundle:
        monkeypatch.setattr(os, "preadv", flaky)
        assert bundle.read_all().keys() == bundle.tensors.keys()
        failures[0] = 99
        with pytest.raises(StorageError, match="Input/output error"):
            bundle.read("final_norm")


def test_every_failed_write_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_sync, real_open = os.write, os.fsync, os.open
    calls = [0, 0]

    def guard() -> None:
        calls[0] += 1
        if calls[0] == calls[1]:
            raise OSError(28, "No space left on device")

    def failing_write(fd: int, data: bytes) -> int:
        guard()
        return real_write(fd, data[: max(1, len(data) // 2)])

    def failing_sync(fd: int) -> None:
        guard()
        real_sync(fd)

    def failing_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            guard()
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "write", failing_write)
    monkeypatch.setattr(os, "fsync", failing_sync)
    monkeypatch.setattr(os, "open", failing_open)
    for at in [*range(1, 60), 100, 200, 400]:
        calls[:] = [0, at]
        try:
            write(tmp_path / f"m{at}")
        except EdgeLLMError as error:
            assert isinstance(error, StorageError)
            assert "no space left" in str(error)
            with pytest.raises(ModelNotFound):
                open_bundle(tmp_path / f"m{at}")
        else:
            assert calls[0] < at
    calls[:] = [0, -1]
    write(tmp_path / "good")
    open_bundle(tmp_path / "good").close()


def test_wrong_order_is_a_programming_error(tmp_path: Path) -> None:
    arrays = random_arrays(CONFIG, {})
    with BundleWriter(tmp_path) as writer:
        for name, array in reversed(arrays.items()):
            writer.add(name, array)
        with pytest.raises(ValueError, match="order"):
            writer.finish(CONFIG, dict.fromkeys(describe(CONFIG).linears(), 1.0), profile={}, source=SOURCE, created_with="0")
    assert not (tmp_path / "manifest.json").exists()


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_checksums_of_pieces_combine(first: bytes, second: bytes) -> None:
    assert combine_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
