//go:build linux && cgo

// The executor is built twice: for any processor, and for processors with AVX2, FMA and F16C.
#include "exec.h"

void vg_work_plain(vg_launch *l);
void vg_work_wide(vg_launch *l);

void vg_work(vg_launch *l, int wide) {
#if defined(__x86_64__)
  if (wide) {
    vg_work_wide(l);
    return;
  }
#endif
#if !defined(VG_DEV)
  vg_work_plain(l);
#endif
}
