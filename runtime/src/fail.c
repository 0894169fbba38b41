#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[512] = "nothing has failed";

const char *tuner_error(void) { return text; }

tuner_status tuner_fail(tuner_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return status;
}

tuner_status tuner_fail_more(tuner_status status, const char *format, ...) {
  const size_t length = strlen(text);
  va_list values;
  va_start(values, format);
  vsnprintf(text + length, sizeof text - length, format, values);
  va_end(values);
  return status;
}
