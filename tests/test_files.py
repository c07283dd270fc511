"""How files are read and written."""

import errno
import stat

import pytest

from edge_llm.files import write_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    write_whole(path, b"first", mode=0o640)
    assert path.read_bytes() == b"first" and stat.S_IMODE(path.stat().st_mode) == 0o640

    def full(_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("edge_llm.files.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first" and [each.name for each in tmp_path.iterdir()] == ["kept"]
