from typing import Any

import numpy as np
import numpy.typing as npt

class ThreadPool:
    def __init__(self, threads: int, cpus: list[int] | None = None) -> None: ...
    @property
    def threads(self) -> int: ...

def isa() -> str: ...
def isa_variants() -> list[str]: ...
def use_isa(name: str) -> None: ...

# ---- linear, layout, checksum, roofs (bind_linear.cpp) ----

# ---- attention (bind_attention.cpp) ----

# ---- pointwise (bind_pointwise.cpp) ----
