"""Tables and files of rows: the layout of llama-bench, what was asked for behind it, and earlier runs beside it."""

import json

import pytest

from edge_llm.bench import saved
from edge_llm.bench.report import markdown_lines, render
from edge_llm.errors import UsageError

ROW = {
    "backends": "host", "model_type": "tiny INT8", "model_size": 2**20, "model_n_params": 1_500_000, "n_threads": 2,
    "n_ubatch": 256, "n_prompt": 8, "n_gen": 0, "n_depth": 0, "test": "pp8", "avg_ts": 100.0, "stddev_ts": 1.0,
    "median_ts": 99.0, "samples_ts": [99.0], "gops": None, "gb_s": None, "gops_share": None, "gb_s_share": None,
    "roof_gops": None, "ratio": None, "ratio_low": None, "ratio_high": None, "ttft_ms": None,
    "environment": {"cpu": "x"},
}  # fmt: skip


def test_a_table_of_texts_has_a_rule_for_every_column():
    assert markdown_lines(["", "a", "b"], [["x", "1", "2"]]) == ["|  | a | b |", "| --- | --- | --- |", "| x | 1 | 2 |"]
    assert markdown_lines(["", "a"], [], right=True) == ["|  | a |", "| --- | ---: |"]


def test_a_plain_run_is_the_table_of_llama_bench():
    assert render([ROW], "md") == (
        "| model     |     size | params | backend | threads | test |           t/s |\n"
        "| --------- | -------: | -----: | ------- | ------: | ---: | ------------: |\n"
        "| tiny INT8 | 1.00 MiB | 1.50 M | host    |       2 |  pp8 | 100.00 ± 1.00 |"
    )


def test_roof_and_ratio_are_further_columns():
    roofed = ROW | {"gops": 12.4, "gops_share": 0.5, "roof_gops": 24.8}
    peer = roofed | {"backends": "llama.cpp", "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.2}
    head, _, ours, theirs = render([roofed, peer], "md").splitlines()
    assert [cell.strip() for cell in head.split("|")][8:-1] == ["GOP/s", "of roof", "edge-llm / peer"]
    assert [cell.strip() for cell in ours.split("|")][8:-1] == ["12", "50%", ""]
    assert [cell.strip() for cell in theirs.split("|")][8:-1] == ["12", "50%", "2.00x (1.90-2.20)"]


def test_bits_per_weight_stand_behind_the_speed():
    peer = ROW | {"backends": "llama.cpp", "model_type": "tiny Q4_0", "bits_per_weight": 4.5}
    head, _, ours, theirs = render([ROW | {"bits_per_weight": 8.314}, peer], "md").splitlines()
    assert [line.split("|")[8].strip() for line in (head, ours, theirs)] == ["bits/weight", "8.31", "4.50"]


def test_json_keeps_everything_and_csv_what_is_flat():
    assert json.loads(render([ROW, ROW], "json")) == [ROW, ROW]
    assert [json.loads(line) for line in render([ROW, ROW], "jsonl").splitlines()] == [ROW, ROW]
    head, line = render([ROW], "csv").splitlines()
    assert "samples_ts" not in head
    assert "environment" not in head
    assert len(line.split(",")) == len(head.split(","))


def test_a_saved_run_is_compared_row_by_row(tmp_path):
    path = tmp_path / "old.json"
    saved.save(path, [ROW, ROW | {"n_threads": 4, "median_ts": 50.0}])
    old = saved.load(path)
    assert saved.compared(ROW | {"median_ts": 198.0}, old)["saved_ratio"] == 2.0
    assert saved.compared(ROW | {"n_threads": 4, "median_ts": 25.0}, old)["saved_ratio"] == 0.5
    assert saved.compared(ROW | {"n_depth": 64}, old)["saved_ratio"] is None
    assert "vs. saved" in render([saved.compared(ROW, old)], "md").splitlines()[0]


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_what_is_printed_can_be_compared_with(tmp_path, form):
    path = tmp_path / "old"
    path.write_text(render([ROW, ROW], form))
    assert len(saved.load(path)) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"median_ts": 0}]', '[{"median_ts": true}]', "no json", "\xff"])
def test_a_file_without_rows_is_refused(tmp_path, text):
    path = tmp_path / "old.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError):
        saved.load(path)


def test_streamed_weights_are_further_columns():
    disk = {"disk_bytes_per_s": 4.5e9, "disk_share": 0.93, "disk_busy_share": 0.98}
    streamed = ROW | disk | {"streamed_bytes_per_token": 300 * 2**20}
    head, _, row = render([streamed], "md").splitlines()
    assert [cell.strip() for cell in head.split("|")][8:-1] == ["streamed", "disk", "of disk", "disk busy"]
    assert [cell.strip() for cell in row.split("|")][8:-1] == ["300 MiB", "4.50 GB/s", "93%", "98%"]
