"""Turns the trained model into the bundle that ships inside the package.

    python assets/builtin_model/train.py --out DIR
    python assets/builtin_model/bundle.py DIR

It is a plain `edge-llm import` on the model's own calibration text that keeps the float weights, so that `--float` and
`perplexity` work on the built-in model; only the place where it was trained is left out of the manifest.
"""

import shutil
import sys
from pathlib import Path

from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST, encode_manifest
from edge_llm.paths import BUILTIN_MODEL_NAME, builtin_bundle

CALIBRATION = Path(__file__).parent / "calibration.txt"


def build(source: Path) -> None:
    """Replace the built-in bundle by an import of the Hugging Face folder ``source``."""
    target = builtin_bundle()
    shutil.rmtree(target, ignore_errors=True)
    import_model(source, BUILTIN_MODEL_NAME, target=target, calibration=CALIBRATION, keep_float=True)
    with open_bundle(target) as bundle:
        fields = {key: value for key, value in bundle.manifest.items() if key != "checksum"}
    fields["source"] = fields["source"] | {"path": None}
    (target / MANIFEST).write_bytes(encode_manifest(fields))
    with open_bundle(target) as bundle:
        bundle.read_all()


if __name__ == "__main__":
    build(Path(sys.argv[1]))
