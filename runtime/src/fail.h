/* Error messages of failed calls, per thread. */
#ifndef TUNER_FAIL_H
#define TUNER_FAIL_H

#include <tuner/tuner.h>

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
tuner_status tuner_fail(tuner_status status, const char *format, ...);
/* Returns the same status; appends the formatted text to the existing message. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
tuner_status tuner_fail_more(tuner_status status, const char *format, ...);

#endif
