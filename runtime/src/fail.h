/* A failed call's sentence, of the thread. */
#ifndef TUNER_FAIL_H
#define TUNER_FAIL_H

#include <tuner/tuner.h>

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
tuner_status tuner_fail(tuner_status status, const char *format, ...);
/* The same status; what the format says comes after the sentence that is there. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
tuner_status tuner_fail_more(tuner_status status, const char *format, ...);

#endif
