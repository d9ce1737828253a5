//go:build linux && cgo

// The executor is built twice: for any processor, and for processors with AVX2, FMA and F16C.
#include "exec.h"

void vg_work_plain(const vg_launch *l, vg_state *s);
void vg_work_wide(const vg_launch *l, vg_state *s);

void vg_work(const vg_launch *l, vg_state *s, int wide) {
#if defined(__x86_64__)
  if (wide) {
    vg_work_wide(l, s);
    return;
  }
#endif
#if !defined(VG_DEV)
  vg_work_plain(l, s);
#endif
}
