"""An Ascend card through torch_npu: its INT8 products beside the CPU (placement *split*), or the whole model on it (*card*)."""
