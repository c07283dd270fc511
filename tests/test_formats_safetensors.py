"""Reading safetensors: right files to the bit, wrong files with an error that says what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_models import CONFIGS, FILES, INDEXES, JSONS, BadFile, BadIndex, BadJSON, empty_tensors, with_value
from model_files import random_tensors, raw_safetensors, safetensors_bytes, tiny_config, write_json, write_model, write_weights

from edge_llm.errors import EdgeLLMError, InvalidModel, ModelNotFound, StorageError, UnsupportedModel, UsageError
from edge_llm.formats.limits import MAX_WEIGHT
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.formats.safetensors import MAX_HEADER_BYTES, MAX_TENSORS, SafetensorsFile, TensorInfo, open_safetensors
from edge_llm.models import describe, load_config
from edge_llm.models.weights import check_tensors
from edge_llm.strict_json import parse_json, parse_object

RNG = np.random.default_rng(0)
TENSORS = {
    "matrix": RNG.standard_normal((5, 7), np.float32),
    "vector": RNG.standard_normal(3, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.float32(2.5).reshape(()),
}


def opened(tmp_path: Path, data: bytes) -> SafetensorsFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return open_safetensors(path)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refuses(error: type[EdgeLLMError], message: str, act: Callable[[], object]) -> None:
    """``act`` raises exactly ``error`` (or a subclass) with a one-line message."""
    with pytest.raises(error, match=message) as caught:
        act()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_reads_every_tensor_to_the_bit(tmp_path: Path) -> None:
    with opened(tmp_path, safetensors_bytes(TENSORS, metadata={"format": "pt"})) as file:
        assert list(file.tensors) == ["matrix", "vector", "empty", "scalar"]
        for name, expected in TENSORS.items():
            found = file.read(name)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, expected, strict=True)


def test_half_precision_widens_exactly(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    raw = json.dumps({"x": {"dtype": "BF16", "shape": [1 << 16], "data_offsets": [0, 1 << 17]}}).encode()
    data = len(raw).to_bytes(8, "little") + raw + bits.tobytes()
    found = opened(tmp_path, data).read("x")
    np.testing.assert_array_equal(found.view(np.uint32), bits.astype(np.uint32) << 16)
    found = opened(tmp_path, data.replace(b'"BF16"', b'"F16" ')).read("x")
    np.testing.assert_array_equal(found, bits.view(np.float16).astype(np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_agrees_with_the_safetensors_package(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("safetensors.torch")
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    theirs = {name: torch.from_numpy(values).to(kind) for name, values in TENSORS.items() if name != "scalar"}
    package.save_file(theirs, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    with open_safetensors(tmp_path / "theirs.safetensors") as file:
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(file.read(name), tensor.float().numpy())
    (tmp_path / "ours.safetensors").write_bytes(safetensors_bytes(TENSORS, dtype))
    back = package.load_file(tmp_path / "ours.safetensors")
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.items())


def test_blocks_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_llm.formats.safetensors._BLOCK_BYTES", 24)
    for dtype in ("F32", "BF16"):
        found = opened(tmp_path, safetensors_bytes(TENSORS, dtype)).read("matrix")
        np.testing.assert_allclose(found, TENSORS["matrix"], rtol=0 if dtype == "F32" else 1 / 128)


def test_reading_takes_the_tensor_and_one_block(tmp_path: Path) -> None:
    values = np.ones(8 << 20, np.float32)
    with opened(tmp_path, safetensors_bytes({"a": values, "b": values}, "BF16")) as file:
        tracemalloc.start()
        found = file.read("a", most=MAX_WEIGHT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < found.nbytes + (8 << 20)


# ---- wrong files


@pytest.mark.parametrize("bad", FILES, ids=lambda bad: bad.id)
def test_bad_file(bad: BadFile, tmp_path: Path) -> None:
    refuses(InvalidModel, bad.message, lambda: opened(tmp_path, bad.data))


def test_a8_tensor_count_at_the_limit_and_above(tmp_path: Path) -> None:
    with opened(tmp_path, empty_tensors(MAX_TENSORS)) as file:
        assert len(file.tensors) == MAX_TENSORS
    refuses(InvalidModel, f"`{MAX_TENSORS + 1}`", lambda: opened(tmp_path, empty_tensors(MAX_TENSORS + 1)))
    refuses(InvalidModel, "more than", lambda: opened(tmp_path, empty_tensors(40_000)))


def many(count: int, entry: str, around: str = "%s") -> bytes:
    """A header of ``count`` entries."""
    return raw_safetensors(("{" + around % ",".join(entry % i for i in range(count)) + "}").encode())


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "data",
    [
        empty_tensors(100_000),
        empty_tensors(MAX_TENSORS),
        many(300_000, '"%d":"x"', '"__metadata__":{%s}'),
        many(160_000, '"%d":"x"', '"__metadata__":{%s}'),
        many(80_000, '"%x":[]'),
        many(80_000, '"%x":{}'),
        many(50_000, '"日本語の名前日本語の名前%x":[]'),
        many(160_000, '"%x":1'),
        many(160_000, "1.%d", '"a":[%s]'),
        many(100_000, "9" * 30 + "%d", '"a":[%s]'),
        raw_safetensors(b'{"a":{"dtype":"' + b"x" * (24 << 20) + b'"}}'),
        raw_safetensors(b'{"a":{"dtype":"' + b"\\u65e5" * 600_000 + b'"}}'),
        raw_safetensors(b'{"' + b"x" * (4 << 20 >> 1) + b'":{}}'),
    ],
    ids=lambda data: f"{data[8:48]!r}",
)
def test_no_header_takes_more_than_64_mib(data: bytes, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidModel):
            opened(tmp_path, data).close()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a8_header_at_the_limit_and_above(tmp_path: Path) -> None:
    room = MAX_HEADER_BYTES - (len(empty_tensors(1)) - 8)
    with opened(tmp_path, empty_tensors(1, pad=room)) as file:
        assert list(file.tensors) == ["0"]
    refuses(InvalidModel, f"`{MAX_HEADER_BYTES + 1}`", lambda: opened(tmp_path, empty_tensors(1, pad=room + 1)))


def test_a25_eight_dimensions_are_fine(tmp_path: Path) -> None:
    data = safetensors_bytes({"a": np.zeros((1,) * 7 + (2,), np.float32)})
    assert opened(tmp_path, data).read("a").shape == (1, 1, 1, 1, 1, 1, 1, 2)


@pytest.mark.parametrize("dtype", ["F64", "I64", "I8", "U8"])
def test_a26_foreign_dtype_as_weight(dtype: str, tmp_path: Path) -> None:
    file = opened(tmp_path, safetensors_bytes({"w": np.ones(4)}, dtype))
    refuses(UnsupportedModel, f"`w` is {dtype}", lambda: file.read("w"))


def test_a28_path_as_name_is_only_a_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with opened(tmp_path / "in", safetensors_bytes({"../../x": np.ones(2)})) as file:
        assert file.read("../../x").tolist() == [1, 1]
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "model.safetensors"]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a29_not_a_weight(dtype: str, value: float, tmp_path: Path) -> None:
    file = opened(tmp_path, safetensors_bytes({"w": with_value(value)}, dtype))
    refuses(InvalidModel, f"`w` holds `{value}` at element 2047", lambda: file.read("w", most=MAX_WEIGHT))
    assert not np.isfinite(file.read("w")[2047])


@pytest.mark.parametrize("value", [-2e15, 3e38])
def test_a29_larger_than_any_weight(value: float, tmp_path: Path) -> None:
    file = opened(tmp_path, safetensors_bytes({"w": with_value(value)}))
    refuses(InvalidModel, "weights lie between", lambda: file.read("w", most=MAX_WEIGHT))
    assert file.read("w")[2047] == np.float32(value)


@pytest.mark.parametrize("value", [0.0, 1e-41, 1e14, -1e14])
def test_a29_zero_denormal_and_large_are_fine(value: float, tmp_path: Path) -> None:
    file = opened(tmp_path, safetensors_bytes({"w": with_value(value)}))
    assert file.read("w", most=MAX_WEIGHT)[2047] == np.float32(value)


def test_unknown_tensor(tmp_path: Path) -> None:
    file = opened(tmp_path, safetensors_bytes(TENSORS))
    refuses(InvalidModel, "`nothing`", lambda: file.read("nothing"))


def test_tensor_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> np.ndarray:
        raise MemoryError

    file = opened(tmp_path, safetensors_bytes(TENSORS))
    monkeypatch.setattr("edge_llm.formats.safetensors.np.empty", full)
    refuses(InvalidModel, "`matrix`.*does not fit into memory", lambda: file.read("matrix"))


def test_every_prefix_is_refused(tmp_path: Path) -> None:
    data = safetensors_bytes({"a": np.ones(3), "b": np.ones((2, 2))}, metadata={"format": "pt"})
    for length in range(len(data)):
        refuses(InvalidModel, "bytes|truncated", lambda length=length: opened(tmp_path, data[:length]))
    assert len(opened(tmp_path, data).tensors) == 2


def test_every_header_bit_flip_is_refused_or_harmless(tmp_path: Path) -> None:
    data = safetensors_bytes({f"layer.{i}": np.ones((2, i + 1)) for i in range(6)}, metadata={"format": "pt"})
    good = opened(tmp_path, data).tensors
    end = 8 + int.from_bytes(data[:8], "little")
    flips = [(at, bit) for at in range(end) for bit in range(8)]
    refused = changed = 0
    path = tmp_path / "model.safetensors"
    with path.open("r+b", buffering=0) as raw:
        for at, bit in flips:
            os.pwrite(raw.fileno(), bytes([data[at] ^ 1 << bit]), at)
            try:
                with open_safetensors(path) as file:
                    changed += not same_but_for_names(file.tensors, good)
            except InvalidModel:
                refused += 1
            os.pwrite(raw.fileno(), data[at : at + 1], at)
    assert len(flips) > 3000
    assert refused > len(flips) / 2
    assert changed == 0


def same_but_for_names(found: dict[str, TensorInfo], good: dict[str, TensorInfo]) -> bool:
    """Only a name changed: the model then lacks a tensor, which `check_tensors` refuses by name."""
    return [(t.dtype, t.shape, t.offset, t.nbytes) for t in found.values()] == [
        (t.dtype, t.shape, t.offset, t.nbytes) for t in good.values()
    ]


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    data = safetensors_bytes(TENSORS, metadata={"format": "pt"})
    rnd = random.Random(0)
    for _ in range(1000):
        broken = bytearray(data)
        for _ in range(rnd.randint(1, 6)):
            at = rnd.randrange(len(broken))
            choice = rnd.random()
            if choice < 0.5:
                broken[at] = rnd.randrange(256)
            elif choice < 0.75:
                del broken[at : at + rnd.randint(1, 9)]
            else:
                broken[at:at] = rnd.choice([b"{", b"[", b'"', b"9" * 20, b"-", b",", b"\\ud800", bytes(4)])
        try:
            with opened(tmp_path, bytes(broken)) as file:
                for name in file.tensors:
                    file.read(name)
        except (InvalidModel, UnsupportedModel):
            pass


# ---- files that are not files, or do not stay what they were


def test_special_files_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # socket paths are short
    fifo, folder, link = tmp_path / "fifo", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(fifo)
    folder.mkdir()
    link.symlink_to(fifo)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        for path, kind in [(fifo, "pipe"), (folder, "folder"), (link, "pipe"), (tmp_path / "sock", "socket")]:
            refuses(InvalidModel, f"is a {kind}", lambda path=path: open_safetensors(path))
    refuses(InvalidModel, "is a device", lambda: open_safetensors(Path("/dev/zero")))
    refuses(InvalidModel, "0 bytes", lambda: open_safetensors(Path("/proc/self/maps")))


def test_missing_and_impossible_paths(tmp_path: Path) -> None:
    refuses(ModelNotFound, "no file", lambda: open_safetensors(tmp_path / "gone"))
    refuses(ModelNotFound, "no file", lambda: open_safetensors(tmp_path / "gone\nline\x1b[31m"))
    refuses(ModelNotFound, "not a possible", lambda: open_safetensors(tmp_path / "nul\0"))
    refuses(StorageError, "too long", lambda: open_safetensors(tmp_path / ("x" * 5000)))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuses(StorageError, "symbolic links", lambda: open_safetensors(tmp_path / "loop"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(TENSORS))
    path.chmod(0)
    refuses(StorageError, "permission", lambda: open_safetensors(path))


def test_file_that_changes_after_open(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    file = opened(tmp_path, safetensors_bytes(TENSORS))
    os.truncate(path, path.stat().st_size - 4)
    refuses(InvalidModel, "changed while", lambda: file.read("matrix"))


def test_file_replaced_by_rename_keeps_serving(tmp_path: Path) -> None:
    file = opened(tmp_path, safetensors_bytes(TENSORS))
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").rename(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(file.read("matrix"), TENSORS["matrix"])


def test_short_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path, safetensors_bytes(TENSORS))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: real(fd, [views[0][:5]], at))
    np.testing.assert_array_equal(file.read("matrix"), TENSORS["matrix"])
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    refuses(InvalidModel, "ends at byte", lambda: file.read("matrix"))


def test_disk_error_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    file = opened(tmp_path, safetensors_bytes(TENSORS))
    monkeypatch.setattr(os, "preadv", broken)
    refuses(StorageError, "Input/output error", lambda: file.read("matrix"))


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    before = open_descriptors()
    for bad in FILES[:20]:
        refuses(InvalidModel, ".", lambda bad=bad: opened(tmp_path, bad.data))
    file = opened(tmp_path, safetensors_bytes(TENSORS))
    file.close()
    file.close()
    folder = write_model(tmp_path / "sharded", shards=3)
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"")
    refuses(InvalidModel, "0 bytes", lambda: open_model_folder(folder))
    assert open_descriptors() == before


# ---- folders


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_folder_gives_the_same_tensors_however_it_is_cut(shards: int, dtype: str, tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    with open_model_folder(write_model(tmp_path, tensors=tensors, shards=shards, dtype=dtype)) as source:
        assert sorted(source.names()) == sorted(tensors)
        assert len(source.files) == shards
        for name, expected in tensors.items():
            assert source.shape(name) == expected.shape
            np.testing.assert_allclose(source.read(name), expected, rtol=0 if dtype == "F32" else 1 / 128)
        assert check_tensors(source, describe(load_config(source.config))) == []


def test_folder_laid_out_like_the_hub_cache(tmp_path: Path) -> None:
    real = write_model(tmp_path / "real")
    snapshot = tmp_path / "models--x--y" / "snapshots" / "abc"
    blobs = tmp_path / "models--x--y" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in real.iterdir():
        file.rename(blobs / f"sha-{file.name}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"sha-{file.name}")
    with open_model_folder(snapshot) as source:
        assert check_tensors(source, describe(load_config(source.config))) == []


def test_folder_refuses_not_finite_weights_by_name(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    tensors["model.norm.weight"][3] = np.nan
    with open_model_folder(write_model(tmp_path, tensors=tensors)) as source:
        refuses(InvalidModel, "`model.norm.weight` holds `nan`", lambda: source.read("model.norm.weight"))


def test_folder_does_not_know_other_tensors(tmp_path: Path) -> None:
    with open_model_folder(write_model(tmp_path)) as source:
        refuses(InvalidModel, "has no tensor `other`", lambda: source.shape("other"))


def test_more_shards_than_anyone_needs(tmp_path: Path) -> None:
    folder = write_model(tmp_path, shards=2)
    write_json(folder / "model.safetensors.index.json",
               {"weight_map": {str(i): f"{i}.safetensors" for i in range(4097)}})  # fmt: skip
    refuses(InvalidModel, "`4097` files", lambda: open_model_folder(folder))


@pytest.mark.parametrize("bad", JSONS, ids=lambda bad: bad.id)
def test_bad_config_text(bad: BadJSON, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").write_bytes(bad.data)
    refuses(InvalidModel, bad.message, lambda: open_model_folder(folder))


def test_json_limits_hold_at_the_limit_and_above() -> None:
    assert parse_json(b"[" * 64 + b"]" * 64, "x") is not None
    refuses(InvalidModel, "64", lambda: parse_json(b"[" * 65 + b"]" * 65, "x"))
    assert parse_json(b"[1,2]", "x", max_bytes=5, max_values=2) == [1, 2]
    refuses(InvalidModel, "5 bytes; at most 4", lambda: parse_json(b"[1,2]", "x", max_bytes=4))
    refuses(InvalidModel, "more than 1 values", lambda: parse_json(b"[1,2]", "x", max_values=1))
    assert parse_json(b'"\\ud83d\\ude00"', "x") == "\U0001f600"
    assert parse_json(b"1" * 4300, "x") > 0


def test_json_raises_the_error_that_is_asked_for() -> None:
    refuses(UsageError, "`body` must hold a JSON object", lambda: parse_object(b"[]", "body", error=UsageError))


def test_json_random_damage_raises_nothing_else() -> None:
    rnd = random.Random(1)
    text = json.dumps(tiny_config()).encode()
    for _ in range(3000):
        broken = bytearray(text)
        for _ in range(rnd.randint(1, 4)):
            broken[rnd.randrange(len(broken))] = rnd.choice(b'{}[]",:\\0eE-+.nNIu\x00\xff ')
        try:
            load_config(parse_object(bytes(broken), "config.json"))
        except (InvalidModel, UnsupportedModel) as failure:
            assert str(failure).isprintable()


@pytest.mark.parametrize("bad", INDEXES, ids=lambda bad: bad.id)
def test_bad_index(bad: BadIndex, tmp_path: Path) -> None:
    folder = write_model(tmp_path, shards=2)
    index = {} if bad.weight_map is ... else {"weight_map": bad.weight_map}
    write_json(folder / "model.safetensors.index.json", index)
    refuses(InvalidModel, bad.message, lambda: open_model_folder(folder))


def test_c19_shard_that_is_no_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path, shards=2)
    shard = folder / "model-00001-of-00002.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    refuses(InvalidModel, "is a pipe", lambda: open_model_folder(folder))
    shard.unlink()
    shard.symlink_to("/etc/passwd")
    refuses(InvalidModel, "header of|not one JSON", lambda: open_model_folder(folder))


def test_c20_index_and_shards_disagree(tmp_path: Path) -> None:
    folder = write_model(tmp_path, shards=2)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    path = folder / "model.safetensors.index.json"
    weight_map = json.loads(path.read_text())["weight_map"]

    def with_map(changed: dict[str, str]) -> Callable[[], object]:
        write_json(path, {"weight_map": changed})
        return lambda: open_model_folder(folder)

    refuses(InvalidModel, "`ghost` into .* does not hold it", with_map(weight_map | {"ghost": first}))
    moved = {name: second if name == "model.norm.weight" else file for name, file in weight_map.items()}
    other = first if weight_map["model.norm.weight"] == second else second
    moved["model.norm.weight"] = other
    refuses(InvalidModel, "`model.norm.weight` is in", with_map(moved))
    fewer = {name: file for name, file in weight_map.items() if name != "model.norm.weight"}
    refuses(InvalidModel, "`model.norm.weight` is in .* `nowhere`", with_map(fewer))


def test_c1_c22_folders_without_a_model(tmp_path: Path) -> None:
    refuses(ModelNotFound, "no model folder", lambda: open_model_folder(tmp_path / "gone"))
    refuses(ModelNotFound, "no config.json in", lambda: open_model_folder(tmp_path))
    write_json(tmp_path / "config.json", tiny_config())
    refuses(InvalidModel, "is not a folder", lambda: open_model_folder(tmp_path / "config.json"))
    refuses(ModelNotFound, "no model.safetensors", lambda: open_model_folder(tmp_path))
    for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
        refuses(UnsupportedModel, f"`{name}`.*safetensors", lambda: open_model_folder(tmp_path))
        (tmp_path / name).unlink()


def test_c17_code_in_the_folder_never_runs(tmp_path: Path) -> None:
    config = tiny_config() | {"auto_map": {"AutoModelForCausalLM": "canary.Model"}, "trust_remote_code": True}
    folder = write_model(tmp_path / "model", config)
    canary = tmp_path / "ran"
    (folder / "canary.py").write_text(f"open({str(canary)!r}, 'w')\n")
    with open_model_folder(folder) as source:
        assert check_tensors(source, describe(load_config(source.config))) == []
    assert not canary.exists()


def test_config_that_is_no_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refuses(InvalidModel, "is a pipe", lambda: open_model_folder(folder))


def test_weights_may_be_rewritten_in_place_only_between_loads(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with open_model_folder(folder) as source:
        write_weights(folder, random_tensors(tiny_config(), seed=9))
        os.utime(folder / "model.safetensors", ns=(0, 1))
        refuses(InvalidModel, "changed while", lambda: source.read("model.norm.weight"))


def test_tables_have_one_id_each() -> None:
    for table in (FILES, CONFIGS, JSONS, INDEXES):
        ids = [bad.id for bad in table]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}', "of `Qwen/Qwen3-0.6B`, not a model; import `Qwen/"),
        ("{}", r"is an adapter \(LoRA\), not a model"),
    ],
)  # fmt: skip
def test_an_adapter_is_told_from_a_model(tmp_path, config, words):
    (tmp_path / "adapter_config.json").write_text(config)
    refuses(UnsupportedModel, words, lambda: open_model_folder(tmp_path))
    (tmp_path / "adapter_config.json").write_text("nonsense")
    refuses(InvalidModel, "adapter_config.json", lambda: open_model_folder(tmp_path))
