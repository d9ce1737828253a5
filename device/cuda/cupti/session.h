//go:build cuda && linux && cgo

// CUPTI's activity records, collected. There is one CUPTI in a process: calls come from one thread at a time, but CUPTI hands
// over its buffers on a thread of its own.
#ifndef FISUB_CUPTI_SESSION_H
#define FISUB_CUPTI_SESSION_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t *data; // as activity.Decode wants it
  size_t size;
  char **names;
  size_t n_names;
  size_t lost; // records that CUPTI dropped, left incomplete, or that there was no room for
} fisub_records;

// fisub_cupti_open loads the library at path, or as the loader finds it, and asks for its version. It returns NULL, or what is
// wrong with it, which the caller frees. A library that was loaded before is given up.
char *fisub_cupti_open(const char *path, uint32_t *version);

// fisub_cupti_begin starts recording. It returns 0, or CUPTI's error and in *step the function that gave it; then nothing is
// recorded.
int fisub_cupti_begin(const char **step);

// fisub_cupti_end stops recording and returns, in r, what was recorded since begin; the work on the device must be done. r is
// valid until the next begin. It returns as begin does.
int fisub_cupti_end(fisub_records *r, const char **step);

// fisub_cupti_now is CUPTI's clock in ns, 0 where it fails.
uint64_t fisub_cupti_now(void);

// fisub_cupti_error is the name of a result, such as "CUPTI_ERROR_UNKNOWN", or NULL.
const char *fisub_cupti_error(int result);

// fisub_demangle returns the name that a C++ symbol stands for, which the caller frees, or NULL.
char *fisub_demangle(const char *symbol);

#endif
