"""An imported model as a Hugging Face folder of compressed-tensors, which vLLM and vllm-ascend load.

    OUT/config.json                    the model's own, with quantization_config
    OUT/model-00001-of-00004.safetensors ...    the embedding, a file for each layer, the last norm with the output matrix
    OUT/model.safetensors.index.json   which tensor is where
    OUT/tokenizer.json, chat_template.jinja, generation_config.json ...    as they came

    bundle's linear -> `forms`: what the format can hold of it -> `modules`: under the names of the family -> files
                       `trial`: what that costs on a text

INT8 linears that need nothing beside their integers and scales are written as they are.  What else a bundle has is named in
`losses`, with what it costs together.
"""
