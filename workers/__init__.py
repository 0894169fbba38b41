"""Makes a kernel, proves it, and times it. Only `tuner.workers.gpu` touches CUDA."""
