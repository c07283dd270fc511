"""A process in which NumPy, its BLAS and the kernels use what every processor of this kind has: as if on an older machine."""

import os
import subprocess
import sys
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

_ROOT = Path(__file__).resolve().parents[1]
_FEATURES = " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name])
_SETTINGS = {
    "NPY_DISABLE_CPU_FEATURES": _FEATURES,
    "OPENBLAS_CORETYPE": "ARMV8" if os.uname().machine == "aarch64" else "Prescott",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "tests")]),
}
_PORTABLE = "from edge_llm import kernels; kernels.use_isa('portable')\n"


def run_on_another_processor(script: str, *arguments: object) -> str:
    """What ``script`` prints there."""
    command = [sys.executable, "-c", _PORTABLE + script, *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **_SETTINGS}, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return done.stdout
