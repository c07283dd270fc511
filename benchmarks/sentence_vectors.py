"""How near the vectors of an encoder are here to those of sentence-transformers, on 48 short texts.

    python benchmarks/sentence_vectors.py FOLDER          a folder of sentence-transformers, which is imported
    python benchmarks/sentence_vectors.py FOLDER --name minilm      the same, imported before as `minilm`

Prints the worst and the mean cosine of the float path and of INT8, and how far the scalar products of all pairs of texts differ
at most.  Needs the package `sentence-transformers`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.opening.load import load_engine
from edge_llm.paths import find_bundle

SUBJECTS = ("The cat", "My older sister", "A new train line", "Nobody here", "The second law of thermodynamics", "Rust")
ENDS = (
    "sleeps on the warm roof.", "costs more than it did last year", "was never seen again?", "is easy to explain to children!",
    "kommt morgen aus Berlin zur\u00fcck.", "needs 3.5 litres of water per day, roughly", "",
    "is what I asked about; please answer briefly.",
)  # fmt: skip
TEXTS = tuple(f"{subject} {end}".strip() for subject in SUBJECTS for end in ENDS)


def ours(bundle: Path, *, float_path: bool) -> np.ndarray:
    """The vectors of `TEXTS`, float32 [48, size]."""
    engine = load_engine(bundle, RuntimeConfig(device="host", float_path=float_path))
    return np.asarray(engine.embed([engine.text_tokens(text) for text in TEXTS]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name")
    given = parser.parse_args()

    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(given.folder), device="cpu").encode(list(TEXTS), normalize_embeddings=True)
    with tempfile.TemporaryDirectory() as place:
        bundle = find_bundle(given.name) if given.name else import_model(given.folder, target=Path(place) / "bundle")
        for way, float_path in (("float", True), ("int8", False)):
            found = ours(bundle, float_path=float_path)
            cosines = (found * theirs).sum(axis=1)
            products = np.abs(found @ found.T - theirs @ theirs.T).max()
            print(f"{way:5}  worst {cosines.min():.6f}  mean {cosines.mean():.6f}  products of pairs differ by {products:.2e}")


if __name__ == "__main__":
    main()
