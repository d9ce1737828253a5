//go:build cuda && linux && cgo

// Collects CUPTI's activity records; a process has one CUPTI. Call these functions from one thread at a time. CUPTI
// delivers its buffers on its own thread.
#ifndef FISUB_CUPTI_SESSION_H
#define FISUB_CUPTI_SESSION_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t *data; // in the format of activity.Decode
  size_t size;
  char **names;
  size_t n_names;
  size_t lost; // dropped or left incomplete by CUPTI, or without room
} fisub_records;

// fisub_cupti_open loads the library at path, or as the loader finds it, instead of an earlier one, and sets *version.
// It returns NULL, or an error message, which the caller frees.
char *fisub_cupti_open(const char *path, uint32_t *version);

// fisub_cupti_begin starts recording and returns 0, or else CUPTI's error, with the failed function in *step.
int fisub_cupti_begin(const char **step);

// fisub_cupti_end stops recording and sets *r to the records since begin, valid until the next begin. All work on the
// device must be done. It returns like fisub_cupti_begin.
int fisub_cupti_end(fisub_records *r, const char **step);

// fisub_cupti_now returns CUPTI's clock in ns, or 0 on failure.
uint64_t fisub_cupti_now(void);

// fisub_cupti_thread returns the calling thread's number in CUPTI's records.
uint32_t fisub_cupti_thread(void);

// fisub_cupti_error returns a result's name, such as "CUPTI_ERROR_UNKNOWN", or NULL.
const char *fisub_cupti_error(int result);

// fisub_demangle returns the demangled C++ symbol, which the caller frees, or NULL.
char *fisub_demangle(const char *symbol);

#endif
