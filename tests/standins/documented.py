"""Which kernels of a card are documented for which chip, by the tables "Supported products" of their public pages.

Made once, from the pages of CANN's ops-nn, ops-math and ops-transformer (folders ``docs`` of each operator, 2026), where
"Atlas inference products" is the 310P and "Atlas A2" the 910B, from op-plugin's documents, and for ATB from its own.  A kernel
that the backend comes to call has to be looked up there and put here first.
"""

BOTH = """
aclnnAbs aclnnAddmm aclnnAddRmsNorm aclnnApplyRotaryPosEmbV2 aclnnArange aclnnAscendQuantV3 aclnnCast aclnnCat
aclnnDynamicQuantV2 aclnnGtScalar aclnnGtTensor aclnnIncreFlashAttentionV4 aclnnIndexSelect aclnnInplaceCopy
aclnnInplaceFillScalar aclnnInplaceZero aclnnMatmulWeightNz aclnnMax aclnnMm aclnnMul aclnnMuls aclnnQuantMatmulWeightNz
aclnnReduceSum aclnnRmsNorm aclnnSwiGlu aclnnTransQuantParamV3
_npu_paged_attention _npu_paged_attention_splitfuse _npu_reshape_and_cache
"""
ONLY_310P = "_npu_paged_attention_splitfuse_v2"
ONLY_910B = "aclnnAdd aclnnInplaceAdd aclnnInplaceIndexCopy aclnnIndexPutImpl aclnnNeg aclnnNpuFormatCast aclnnQuantMatmulV5"
DOCUMENTED = {
    "310p": {*BOTH.split(), *ONLY_310P.split()},
    "310b": {"aclnnEmbedding", "aclnnInplaceCopy", "aclnnNeg"},
    "910b": {*BOTH.split(), *ONLY_910B.split()},
}
"""By chip; aclnn kernels, and operators of ATB."""
USED_ALL_THE_SAME = {"310p": {"aclnnAdd", "aclnnInplaceAdd"}}
"""Pages say no, but the operator's own list of chips says yes, and vllm-ascend adds tensors there."""
COMPILED = {"310p": {"Identity"}, "310b": set(), "910b": set()}
"""Kernels of the older compiler that there is no other way to: changes of format.  Never in a graph."""
