/* The driver library, except that one launch fails as if its arguments were wrong: all other calls go to libcuda, with
 * which this library is linked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static int num_succeeding = -1;

/* The launch after `num_succeeding` others fails, once. */
void fail_behind(int count) { num_succeeding = count; }

int cuLaunchKernelEx(const void *config, void *function, void **values, void **extra) {
  static int (*launch)(const void *, void *, void **, void **);
  if (launch == NULL) {
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernelEx");
    memcpy(&launch, &found, sizeof found);
  }
  if (num_succeeding >= 0 && num_succeeding-- == 0) return 1; /* CUDA_ERROR_INVALID_VALUE */
  return launch(config, function, values, extra);
}
