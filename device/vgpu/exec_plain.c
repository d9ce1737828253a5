//go:build linux && cgo

#define VG_WORK vg_work_plain
#include "exec_body.h"
