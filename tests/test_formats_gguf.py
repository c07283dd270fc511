"""GGUF files: what is written comes back; what a stranger may send ends in one line, soon and in little memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    FORMATS,
    STRING,
    U8,
    U32,
    U64,
    Of,
    floats,
    gguf_bytes,
    header,
    pair_bytes,
    string,
    tensor_entry,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.errors import EdgeLLMError, InvalidModel, ModelNotFound, UnsupportedModel
from edge_llm.formats.gguf import GgufArray, first_part, is_gguf, open_gguf, without_part
from edge_llm.formats.gguf_blocks import REMOVED, TYPES, decode

ROW = np.arange(32, dtype=np.float32)
READ = {number: kind for number, kind in TYPES.items() if kind.decode}


def opened(folder: Path, data: bytes, name: str = "m.gguf"):
    (folder / name).write_bytes(data)
    return open_gguf(folder / name)


def test_a_tiny_file_comes_back(tmp_path):
    pairs = {"general.architecture": "llama", "a.b": 7, "a.f": 0.5, "a.t": True, "a.s": ["x", "é", ""], "a.n": [3, -4]}
    with opened(tmp_path, gguf_bytes(pairs, [floats("t", ROW.reshape(4, 8)), floats("u", ROW)])) as model:
        assert (model.text("general.architecture"), model.integer("a.b", 0, 9), model.number("a.f", 0, 1)) == ("llama", 7, 0.5)
        assert model.flag("a.t") and model.strings("a.s") == ["x", "é", ""] and model.numbers("a.n").tolist() == [3, -4]
        assert [(one.name, one.shape, one.kind.name) for one in model.tensors] == [("t", (4, 8), "F32"), ("u", (32,), "F32")]
        assert np.array_equal(model.read("t"), ROW.reshape(4, 8))


@pytest.mark.skipif(find_spec("gguf") is None, reason="the package `gguf` is not installed (the extra `test`)")
@pytest.mark.parametrize("number", READ, ids=[kind.name for kind in READ.values()])
def test_every_type_decodes_to_the_values_of_ggml(number, tmp_path):
    import gguf

    kind, theirs = READ[number], gguf.GGMLQuantizationType(number)
    raw = np.random.default_rng(number).integers(0, 256, (512, kind.nbytes), dtype=np.uint8)
    if kind.name == "MXFP4":
        raw[:256, 0] = np.arange(256)
    plain = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw.view(plain), theirs).astype(np.float32).reshape(-1)
    found = decode(kind, raw)
    nan = np.isnan(expected)
    assert theirs.name == kind.name and np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_the_sizes_of_blocks_are_those_of_ggml():
    gguf = pytest.importorskip("gguf")
    known = {kind.value: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert all(known[number] == (kind.columns, kind.nbytes) for number, kind in TYPES.items() if number in known)
    assert not REMOVED.keys() & TYPES.keys()


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.dictionaries(
        st.text("abc._é", min_size=1, max_size=12),
        st.one_of(
            st.text(max_size=40), st.booleans(), st.integers(0, 2**32 - 1), st.floats(width=32, allow_nan=False),
            st.lists(st.text(max_size=9), max_size=6), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
        ),
        max_size=8,
    ),
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=4),
    seed=st.integers(0, 99),
    alignment=st.sampled_from([8, 32, 64]),
)  # fmt: skip
def test_what_is_written_comes_back(tmp_path_factory, pairs, shapes, seed, alignment):
    rng = np.random.default_rng(seed)
    values = {f"t{index}": rng.standard_normal(shape).astype(np.float32) for index, shape in enumerate(shapes)}
    data = gguf_bytes(pairs | {"general.alignment": alignment}, [floats(*one) for one in values.items()], alignment)
    with opened(tmp_path_factory.mktemp("gguf"), data) as model:
        for key, value in pairs.items():
            found = model.pairs[key]
            if not isinstance(found, GgufArray):
                assert found == value and type(found) is type(value)
            elif value and not isinstance(value[0], str):
                assert model.numbers(key).tolist() == value
            else:
                assert model.strings(key) == value
        assert {one.name: one.shape for one in model.tensors} == {name: value.shape for name, value in values.items()}
        assert all(np.array_equal(model.read(name), value) for name, value in values.items())


@settings(max_examples=30, deadline=None)
@given(number=st.sampled_from(list(READ)), rows=st.integers(1, 3), blocks=st.integers(1, 4), seed=st.integers(0, 999))
def test_a_quantized_tensor_is_read_as_its_blocks_are(tmp_path_factory, number, rows, blocks, seed):
    kind = READ[number]
    raw = np.random.default_rng(seed).integers(0, 60, (rows * blocks, kind.nbytes), dtype=np.uint8)  # small scales: finite
    data = gguf_bytes({}, [("t", number, (rows, blocks * kind.columns), raw.tobytes())])
    with opened(tmp_path_factory.mktemp("gguf"), data) as model:
        assert np.array_equal(model.read("t").reshape(-1), decode(kind, raw))


WHOLE = gguf_bytes({"general.architecture": "llama", "a.list": ["x", "yy"]}, [floats("t", ROW), floats("u", ROW)])


def of_tensor(*entries: bytes, data: bytes = b"", pairs: bytes = b"", count: int = 0) -> bytes:
    head = header(len(entries), count) + pairs + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


def of_pair(key: str | bytes, value: object) -> bytes:
    return header(0, 1) + pair_bytes(key, value) + bytes(64)


D = bytes(128)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "too few"),
    "one byte": (b"G", "too few"),
    "four bytes": (b"GGUF", "too few"),
    "23 bytes": (WHOLE[:23], "too few"),
    "magic": (b"GGML" + WHOLE[4:], "does not begin with"),
    "magic turned round": (b"FUGG" + WHOLE[4:], "does not begin with"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + WHOLE[8:], "big-endian"),
    "version 0": (header(0, 0, 0) + D, "version `0`"),
    "version 1": (header(0, 0, 1) + D, "version `1`"),
    "version 99": (header(0, 0, 99) + D, "version `99`"),
    "tensors": (header(2**64 - 1, 0) + D, "claims `18446744073709551615` tensors"),
    "negative tensors": (header(2**63, 0) + D, "tensors"),
    "pairs": (header(0, 2**64 - 1) + D, "keys, more than"),
    "length of a key": (header(0, 1) + struct.pack("<Q", 2**63) + D, "a key claims"),
    "empty key": (of_pair("", 1), "keys are printable"),
    "key of 65 KiB": (of_pair("k" * 66_560, 1), "a key claims"),
    "type of a value": (header(0, 1) + string("k") + struct.pack("<I", 255) + D, "unknown type `255`"),
    "bool": (of_pair("k", Of(BOOL, 7)), "the bool `7`"),
    "length of a string": (header(0, 1) + string("k") + struct.pack("<IQ", STRING, 10**6) + D, "claims `1000000` bytes"),
    "array of 2^40": (header(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, U8, 2**40) + D, "elements, more than"),
    "array of 50 million": (header(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, U8, 5 * 10**7), "elements, more than"),
    "strings of 2^60": (header(0, 1) + string("k") + struct.pack("<IIQQ", ARRAY, STRING, 1, 2**60) + D, "a string of `k`"),
    "array of arrays": (
        header(0, 1) + string("k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 5000,
        "array of arrays",
    ),
    "type of elements": (header(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, 77, 1) + D, "unknown type `77`"),
    "key twice": (header(0, 2) + pair_bytes("k", 1) * 2 + D, "the key `k` twice"),
    "key that is no UTF-8": (of_pair(b"\xff\xfe", 1), "not UTF-8"),
    "text that is no UTF-8": (of_pair("k", b"\xff\xfe"), "not UTF-8"),
    "alignment 0": (of_pair("general.alignment", 0), "general.alignment"),
    "alignment 13": (of_pair("general.alignment", 13), "general.alignment"),
    "alignment 2^31": (of_pair("general.alignment", 2**31), "general.alignment"),
    "alignment as text": (of_pair("general.alignment", "32"), "general.alignment"),
    "alignment as a float": (of_pair("general.alignment", 32.0), "general.alignment"),
    "tensor twice": (of_tensor(tensor_entry("t", 0, [32], 0), tensor_entry("t", 0, [32], 128), data=D * 2), "`t` twice"),
    "name of 64 bytes": (of_tensor(tensor_entry("t" * 64, 0, [32], 0), data=D), "name claims `64` bytes"),
    "name with NUL": (of_tensor(tensor_entry("t\0", 0, [32], 0), data=D), "names are printable"),
    "no dimensions": (of_tensor(tensor_entry("t", 0, [], 0), data=D), "`0` dimensions"),
    "five dimensions": (of_tensor(tensor_entry("t", 0, [1] * 5, 0), data=D), "`5` dimensions"),
    "2^32 dimensions": (of_tensor(string("t") + struct.pack("<I", 2**32 - 1) + D, data=D), "dimensions"),
    "dimension 0": (of_tensor(tensor_entry("t", 0, [32, 0], 0), data=D), "impossible size"),
    "2^80 elements": (of_tensor(tensor_entry("t", 0, [2**40, 2**40], 0), data=D), "impossible size"),
    "sum of sizes": (of_tensor(*(tensor_entry(f"t{i}", 0, [2**60], i * 2**62) for i in range(4)), data=D), "would end at"),
    "unknown type": (of_tensor(tensor_entry("t", 99, [32], 0), data=D), "unknown type `99`"),
    "removed type": (of_tensor(tensor_entry("t", 4, [32], 0), data=D), "Q4_2"),
    "rows of 31": (of_tensor(tensor_entry("t", 2, [31], 0), data=D), "blocks of 32"),
    "unaligned": (of_tensor(tensor_entry("t", 0, [32], 1), data=D * 2), "is at byte `1`"),
    "offset past the end": (of_tensor(tensor_entry("t", 0, [32], 2**40), data=D), "is at byte"),
    "one byte too few": (of_tensor(tensor_entry("t", 0, [32], 0), data=D[:-1]), "truncated"),
    "overlap": (of_tensor(tensor_entry("t", 0, [32], 0), tensor_entry("u", 0, [32], 64), data=D * 2), "is at byte `64`"),
    "hole": (of_tensor(tensor_entry("t", 0, [32], 0), tensor_entry("u", 0, [32], 160), data=D * 3), "is at byte `160`"),
    "no data": (of_tensor(tensor_entry("t", 0, [32], 0)), "truncated"),
    "bytes behind": (WHOLE + D, "bytes behind"),
    "template of 100 MiB": (
        header(0, 1) + string("tokenizer.chat_template") + struct.pack("<IQ", STRING, 100 << 20) + D,
        "claims",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_wrong_is_told_in_a_line_soon_and_in_little_memory(kind, tmp_path):
    data, said = HOSTILE[kind]
    (tmp_path / "m.gguf").write_bytes(data)
    begun = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises((InvalidModel, UnsupportedModel)) as refused:
            open_gguf(tmp_path / "m.gguf")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said in str(refused.value) and "\n" not in str(refused.value) and "m.gguf" in str(refused.value)
    assert most < 64 << 20 and time.monotonic() - begun < 20


def test_a_template_of_more_than_16_mib_is_not_read(tmp_path):
    data = header(0, 1) + pair_bytes("tokenizer.chat_template", "x" * ((16 << 20) + 1))
    with pytest.raises(InvalidModel, match="more than 16777216"):
        opened(tmp_path, data)


def test_a_header_has_an_end(tmp_path):
    pairs = {f"k{index}": "x" * (12 << 20) for index in range(3)}
    with pytest.raises(InvalidModel, match="more than 32 MiB"):
        opened(tmp_path, gguf_bytes(pairs))


@pytest.mark.parametrize("length", range(0, len(WHOLE), 3))
def test_every_beginning_of_a_file_is_refused(length, tmp_path):
    with pytest.raises(InvalidModel):
        opened(tmp_path, WHOLE[:length])


def test_three_hundred_mutations_end_in_one_typed_error_or_a_right_reading(tmp_path):
    """At most the padding, a value or a name changed: then everything can be read."""
    rng = np.random.default_rng(5)
    pairs = {"general.architecture": "llama", "a.n": 5, "a.s": ["x", "yy"], "a.f": [0.5, 2.0], "a.b": True}
    scales = rng.integers(0, 60, (2, 34), dtype=np.uint8)
    whole = gguf_bytes(pairs, [floats("t", ROW), ("q", 8, (1, 64), scales.tobytes())])
    outcomes = {"read": 0, "refused": 0}
    for _ in range(300):
        data = bytearray(whole)
        kind = rng.integers(4)
        at = int(rng.integers(len(data)))
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.integers(256))
        elif kind == 2:
            del data[at : at + int(rng.integers(1, 9))]
        else:
            data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8))
        begun = time.monotonic()
        try:
            with opened(tmp_path, bytes(data)) as model:
                for one in model.tensors:
                    assert np.isfinite(model.read(one.name)).all()
                for key, value in model.pairs.items():
                    if isinstance(value, GgufArray):
                        model.strings(key) if value.kind == STRING else model.numbers(key)
            outcomes["read"] += 1
        except EdgeLLMError as refused:
            assert isinstance(refused, (InvalidModel, UnsupportedModel)) and "\n" not in str(refused)
            outcomes["refused"] += 1
        assert time.monotonic() - begun < 20
    assert min(outcomes.values()) > 30


@pytest.mark.parametrize("number", [8, 12], ids=["Q8_0", "Q4_K"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0])
def test_a_scale_that_is_no_number_is_refused_when_it_is_read(number, scale, tmp_path):
    kind = TYPES[number]
    raw = np.full(kind.nbytes, 1, np.uint8)
    raw[:2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    with opened(tmp_path, gguf_bytes({}, [("t", number, (1, kind.columns), raw.tobytes())])) as model:
        if scale == 0:
            assert np.isfinite(model.read("t")).all()
            return
        with pytest.raises(InvalidModel, match="tensor `t` holds"):
            model.read("t")


@pytest.mark.parametrize("number", [number for number, kind in TYPES.items() if not kind.decode and kind.columns > 1])
def test_types_that_are_not_read_are_named(number, tmp_path):
    kind = TYPES[number]
    with opened(tmp_path, gguf_bytes({}, [("t", number, (1, kind.columns), bytes(kind.nbytes))])) as model:
        with pytest.raises(UnsupportedModel, match=f"is {kind.name}, which is not read.*Q4_K_M"):
            model.check_types()
        with pytest.raises(UnsupportedModel, match=kind.name):
            model.read("t")


def parts(folder: Path, count: int = 3, **changes: object) -> list[Path]:
    """A model in ``count`` files of one tensor each; ``changes`` are pairs of the second."""
    paths = [folder / f"m-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        said = {"split.no": number, "split.count": count, "split.tensors.count": Of(5, count)}
        said |= {"general.architecture": "llama"} if number == 0 else {}
        said |= {key.replace("_", "."): value for key, value in changes.items()} if number == 1 else {}
        path.write_bytes(gguf_bytes(said, [floats(f"t{number}", ROW + number)]))
    return paths


def test_a_split_model_is_one_whatever_part_is_named(tmp_path):
    paths = parts(tmp_path)
    for path in paths:
        with open_gguf(path) as model:
            assert model.files == paths and model.text("general.architecture") == "llama"
            assert [model.read(f"t{number}")[0] for number in range(3)] == [0, 1, 2]
    assert without_part(paths[0].name) == "m" and without_part("x.Q4_1.gguf") == "x.Q4_1"


def test_parts_that_are_not_of_one_model_are_refused(tmp_path):
    paths = parts(tmp_path)
    paths[1].rename(tmp_path / "away")
    with pytest.raises(InvalidModel, match=r"m-00002-of-00003.gguf`, a part of the model, is missing"):
        open_gguf(paths[0])
    paths[2].rename(paths[1])
    (tmp_path / "away").rename(paths[2])
    with pytest.raises(InvalidModel, match="says that it is part `2`"):
        open_gguf(paths[0])
    for change, said in (
        ({"split_count": 9}, "one of `9` files"),
        ({"general_architecture": "qwen2"}, "another model"),
        ({"split_no": 7}, "part `7`"),
    ):
        with pytest.raises(InvalidModel, match=said):
            open_gguf(parts(tmp_path, **change)[0])
    paths = parts(tmp_path)
    paths[1].write_bytes(gguf_bytes({"split.no": 1, "split.count": 3}, [floats("t0", ROW)]))
    with pytest.raises(InvalidModel, match="`t0` of another part again"):
        open_gguf(paths[0])
    paths[1].write_bytes(gguf_bytes({"split.no": 1, "split.count": 3}, [floats("t1", ROW), floats("t9", ROW)]))
    with pytest.raises(InvalidModel, match="`3` tensors, they have 4"):
        open_gguf(paths[0])
    (tmp_path / "m-00001-of-65535.gguf").write_bytes(WHOLE)
    with pytest.raises(InvalidModel, match="one of `65535` files"):
        open_gguf(tmp_path / "m-00001-of-65535.gguf")
    with pytest.raises(ModelNotFound):
        open_gguf(tmp_path / "none.gguf")


def test_the_first_part_is_found_by_any_of_them(tmp_path):
    paths = parts(tmp_path)
    assert {first_part(path) for path in paths} == {paths[0]} and first_part(tmp_path / "x.gguf") == tmp_path / "x.gguf"
    beyond, many = tmp_path / "m-00009-of-00003.gguf", tmp_path / "m-00001-of-65535.gguf"
    assert (first_part(beyond), first_part(many)) == (beyond, many)
    paths[0].unlink()
    assert first_part(paths[1]) == paths[1]
    with pytest.raises(InvalidModel, match=r"m-00001-of-00003.gguf`, a part of the model, is missing"):
        open_gguf(paths[1])


def test_a_folder_is_no_file_whatever_its_name_ends_in(tmp_path):
    (tmp_path / "x.gguf").mkdir()
    assert not is_gguf(tmp_path / "x.gguf") and is_gguf(tmp_path / "y.GGUF")


def test_a_file_that_grows_while_it_is_read_is_noticed(tmp_path):
    with opened(tmp_path, WHOLE) as model:
        (tmp_path / "m.gguf").write_bytes(WHOLE + D)
        with pytest.raises(InvalidModel, match="changed while"):
            model.read("t")


def test_numbers_of_any_type_are_read_within_bounds(tmp_path):
    for kind in (*FORMATS, ARRAY):
        value = Of(kind, 1) if kind != ARRAY else Of(ARRAY, [1, 1], U64)
        with opened(tmp_path, gguf_bytes({"k": value, "many": Of(ARRAY, [1, 2], U32), "f": Of(F32, np.nan)})) as model:
            if kind in (F32, 12, BOOL):
                with pytest.raises(InvalidModel, match="whole number"):
                    model.integer("k", 0, 5)
            else:
                assert model.integer("k", 0, 5) == 1
                with pytest.raises(InvalidModel, match="from 2 to 5"):
                    model.integer("k", 2, 5)
            with pytest.raises(InvalidModel, match="array of different values"):
                model.integer("many", 0, 5)
            with pytest.raises(InvalidModel, match="a number from"):
                model.number("f", 0, 5)
            with pytest.raises(InvalidModel, match="lacks `none`"):
                model.text("none")
