"""Memory in huge pages: as long as asked for, zero, from the start of such a page, and gone with its last view."""

import numpy as np
import pytest

from edge_llm.formats.huge_pages import HUGE_PAGE_BYTES, huge_memory


@pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
def test_it_is_zero_and_begins_where_a_huge_page_does(nbytes):
    memory = huge_memory(nbytes)
    assert memory.dtype == np.uint8 and memory.shape == (nbytes,) and not memory.any()
    assert nbytes == 0 or memory.ctypes.data % HUGE_PAGE_BYTES == 0
    memory[:] = 7
    view = memory[nbytes // 2 :]
    del memory
    assert (view == 7).all()


def test_too_much_is_refused():
    with pytest.raises(MemoryError, match="bytes for weights"):
        huge_memory(1 << 60)
