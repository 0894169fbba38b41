#define _POSIX_C_SOURCE 200809L
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "fail.h"

_Static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56, "the layout is that of cuda.h");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tuner_driver loaded;
static _Atomic(const tuner_driver *) driver;

static tuner_status load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return tuner_fail(TUNER_NO_DRIVER, "the NVIDIA driver cannot be loaded: %s", dlerror());
  tuner_driver found;
  void *symbol;
#define CALL(name_there, name, parameters)                                                                        \
  symbol = dlsym(library, #name_there);                                                                           \
  if (symbol == NULL) return tuner_fail(TUNER_NO_DRIVER, "%s has no " #name_there ": install a newer driver", path); \
  memcpy(&found.name, &symbol, sizeof symbol);
  TUNER_DRIVER_CALLS(CALL)
#undef CALL
#define CALL(name_there, name, parameters) \
  symbol = dlsym(library, #name_there);    \
  memcpy(&found.name, &symbol, sizeof symbol);
  TUNER_NEWER_CALLS(CALL)
#undef CALL
  const CUresult result = found.init(0);
  if (result != 0) return tuner_check(&found, result, "cuInit");
  loaded = found;
  atomic_store_explicit(&driver, &loaded, memory_order_release);
  return TUNER_OK;
}

tuner_status tuner_load_driver(const char *path) {
  pthread_mutex_lock(&lock);
  tuner_status status = TUNER_OK;
  if (atomic_load_explicit(&driver, memory_order_relaxed) == NULL) {
    status = load(path == NULL ? "libcuda.so.1" : path);
  } else if (path != NULL) {
    status = tuner_fail(TUNER_BAD_ARGUMENT, "the driver is already loaded: set its library before the first call");
  }
  pthread_mutex_unlock(&lock);
  return status;
}

const tuner_driver *tuner_driver_get(void) {
  const tuner_driver *found = atomic_load_explicit(&driver, memory_order_acquire);
  if (found != NULL || tuner_load_driver(NULL) != TUNER_OK) return found;
  return atomic_load_explicit(&driver, memory_order_acquire);
}

tuner_status tuner_check(const tuner_driver *of, CUresult result, const char *what) {
  if (result == 0) return TUNER_OK;
  const char *name = NULL;
  if (of->error_name(result, &name) != 0 || name == NULL) name = "an unknown error";
  return tuner_fail(TUNER_CUDA_ERROR, "%s failed: %s (%d)", what, name, result);
}
