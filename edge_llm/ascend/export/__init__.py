"""An imported model's INT8 products as ONNX graphs, for other runtimes.

    OUT/README.md                   how they are used
    OUT/index.json                  lengths, graphs, and which initializer is where, layer by layer
    OUT/qkv-256.onnx                rows [256, K] -> product [256, N]
    OUT/initializers/layers.0.bin   weight, scale and bias of every product of a layer
    OUT/atc.sh                      for a chip: compiles them

A graph holds no weights, and all layers share it.  By itself it takes those of the first layer that has it, which stand there
as external data; ``SessionOptions.add_external_initializers`` gives it another layer's.

In the check flavour the rows are int8, and that makes the sums exact with and without VNNI: onnxruntime's kernels for uint8
rows and int8 weights saturate where there is none, those for int8 and int8 do not.  ``session.x64quantprecision=1``, which is
made against that, changes nothing here.  With ``SessionOptions.add_initializer`` it must be left out: it converts the weight
that the graph names before that one is replaced, and every layer would silently multiply by the first layer's.

Hot channels and overflow stay with whoever makes the rows, as beside a card (`edge_llm.subgraphs.placement.SPLIT`).
"""
