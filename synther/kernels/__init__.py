"""The operations that take most of the time on a GPU. Each is written twice: in PyTorch and as a Triton kernel.

The PyTorch version is the definition. It also runs on a CPU, with other dtypes, and if Triton is not installed. The
Triton kernels compute the same with fewer passes over memory.
"""
