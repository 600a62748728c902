"""Operations that determine the speed on a GPU, each written in PyTorch and as a Triton kernel.

The PyTorch version is the definition. It runs on a CPU, in other dtypes, and if Triton is not installed. The kernels
save passes over memory.
"""
