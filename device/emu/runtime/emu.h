// What the parts of the runtime share.
#ifndef FISUB_EMU_RUNTIME_H_
#define FISUB_EMU_RUNTIME_H_

#define FISUB_EMU_RUNTIME
#include <cuda_runtime.h>

#include <string>

namespace fisub_emu {

constexpr int kMaxThreads = 1024, kMaxWarps = kMaxThreads / 32;

struct Stack {
  char* low;  // lowest usable byte; a guard lies below it
  size_t size;
};

// A Lane is one thread of the block. Its fields from op on hold the collective or barrier that it waits in.
struct Lane {
  void* sp;  // null until the thread starts
  Stack stack;
  uint3 index;
  Op op;
  unsigned mask;
  uint64_t value, result;
  int arg, width, line;
  const char* file;
  void* fake_stack;  // AddressSanitizer's
};

// A Warp has one bit for each lane: it may run, waits in a collective or at the barrier, has ended, exists.
struct Warp {
  unsigned ready, waiting, at_barrier, ended, exists;
  unsigned epoch;  // collectives completed so far
};

// A Worker runs one block at a time.
struct Worker {
  const char* kernel;
  void (*body)(void*);
  void* context;
  int threads, warps, current, live, arrived;
  bool running;
  int sum, any, all, barrier_result;  // of the barrier's predicates
  unsigned epoch;                     // barriers and blocks completed so far
  void* main_sp;
  void* main_fake_stack;
  const void* main_stack;
  size_t main_stack_size;
  Stack* spare;  // of threads that have ended
  int num_spare;
  Lane lane[kMaxThreads];
  Warp warp[kMaxWarps];
  void* shadow;  // the race check's
};

extern __thread Worker* me;

// report ends the process with a finding: its kind, the address of the code, and the text, to which it adds where.
[[noreturn]] void report(const char* kind, uintptr_t pc, const std::string& text, uintptr_t other_pc = 0);
std::string where();
std::string place(const Worker& w, int thread);
// The worker's own copy of the program's thread-local variables, which include all shared memory.
void local_range(const char** begin, size_t* size);

}  // namespace fisub_emu

#endif  // FISUB_EMU_RUNTIME_H_
