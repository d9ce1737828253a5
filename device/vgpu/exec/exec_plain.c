//go:build linux && cgo

#if !defined(VG_DEV)
#define VG_WORK vg_work_plain
#include "exec_body.h"
#endif
