//go:build cuda && linux && cgo

// The CUDA driver is loaded at run time: a binary with gorgonia.org/cu starts on any machine, and looks for
// libcuda.so.1 when it opens a GPU.
#ifndef FISUB_CUDA_DRIVER_H
#define FISUB_CUDA_DRIVER_H

#include <stddef.h>

// fisub_driver_open loads libcuda.so.1 and binds cu's entry points, once. It returns NULL, or dlopen's message, which
// the caller frees. Until it has succeeded, every entry point except cuInit returns CUDA_ERROR_NO_DEVICE.
char *fisub_driver_open(void);

// fisub_default_signals restores the default action of fatal signals: an abort or bad pointer in a solution then ends
// the process with that signal instead of a Go stack dump.
void fisub_default_signals(void);

// fisub_driver_init calls the driver's own cuInit(0).
int fisub_driver_init(void);

// fisub_driver_error returns the name ("CUDA_ERROR_NO_DEVICE") and description of a CUresult, static strings, or NULL.
const char *fisub_driver_error(int code, const char **description);

// fisub_driver_symbol returns the address of a driver entry point, or NULL.
void *fisub_driver_symbol(const char *name);

// fisub_runtime_error takes this thread's pending cudaError_t, with name and description. It returns 0 if there is
// none or the CUDA runtime is not loaded.
int fisub_runtime_error(const char **name, const char **description);

#endif
