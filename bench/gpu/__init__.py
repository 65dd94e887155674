"""The parts of `gpu_check.py`. They need torch, triton, safetensors and numpy, nothing else."""
