"""Operations that decide the speed on a GPU, each stated in PyTorch and again as a Triton kernel.

PyTorch's statement is the definition, and what runs on a CPU, in other number types, or where Triton is absent. The
kernels save passes over memory.
"""
