// The race check. The submission is compiled with -fsanitize=thread, which calls a function before each memory access; the
// functions are these. Two accesses of one byte of shared memory by two threads of a block, one of them a write, are a
// race unless a barrier, or for threads of one warp a collective, lies between them. Atomics are exempt.
#include <stdlib.h>
#include <sys/mman.h>

#include "emu.h"

namespace fisub_emu {

namespace {

// An Access is the last one of its kind of a byte; epoch 0 means none.
struct Access {
  uint32_t epoch, warp_epoch, pc;
  int16_t thread;
};
// Of the readers, the last one and the last one of another warp are kept.
struct Cell {
  Access write, read, other_read;
};
struct Shadow {
  const char* begin;
  size_t size;
  Cell* cells;
};

std::string range(const Worker& w, const Access& a) {
  const uint3 t = w.lane[a.thread].index;
  return "thread (" + std::to_string(t.x) + "," + std::to_string(t.y) + "," + std::to_string(t.z) + ")";
}

bool races(const Worker& w, const Access& a, int thread) {
  return a.epoch == w.epoch && a.thread != thread &&
         (a.thread / 32 != thread / 32 || a.warp_epoch == w.warp[thread / 32].epoch);
}

[[noreturn]] void found(const Worker& w, const Access& before, const char* earlier, const char* later, uintptr_t pc) {
  report("Race", pc, where() + " " + later + " shared memory that " + range(w, before) + " " + earlier + " with no barrier between",
         before.pc);
}

inline void access(const void* p, size_t n, bool write, uintptr_t pc) {
  Worker* w = me;
  if (!w || !w->running) return;
  Shadow& s = *static_cast<Shadow*>(w->shadow);
  const size_t at = static_cast<size_t>(static_cast<const char*>(p) - s.begin);
  if (at >= s.size) return;
  const int t = w->current;
  const Access now{w->epoch, w->warp[t / 32].epoch, static_cast<uint32_t>(pc), static_cast<int16_t>(t)};
  for (size_t i = at; i < at + n && i < s.size; ++i) {
    Cell& c = s.cells[i];
    if (races(*w, c.write, t)) found(*w, c.write, "wrote", write ? "writes" : "reads", pc);
    if (write) {
      if (races(*w, c.read, t)) found(*w, c.read, "read", "writes", pc);
      if (races(*w, c.other_read, t)) found(*w, c.other_read, "read", "writes", pc);
      c.write = now;
    } else {
      if (c.read.epoch == now.epoch && c.read.thread / 32 != t / 32) c.other_read = c.read;
      c.read = now;
    }
  }
}

}  // namespace

void open_race_check(Worker& w) {
  auto* s = new Shadow();
  local_range(&s->begin, &s->size);
  void* p = mmap(nullptr, s->size * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) report("OutOfMemory", 0, "no memory for the race check");
  s->cells = static_cast<Cell*>(p);
  w.shadow = s;
}

}  // namespace fisub_emu

using fisub_emu::access;

#define PC (reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* p, size_t n) { access(p, n, false, PC); }
void __tsan_write_range(void* p, size_t n) { access(p, n, true, PC); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access(from, n, false, PC);
  access(to, n, true, PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  access(from, n, false, PC);
  access(to, n, true, PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  access(to, n, true, PC);
  return memset(to, value, n);
}

#define ACCESS(n)                                                       \
  void __tsan_read##n(void* p) { access(p, n, false, PC); }             \
  void __tsan_write##n(void* p) { access(p, n, true, PC); }             \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, PC); }   \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, PC); }   \
  void __tsan_read_write##n(void* p) { access(p, n, true, PC); }        \
  void __tsan_unaligned_read_write##n(void* p) { access(p, n, true, PC); } \
  void __tsan_volatile_read##n(void* p) { access(p, n, false, PC); }    \
  void __tsan_volatile_write##n(void* p) { access(p, n, true, PC); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

#define ATOMICS(bits, T)                                                                                              \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }             \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }             \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_and(volatile T* p, T v, int) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_or(volatile T* p, T v, int) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }     \
  T __tsan_atomic##bits##_fetch_xor(volatile T* p, T v, int) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_nand(volatile T* p, T v, int) { return __atomic_fetch_nand(p, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {                             \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
  }                                                                                                                   \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) {                               \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
  }                                                                                                                   \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T c, T v, int, int) {                                   \
    __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                 \
    return c;                                                                                                         \
  }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

}  // extern "C"
