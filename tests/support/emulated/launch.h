// The entry point of one thread, for threads.cpp.
extern "C" void run_kernel(const void* args) { tuner_chain(*static_cast<const KernelArgs*>(args)); }
