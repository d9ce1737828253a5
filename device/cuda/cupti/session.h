//go:build cuda && linux && cgo

// Collects CUPTI's activity records. A process has one CUPTI. These functions must be called from one thread at a
// time, but CUPTI delivers its buffers on its own thread.
#ifndef FISUB_CUPTI_SESSION_H
#define FISUB_CUPTI_SESSION_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t *data; // in the format of activity.Decode
  size_t size;
  char **names;
  size_t n_names;
  size_t lost; // records that CUPTI dropped or left incomplete, or that did not fit
} fisub_records;

// fisub_cupti_open loads the library at path, or as the loader finds it, and returns its version in *version. It
// returns NULL, or an error message, which the caller frees. A library loaded before is no longer used.
char *fisub_cupti_open(const char *path, uint32_t *version);

// fisub_cupti_begin starts recording and returns 0. On failure it returns CUPTI's error, with the name of the failed
// function in *step, and nothing is recorded.
int fisub_cupti_begin(const char **step);

// fisub_cupti_end stops recording and returns in *r the records since begin; all work on the device must be done. *r
// is valid until the next begin. The result is as in fisub_cupti_begin.
int fisub_cupti_end(fisub_records *r, const char **step);

// fisub_cupti_now returns CUPTI's clock in ns, or 0 on failure.
uint64_t fisub_cupti_now(void);

// fisub_cupti_error returns the name of a result, such as "CUPTI_ERROR_UNKNOWN", or NULL.
const char *fisub_cupti_error(int result);

// fisub_demangle returns the demangled C++ symbol, which the caller frees, or NULL.
char *fisub_demangle(const char *symbol);

#endif
