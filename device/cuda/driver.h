//go:build cuda && linux && cgo

// The CUDA driver, found at run time: a binary with gorgonia.org/cu in it starts on any machine, and looks for libcuda.so.1
// when it opens a GPU.
#ifndef FISUB_CUDA_DRIVER_H
#define FISUB_CUDA_DRIVER_H

#include <stddef.h>

// fisub_driver_open loads libcuda.so.1 and binds cu's entry points to it. It returns NULL, or dlopen's message, which the
// caller frees. Called once; until then, and where it found no driver, every entry point but cuInit answers
// CUDA_ERROR_NO_DEVICE.
char *fisub_driver_open(void);

// fisub_default_signals gives fatal signals back their default action, so that a solution's abort or bad pointer ends the
// process with that signal instead of the stacks of a Go program.
void fisub_default_signals(void);

// fisub_driver_init is the driver's own cuInit(0).
int fisub_driver_init(void);

// fisub_driver_error returns the name ("CUDA_ERROR_NO_DEVICE") and the description of a CUresult, static strings, or NULL.
const char *fisub_driver_error(int code, const char **description);

// fisub_driver_symbol returns the address of an entry point of the driver, NULL where it has none of that name.
void *fisub_driver_symbol(const char *name);

// fisub_runtime_error takes this thread's pending error of the CUDA runtime, where that is loaded: 0, or a cudaError_t with its
// name and description.
int fisub_runtime_error(const char **name, const char **description);

#endif
