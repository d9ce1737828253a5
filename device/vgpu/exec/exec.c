//go:build linux && cgo

// Two builds of the executor: for any processor, and for those with AVX2, FMA and F16C.
#include "exec.h"
#include "ops.h"

#define OP_NAME1(id, ...) #id,
static const char *const op_names[] = {OPS1(OP_NAME1) OPS2(OP_NAME1) OPS3(OP_NAME1) OPSCMP(OP_NAME1) OPSX(OP_NAME1)};
int vg_op_count(void) { return (int)(sizeof op_names / sizeof *op_names); }
const char *vg_op_name(int op) { return op_names[op]; }

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
