// Between the runtime library in host/ and Go.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "host/hooks.h"

// vg_install loads the libraries of the runtime and the driver and gives it Go's functions; the result is an error's text, to be freed, or NULL.
char *vg_install(const char *path, const char *driver);

// As tvm-ffi wants them.
int vg_alloc(uint64_t *address, size_t size);
int vg_release(uint64_t address);
