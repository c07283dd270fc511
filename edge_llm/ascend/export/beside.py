"""What lies beside the graphs: a README that says how they are used, and the commands that compile them for a chip."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge_llm.ascend.export.flavours import Flavour
from edge_llm.ascend.npu.chips import ChipLaw

SCRIPT = "atc.sh"


@dataclass(frozen=True)
class Compiled:
    """One run of the compiler: ``graph`` with the initializers ``weights`` of ``layer`` in the place of ``stand_in``."""

    layer: int
    graph: str
    """The name of its file without `.onnx`."""
    weights: str
    stand_in: str
    """Where the graph looks for its initializers."""
    rows: tuple[int, int]


def script(law: ChipLaw, layers: Sequence[Iterable[Compiled]]) -> str:
    """The shell script that compiles all products of all ``layers`` for the chip of ``law``."""
    functions = "\n".join(_layer(index, runs) for index, runs in enumerate(layers))
    every = " ".join(str(index) for index in range(len(layers)))
    return _SCRIPT.format(soc=law.soc, functions=functions, every=every)


def _layer(index: int, runs: Iterable[Compiled]) -> str:
    calls = [
        f"  compile {run.layer} {shlex.quote(run.graph)} {run.weights} {run.stand_in} {run.rows[0]},{run.rows[1]}"
        for run in runs
    ]
    return "\n".join([f"layer_{index}() {{", *(calls or ["  :"]), "}"])


# Hard links, because the compiler looks beside the graph's real path.  fp16 is the mode that quantized models may have; there
# is nothing in float32 that it could round.
_SCRIPT = """\
#!/bin/sh
# Compiles every product of every layer for {soc}, one OM file each, with CANN's `atc`: it needs the toolkit, but no card.
#   sh atc.sh          all layers
#   sh atc.sh 0 1      these layers
#   ROWS="64 256" sh atc.sh   graphs of these numbers of rows
#   SOC={soc} sh atc.sh   for this chip of the family: an OM file is of one chip
set -eu
cd "$(dirname "$0")"
soc=${{SOC:-{soc}}}
command -v atc >/dev/null || {{
  echo "atc is not there: source the set_env.sh of CANN's toolkit first" >&2
  exit 1
}}

place() {{
  mkdir -p "$(dirname "$2")"
  ln -f "$1" "$2" 2>/dev/null || cp "$1" "$2"
}}

compile() {{ # layer, graph, its initializers, where the graph looks for them, shape of the rows
  case " ${{ROWS:-${{5%,*}}}} " in *" ${{5%,*}} "*) ;; *) return ;; esac
  place "$2.onnx" "om/work/layers.$1/$2.onnx"
  place "$3" "om/work/layers.$1/$4"
  atc --framework=5 --model="om/work/layers.$1/$2.onnx" --output="om/layers.$1.$2" --input_format=ND \\
    --input_shape="rows:$5" --soc_version="$soc" --precision_mode_v2=fp16 --log=error
}}

{functions}

for layer in ${{*:-{every}}}; do
  "layer_$layer"
done
rm -rf om/work
"""


def readme(flavour: Flavour, lengths: Sequence[int]) -> str:
    """How the graphs of ``flavour`` are used."""
    text = _CHECK if flavour.chip is None else _CHIP.format(soc=flavour.chip.soc)
    return _HEAD.format(lengths=", ".join(str(length) for length in lengths), rows=flavour.rows, product=flavour.product) + text


_HEAD = """\
# INT8 products as ONNX graphs

Each graph multiplies {rows} rows by one linear of a layer and gives {product}. There is one per part and number of rows
({lengths}); all layers share it. Fewer rows are filled up with zeros. `index.json` says which initializers are which layer's:
file, offset, type and shape. Blocks of `turn` channels of a row are multiplied by the Hadamard matrix of +1 and -1, not normed
(0: none); then rows are quantized by the layer's `input_scale`, an `input_offset` is added where there is one, and hot channels
are 0 in them. Those, and what overflows, are added to the product by whoever runs this.

"""
_CHECK = """\
## onnxruntime

A graph by itself has the weights of the first layer. Another layer's are given to the session, without
`session.x64quantprecision`, or with `add_external_initializers` in any case:

```python
options = onnxruntime.SessionOptions()
options.add_external_initializers(list(arrays), [onnxruntime.OrtValue.ortvalue_from_numpy(one) for one in arrays.values()])
session = onnxruntime.InferenceSession("qkv-8.onnx", options, providers=["CPUExecutionProvider"])
```

## Did something fall back to the CPU?

onnxruntime's CANN provider has no MatMulInteger: it leaves these graphs to the CPU and says nothing, also where CANN is not
there at all. So with any provider but the CPU's, forbid that, name no other provider, and look which one is used:

```python
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")  # then it raises instead
session = onnxruntime.InferenceSession(graph, options, providers=["CANNExecutionProvider"])
print(session.get_providers()[0])  # CANNExecutionProvider, or it is not used
```

For an Ascend card export the flavour of its chip: `edge-llm export --format onnx --flavour 310p MODEL`.
"""
_CHIP = """\
The operators are CANN's own, for {soc}. Rows are whole numbers from -127 to 127 in float16; the product is
`float16((rows @ weight + bias) * scale)`, saturated at 65504, where the scale is the lower half of its uint64, a float32 of 19
bits. Nothing of this was compiled or run by us so far: compare a product with that formula before you trust it.

## Compile it

`sh atc.sh` runs `atc` for each layer, part and number of rows; the commands are in there. It needs CANN's toolkit and no card.
The weights become a part of each OM file, so compile only the numbers of rows that you run: `ROWS=256 sh atc.sh`.

## Run it

`edge-llm run MODEL --device om:FOLDER`, where the chip is and this folder lies, after `source` of CANN's `set_env.sh`. MODEL is
the very bundle that was exported.

## Did something fall back to the CPU?

- onnxruntime does not know these operators: it refuses the graphs, and runs nothing of them on the CPU.
- `atc` refuses an operator that it does not know (E16002, E19010). What the card's slow AI CPU would run is told by the OM
  file: `atc --mode=1 --om=om/layers.0.NAME.om --json=om.json`, then
  `grep -A3 _ge_attr_op_kernel_lib_name om.json`: matrix and quantize operators must say `AIcoreEngine`.
"""
