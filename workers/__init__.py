"""Makes a kernel, proves it, times it. Only `tuner.workers.gpu` touches CUDA."""
