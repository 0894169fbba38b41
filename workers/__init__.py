"""Makes a kernel, proves it, times it. Only `workers.gpu` touches CUDA."""
