// The program around a submission: it reads one call from standard input, maps the tensors' memory, calls the entry
// point, runs the kernels that it launches, and writes the outcome to file descriptor 3. See emu.go for the protocol.
#include "emu.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <tvm/ffi/extra/c_env_api.h>

#ifdef FISUB_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;

namespace fisub_emu {

__thread char dynamic_shared_bytes[kMaxDynamicShared + 256] __attribute__((aligned(1024)));
__thread Worker* me;

namespace {

constexpr int kResultFD = 3;
constexpr size_t kGuard = 16 << 20, kPage = 4096;
constexpr unsigned char kCanary = 0xc5, kPoison = 0xcb;
constexpr size_t kStackSize = 512 << 10, kStackGuard = 512 << 10;  // CUDA's limit for the local memory of a thread

// A Region is memory between guards: an argument's buffer or what cudaMalloc gave.
struct Region {
  char* map;
  size_t map_size;
  char* data;
  size_t size;
  std::string name;
};

struct Range { size_t offset, size; };

std::vector<Region> regions;
std::mutex regions_mutex;
std::vector<Range> shared_variables;  // in the thread-local block
int num_workers = 1;
bool private_memory;
int allowed_shared = 48 * 1024;
cudaError_t last_error = cudaSuccess;
std::string error_kind, error_text;
std::atomic<bool> ending{false};

std::string format(const char* f, ...) {
  char buffer[1024];
  va_list args;
  va_start(args, f);
  vsnprintf(buffer, sizeof buffer, f, args);
  va_end(args);
  return buffer;
}

void write_all(int fd, const std::string& s) {
  for (size_t n = 0; n < s.size();) {
    const ssize_t w = write(fd, s.data() + n, s.size() - n);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) return;
    n += static_cast<size_t>(w);
  }
}

}  // namespace

std::string place(const Worker& w, int thread) {
  const Lane& l = w.lane[thread];
  return format("kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", w.kernel, blockIdx.x, blockIdx.y, blockIdx.z, l.index.x,
                l.index.y, l.index.z);
}

std::string where() { return me && me->running ? place(*me, me->current) : "host code"; }

void report(const char* kind, uintptr_t pc, const std::string& text, uintptr_t other_pc) {
  if (ending.exchange(true)) {
    for (;;) pause();
  }
  fflush(stdout);
  write_all(kResultFD, std::string("fault\n") + kind + "\n" + format("%zx %zx\n", static_cast<size_t>(pc), static_cast<size_t>(other_pc)) + text);
  _exit(0);
}

void fault(const char* what, const char* file, int line) {
  report("DeviceFault", 0, format("%s:%d: %s (%s)", file, line, what, where().c_str()));
}

long long nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<long long>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

bool inside() { return me && me->running; }

// ---- fibers --------------------------------------------------------------------------------------------------------

// Saves the callee-saved registers and the stack pointer into *save, and goes on where load was saved.
extern "C" void fisub_emu_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl fisub_emu_switch
.type fisub_emu_switch,@function
fisub_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fisub_emu_switch,.-fisub_emu_switch
.section .note.GNU-stack,"",@progbits
.text
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl fisub_emu_switch
.type fisub_emu_switch,%function
fisub_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size fisub_emu_switch,.-fisub_emu_switch
.section .note.GNU-stack,"",%progbits
.text
)");
#else
#error "the emulator runs on x86-64 and arm64 only"
#endif

namespace {

void thread_main();

Stack new_stack() {
  const size_t all = kStackSize + kStackGuard;
  void* p = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) report("OutOfMemory", 0, format("no memory for the stacks of a block (%s)", where().c_str()));
  mprotect(p, kStackGuard, PROT_NONE);  // best effort: a process may have only so many mappings
  return {static_cast<char*>(p) + kStackGuard, kStackSize};
}

// start_stack gives lane i a stack on which the first switch enters thread_main.
void start_stack(Worker& w, int i) {
  Lane& l = w.lane[i];
  if (w.num_spare) l.stack = w.spare[--w.num_spare];
  else l.stack = new_stack();
  // Stacks begin at different cache sets, else 256 of them evict each other.
  uintptr_t top = reinterpret_cast<uintptr_t>(l.stack.low + l.stack.size) - 64 - 64 * ((reinterpret_cast<uintptr_t>(l.stack.low) / (kStackSize + kStackGuard)) % 61);
  top &= ~static_cast<uintptr_t>(15);
  void** sp = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--sp = nullptr;  // the return address of thread_main, which does not return
  *--sp = reinterpret_cast<void*>(thread_main);
  for (int r = 0; r < 6; ++r) *--sp = nullptr;
#else
  sp -= 20;
  for (int r = 0; r < 20; ++r) sp[r] = nullptr;
  sp[11] = reinterpret_cast<void*>(thread_main);
#endif
  l.sp = sp;
}

void switch_to(Worker& w, int next, void** save, void** fake_stack) {
  Lane& l = w.lane[next];
  if (!l.sp) start_stack(w, next);
  w.current = next;
  threadIdx = l.index;
#ifdef FISUB_EMU_ASAN
  __sanitizer_start_switch_fiber(fake_stack, l.stack.low, l.stack.size);
  fisub_emu_switch(save, l.sp);
  __sanitizer_finish_switch_fiber(*fake_stack, nullptr, nullptr);
#else
  (void)fake_stack;
  fisub_emu_switch(save, l.sp);
#endif
}

// ---- barriers and collectives --------------------------------------------------------------------------------------

const char* op_name(Op op) {
  static const char* const names[] = {
      "nothing", "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "__syncwarp", "__shfl_sync",
      "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__any_sync", "__all_sync", "__match_any_sync",
      "__match_all_sync", "__activemask", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
      "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync"};
  return names[op];
}

[[noreturn]] void deadlock(Worker& w) {
  std::string text = format("deadlock in kernel %s, block (%u,%u,%u): ", w.kernel, blockIdx.x, blockIdx.y, blockIdx.z);
  auto same = [&](int a, int b) {
    const Lane &x = w.lane[a], &y = w.lane[b];
    return x.op == y.op && x.line == y.line && x.file == y.file && x.mask == y.mask;
  };
  int groups = 0, ended = 0;
  std::vector<char> done(static_cast<size_t>(w.threads));
  for (int i = 0; i < w.threads; ++i) {
    if (w.warp[i / 32].ended >> (i % 32) & 1) {
      ++ended;
      continue;
    }
    if (done[i] || groups == 6) continue;
    std::string list;
    for (int j = i; j < w.threads;) {
      auto in = [&](int k) { return k < w.threads && !(w.warp[k / 32].ended >> (k % 32) & 1) && same(i, k); };
      if (!in(j)) {
        ++j;
        continue;
      }
      int k = j;
      while (in(k)) done[k++] = 1;
      list += format(k - j > 1 ? "%s%d-%d" : "%s%d", list.empty() ? "" : ",", j, k - 1);
      j = k;
    }
    const Lane& l = w.lane[i];
    text += format("%sthreads %s wait at %s", groups++ ? "; " : "", list.c_str(), op_name(l.op));
    if (l.op >= kSyncWarp) text += format(" (mask 0x%08x)", l.mask);
    text += format(", %s:%d", l.file, l.line);
  }
  if (ended) text += format("; %d have ended", ended);
  report("DeviceFault", 0, text);
}

// release_soft lets go on the lanes that wait in one __activemask, once no other lane of the warp can run.
bool release_soft(Worker& w, Warp& p, int first) {
  unsigned soft = 0;
  const Lane* leader = nullptr;
  for (unsigned left = p.waiting; left; left &= left - 1) {
    const int i = __builtin_ctz(left);
    const Lane& l = w.lane[first + i];
    if (l.op != kActiveMask || (leader && (l.line != leader->line || l.file != leader->file))) continue;
    leader = leader ? leader : &l;
    soft |= 1u << i;
  }
  for (unsigned left = soft; left; left &= left - 1) w.lane[first + __builtin_ctz(left)].result = soft;
  p.waiting &= ~soft;
  p.ready |= soft;
  return soft;
}

// next picks the thread that runs after thread i: a later lane of its warp; else an earlier one, unless the choice must be
// fair; else one of the next warp that has one.
int next(Worker& w, int i, bool fair) {
  const int own = i / 32;
  const unsigned later = w.warp[own].ready & ~((2u << (i % 32)) - 1);
  if (later) return own * 32 + __builtin_ctz(later);
  for (int n = fair ? 1 : 0; n <= w.warps; ++n) {
    const int k = (own + n) % w.warps;
    Warp& p = w.warp[k];
    if (p.ready || (p.waiting && release_soft(w, p, k * 32))) return k * 32 + __builtin_ctz(p.ready);
  }
  return -1;
}

// wait leaves the current thread, which is not ready, until another one makes it ready.
void wait(Worker& w) {
  const int i = w.current;
  const int k = next(w, i, false);
  if (k < 0) deadlock(w);
  if (k == i) return;
  switch_to(w, k, &w.lane[i].sp, &w.lane[i].fake_stack);
}

void complete(Worker& w, Warp& p, int first, unsigned need) {
  const Lane& any_lane = w.lane[first + __builtin_ctz(need)];
  const Op op = any_lane.op;
  const unsigned full = any_lane.mask;
  uint64_t total = 0;
  auto each = [&](auto f) {
    for (unsigned left = need; left; left &= left - 1) f(__builtin_ctz(left), w.lane[first + __builtin_ctz(left)]);
  };
  switch (op) {
    case kSyncWarp: break;
    case kShfl: case kShflUp: case kShflDown: case kShflXor:
      each([&](int i, Lane& l) {
        const int segment = i & ~(l.width - 1), end = segment + l.width - 1;
        int from = i;
        if (op == kShfl) from = segment + (l.arg & (l.width - 1));
        else if (op == kShflUp) from = static_cast<unsigned>(l.arg) > static_cast<unsigned>(i - segment) ? i : i - l.arg;
        else if (op == kShflDown) from = static_cast<unsigned>(l.arg) > static_cast<unsigned>(end - i) ? i : i + l.arg;
        else from = (i ^ l.arg) > end || (i ^ l.arg) < 0 ? i : i ^ l.arg;
        // What a lane outside the mask would give is undefined.
        l.result = need >> from & 1 ? w.lane[first + from].value : 0xcbcbcbcbcbcbcbcbull;
      });
      break;
    case kBallot: case kAny: case kAll: {
      unsigned votes = 0;
      each([&](int i, Lane& l) { votes |= static_cast<unsigned>(l.value) << i; });
      const uint64_t r = op == kBallot ? votes : op == kAny ? votes != 0 : votes == need;
      each([&](int, Lane& l) { l.result = r; });
      break;
    }
    case kMatchAny:
      each([&](int, Lane& l) {
        l.result = 0;
        each([&](int j, Lane& o) { l.result |= static_cast<uint64_t>(o.value == l.value) << j; });
      });
      break;
    case kMatchAll: {
      bool equal = true;
      each([&](int, Lane& l) { equal = equal && l.value == any_lane.value; });
      each([&](int, Lane& l) { l.result = equal ? full & need : 0; });
      break;
    }
    default:
      total = any_lane.value;
      for (unsigned left = need & (need - 1); left; left &= left - 1) {
        const uint64_t v = w.lane[first + __builtin_ctz(left)].value;
        const auto a = static_cast<uint32_t>(total), b = static_cast<uint32_t>(v);
        const auto x = static_cast<int32_t>(a), y = static_cast<int32_t>(b);
        switch (op) {
          case kReduceAdd: total = a + b; break;
          case kReduceMin: total = static_cast<uint32_t>(y < x ? y : x); break;
          case kReduceMax: total = static_cast<uint32_t>(x < y ? y : x); break;
          case kReduceMinU: total = b < a ? b : a; break;
          case kReduceMaxU: total = a < b ? b : a; break;
          case kReduceAnd: total = a & b; break;
          case kReduceOr: total = a | b; break;
          default: total = a ^ b; break;
        }
      }
      each([&](int, Lane& l) { l.result = total; });
  }
  p.waiting &= ~need;
  p.ready |= need;
  ++p.epoch;
}

// try_complete completes the collective that lane i of the warp waits in if all lanes of its mask have come.
bool try_complete(Worker& w, Warp& p, int first, int i) {
  const Lane& l = w.lane[first + i];
  const unsigned need = l.mask & p.exists & ~p.ended;
  if (l.op == kActiveMask || (p.waiting & need) != need) return false;
  for (unsigned left = need; left; left &= left - 1) {
    const Lane& o = w.lane[first + __builtin_ctz(left)];
    if (o.op != l.op || o.mask != l.mask) return false;
  }
  complete(w, p, first, need);
  return true;
}

void release_barrier(Worker& w) {
  for (int k = 0; k < w.warps; ++k) {
    w.warp[k].ready |= w.warp[k].at_barrier;
    w.warp[k].at_barrier = 0;
  }
  w.barrier_result = w.sum | w.any << 16 | w.all << 17;
  w.arrived = w.sum = w.any = 0;
  w.all = 1;
  ++w.epoch;
}

// thread_main runs the current thread to its end, then each next one that has not started yet, on the same stack.
void thread_main() {
#ifdef FISUB_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  Worker& w = *me;
  for (;;) {
    w.body(w.context);
    const int i = w.current;
    Warp& p = w.warp[i / 32];
    const unsigned bit = 1u << (i % 32);
    p.ready &= ~bit;
    p.ended |= bit;
    --w.live;
    for (unsigned left = p.waiting; left; left &= left - 1) {
      const int k = __builtin_ctz(left);
      if (p.waiting >> k & 1) try_complete(w, p, i & ~31, k);
    }
    if (w.live && w.arrived == w.live) release_barrier(w);
    const int k = w.live ? next(w, i, false) : -1;
    if (w.live && k < 0) deadlock(w);
    if (k >= 0 && !w.lane[k].sp) {
      w.lane[k].stack = w.lane[i].stack;
      w.current = k;
      threadIdx = w.lane[k].index;
      continue;
    }
    w.spare[w.num_spare++] = w.lane[i].stack;
    void* to = w.main_sp;
    if (k >= 0) {
      w.current = k;
      threadIdx = w.lane[k].index;
      to = w.lane[k].sp;
    }
#ifdef FISUB_EMU_ASAN
    if (k >= 0) __sanitizer_start_switch_fiber(nullptr, w.lane[k].stack.low, w.lane[k].stack.size);
    else __sanitizer_start_switch_fiber(nullptr, w.main_stack, w.main_stack_size);
#endif
    void* ended;
    fisub_emu_switch(&ended, to);
  }
}

}  // namespace

uint64_t collective(Op op, unsigned mask, uint64_t value, int arg, int width, const char* file, int line) {
  if (!inside()) fault(format("%s outside a kernel", op_name(op)).c_str(), file, line);
  Worker& w = *me;
  const int i = w.current;
  Warp& p = w.warp[i / 32];
  const unsigned bit = 1u << (i % 32);
  if (!(mask & bit)) fault(format("%s: the mask 0x%08x lacks the calling lane %d", op_name(op), mask, i % 32).c_str(), file, line);
  if (width < 1 || width > 32 || (width & (width - 1))) {
    fault(format("%s: width %d is not a power of two up to 32", op_name(op), width).c_str(), file, line);
  }
  Lane& l = w.lane[i];
  l.op = op, l.mask = mask, l.value = value, l.arg = arg, l.width = width, l.file = file, l.line = line;
  p.waiting |= bit;
  p.ready &= ~bit;
  if (!try_complete(w, p, i & ~31, i % 32)) wait(w);
  return l.result;
}

int barrier(Op op, int predicate, const char* file, int line) {
  if (!inside()) fault(format("%s outside a kernel", op_name(op)).c_str(), file, line);
  Worker& w = *me;
  const int i = w.current;
  Warp& p = w.warp[i / 32];
  const unsigned bit = 1u << (i % 32);
  Lane& l = w.lane[i];
  l.op = op, l.mask = 0, l.file = file, l.line = line;
  w.sum += predicate != 0;
  w.any |= predicate != 0;
  w.all &= predicate != 0;
  p.ready &= ~bit;
  p.at_barrier |= bit;
  if (++w.arrived == w.live) release_barrier(w);
  else wait(w);
  switch (op) {
    case kSyncThreadsCount: return w.barrier_result & 0xffff;
    case kSyncThreadsOr: return w.barrier_result >> 16 & 1;
    case kSyncThreadsAnd: return w.barrier_result >> 17 & 1;
    default: return 0;
  }
}

void yield() {
  if (!inside()) return;
  Worker& w = *me;
  const int i = w.current, k = next(w, i, true);
  if (k != i) switch_to(w, k, &w.lane[i].sp, &w.lane[i].fake_stack);
}

// ---- blocks and launches -------------------------------------------------------------------------------------------

void local_range(const char** begin, size_t* size) {
  std::pair<const char*, size_t> found{nullptr, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* p) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type == PT_TLS) {
            *static_cast<std::pair<const char*, size_t>*>(p) = {static_cast<const char*>(info->dlpi_tls_data), info->dlpi_phdr[i].p_memsz};
          }
        }
        return 1;  // the program itself comes first
      },
      &found);
  *begin = found.first;
  *size = found.second;
}

#ifdef FISUB_EMU_RACE
void open_race_check(Worker& w);
#endif

namespace {

struct Job {
  const char* kernel;
  Config config;
  void (*body)(void*);
  void* context;
  uint64_t blocks;
  std::atomic<uint64_t> next_block{0};
};

// Never destroyed: a submission may call exit while the workers wait.
std::mutex& pool_mutex = *new std::mutex;
std::condition_variable &pool_start = *new std::condition_variable, &pool_done = *new std::condition_variable;
Job* pool_job;
uint64_t pool_generation;
int pool_threads, pool_busy;

void run_block(Worker& w, const Job& job, uint64_t block, char* locals) {
  const dim3 grid = job.config.grid;
  blockIdx = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
              static_cast<unsigned>(block / grid.x / grid.y)};
  for (const Range& r : shared_variables) memset(locals + r.offset, kPoison, r.size);
  const size_t shared = job.config.shared;
#ifdef FISUB_EMU_ASAN
  __asan_unpoison_memory_region(dynamic_shared_bytes, sizeof dynamic_shared_bytes);
  memset(dynamic_shared_bytes, kPoison, shared);
  __asan_poison_memory_region(dynamic_shared_bytes + shared, sizeof dynamic_shared_bytes - shared);
#else
  memset(dynamic_shared_bytes, kPoison, shared);
  memset(dynamic_shared_bytes + shared, kCanary, 256);
#endif
  for (int i = 0; i < w.threads; ++i) w.lane[i].sp = nullptr, w.lane[i].op = kNone;
  for (int k = 0; k < w.warps; ++k) {
    const int n = w.threads - 32 * k;
    const unsigned all = n >= 32 ? 0xffffffffu : (1u << n) - 1;
    w.warp[k] = {all, 0, 0, 0, all, w.warp[k].epoch};
  }
  w.live = w.threads;
  w.arrived = w.sum = w.any = 0;
  w.all = 1;
  ++w.epoch;
  w.running = true;
  switch_to(w, 0, &w.main_sp, &w.main_fake_stack);
  w.running = false;
#ifndef FISUB_EMU_ASAN
  for (int n = 256; n > 0; --n) {
    if (static_cast<unsigned char>(dynamic_shared_bytes[shared + n - 1]) != kCanary) {
      report("DeviceFault", 0, format("kernel %s, block (%u,%u,%u): wrote up to %d bytes past the end of its %zu bytes of dynamic shared memory",
                                      w.kernel, blockIdx.x, blockIdx.y, blockIdx.z, n, shared));
    }
  }
#endif
}

void run_blocks(Worker& w, Job& job, char* locals) {
  const dim3 b = job.config.block;
  blockDim = b;
  gridDim = job.config.grid;
  w.kernel = job.kernel;
  w.body = job.body;
  w.context = job.context;
  w.threads = static_cast<int>(b.x * b.y * b.z);
  w.warps = (w.threads + 31) / 32;
  for (int i = 0; i < w.threads; ++i) {
    const unsigned t = static_cast<unsigned>(i);
    w.lane[i].index = {t % b.x, t / b.x % b.y, t / b.x / b.y};
  }
  for (uint64_t n; (n = job.next_block.fetch_add(1)) < job.blocks;) run_block(w, job, n, locals);
}

void use_signal_stack() {
  stack_t s{};
  s.ss_size = 64 << 10;
  s.ss_sp = malloc(s.ss_size);
  sigaltstack(&s, nullptr);
}

void* work(void*) {
  use_signal_stack();
  Worker& w = *new Worker();
  w.spare = new Stack[kMaxThreads];
  me = &w;
  pthread_attr_t attributes;
  void* low;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &w.main_stack_size);
  w.main_stack = low;
  pthread_attr_destroy(&attributes);
  const char* locals;
  size_t size;
  local_range(&locals, &size);
#ifdef FISUB_EMU_RACE
  open_race_check(w);
#endif
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(pool_mutex);
  for (;;) {
    pool_start.wait(lock, [&] { return pool_generation != seen; });
    seen = pool_generation;
    Job* job = pool_job;
    lock.unlock();
    run_blocks(w, *job, const_cast<char*>(locals));
    lock.lock();
    if (--pool_busy == 0) pool_done.notify_one();
  }
}

void refuse(const char* name, cudaError_t error, const std::string& why) {
  last_error = error;
  fflush(stdout);
  write_all(2, format("kernel %s was not launched: %s\n", name, why.c_str()));
}

}  // namespace

void run(const char* name, const Config& c, void (*body)(void*), void* context) {
  if (inside()) report("DeviceFault", 0, format("a kernel cannot launch kernels on the emulator (%s)", where().c_str()));
  const uint64_t threads = static_cast<uint64_t>(c.block.x) * c.block.y * c.block.z;
  if (c.block.x < 1 || c.block.y < 1 || c.block.z < 1 || c.block.x > 1024 || c.block.y > 1024 || c.block.z > 64 || threads > kMaxThreads) {
    // As CUDA 13.0 does on an H200; releases before it answered cudaErrorInvalidConfiguration.
    return refuse(name, cudaErrorInvalidValue, format("block (%u,%u,%u) has not 1 to 1024 threads", c.block.x, c.block.y, c.block.z));
  }
  if (c.grid.x < 1 || c.grid.y < 1 || c.grid.z < 1 || c.grid.x > 0x7fffffffu || c.grid.y > 65535 || c.grid.z > 65535) {
    return refuse(name, cudaErrorInvalidConfiguration, format("grid (%u,%u,%u) is out of range", c.grid.x, c.grid.y, c.grid.z));
  }
  if (c.shared > static_cast<size_t>(allowed_shared)) {
    return refuse(name, cudaErrorInvalidValue,
                  format("%zu bytes of dynamic shared memory are more than the %d that cudaFuncSetAttribute allowed", c.shared, allowed_shared));
  }
  Job job;
  job.kernel = name, job.config = c, job.body = body, job.context = context;
  job.blocks = static_cast<uint64_t>(c.grid.x) * c.grid.y * c.grid.z;
  std::unique_lock<std::mutex> lock(pool_mutex);
  if (pool_threads == 0) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    for (; pool_threads < num_workers; ++pool_threads) {
      pthread_t t;
      if (pthread_create(&t, &attributes, work, nullptr) != 0) break;
    }
    pthread_attr_destroy(&attributes);
    if (pool_threads == 0) report("OutOfMemory", 0, "no thread could be started");
  }
  pool_job = &job;
  pool_busy = pool_threads;
  ++pool_generation;
  pool_start.notify_all();
  pool_done.wait(lock, [] { return pool_busy == 0; });
}

// ---- memory --------------------------------------------------------------------------------------------------------

namespace {

// map_region maps map_size bytes between guards: of the file fd, or fresh memory where fd is -1.
char* map_region(size_t map_size, int fd) {
  char* p = static_cast<char*>(mmap(nullptr, map_size + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (p == MAP_FAILED) return nullptr;
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : private_memory ? MAP_PRIVATE : MAP_SHARED;
  if (mmap(p + kGuard, map_size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(p, map_size + 2 * kGuard);
    return nullptr;
  }
  return p + kGuard;
}

// add_region guards the bytes of the mapping around the data with canaries.
void add_region(Region r) {
  char* end = r.map + r.map_size;
  memset(r.map, kCanary, static_cast<size_t>(r.data - r.map));
  memset(r.data + r.size, kCanary, static_cast<size_t>(end - r.data) - r.size);
#ifdef FISUB_EMU_ASAN
  __asan_poison_memory_region(r.map, static_cast<size_t>(r.data - r.map));
  __asan_poison_memory_region(r.data + r.size, static_cast<size_t>(end - r.data) - r.size);
#endif
  std::lock_guard<std::mutex> lock(regions_mutex);
  regions.push_back(std::move(r));
}

void check_region(const Region& r) {
#ifdef FISUB_EMU_ASAN
  __asan_unpoison_memory_region(r.map, r.map_size);
#endif
  const char* end = r.map + r.map_size;
  for (const char* p = end; p > r.data + r.size; --p) {
    if (static_cast<unsigned char>(p[-1]) != kCanary) {
      report("DeviceFault", 0, format("a kernel wrote up to %zd bytes past the end of %s", p - (r.data + r.size), r.name.c_str()));
    }
  }
  for (const char* p = r.map; p < r.data; ++p) {
    if (static_cast<unsigned char>(*p) != kCanary) {
      report("DeviceFault", 0, format("a kernel wrote up to %zd bytes before the start of %s", r.data - p, r.name.c_str()));
    }
  }
}

// near_region says where an address lies relative to the nearest region.
std::string near_region(const char* a) {
  for (const Region& r : regions) {
    if (a < r.map - kGuard || a >= r.map + r.map_size + kGuard) continue;
    if (a == r.data + r.size) return "just past the end of " + r.name;
    if (a < r.data) return format("%zd bytes before the start of %s", r.data - a, r.name.c_str());
    if (a >= r.data + r.size) return format("%zd bytes past the end of %s", a - (r.data + r.size), r.name.c_str());
    return format("%zd bytes into %s", a - r.data, r.name.c_str());
  }
  if (reinterpret_cast<uintptr_t>(a) < kPage) return "a null pointer";
  return format("address %p, which is in no argument", static_cast<const void*>(a));
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const ucontext_t* c = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
  const auto pc = static_cast<uintptr_t>(c->uc_mcontext.gregs[REG_RIP]);
  const bool writing = c->uc_mcontext.gregs[REG_ERR] & 2;
#else
  const auto pc = static_cast<uintptr_t>(c->uc_mcontext.pc);
  const bool writing = false;
#endif
  const char* address = static_cast<const char*>(info->si_addr);
  const std::string at = where();
  if (signal == SIGFPE) report("DeviceFault", pc, at + ": integer division by zero");
  if (signal == SIGILL) report("DeviceFault", pc, at + ": invalid instruction");
  if (inside()) {
    const Stack s = me->lane[me->current].stack;
    if (address >= s.low - kStackGuard && address < s.low) {
      report("DeviceFault", pc, at + format(": stack overflow; a thread has %zu KiB for local variables", kStackSize >> 10));
    }
  }
  if (signal == SIGSEGV && info->si_code == SI_KERNEL) report("DeviceFault", pc, at + ": misaligned or invalid address");
#if defined(__x86_64__)
  const char* const access = writing ? "invalid write, " : "invalid read, ";
#else
  const char* const access = "invalid access, ";
  (void)writing;
#endif
  report("DeviceFault", pc, at + ": " + access + near_region(address));
}

}  // namespace

cudaError_t allocate(void** p, size_t bytes) {
  const size_t used = (bytes + 255) / 256 * 256, map_size = (used + kPage) / kPage * kPage;
  *p = nullptr;
  if (bytes > (1ull << 40)) return last_error = cudaErrorMemoryAllocation;
  char* map = map_region(map_size, -1);
  if (!map) return last_error = cudaErrorMemoryAllocation;
  char* data = map + map_size - used;
  memset(data, kPoison, bytes);
  add_region({map, map_size, data, bytes, format("the %zu bytes of a cudaMalloc", bytes)});
  *p = data;
  return cudaSuccess;
}

cudaError_t allow_shared(cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > kMaxDynamicShared) return last_error = cudaErrorInvalidValue;
  if (value > allowed_shared) allowed_shared = value;
  return cudaSuccess;
}

}  // namespace fisub_emu

using namespace fisub_emu;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "unknown error";
  }
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return last_error = cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    default: return last_error = cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return last_error = cudaErrorInvalidDevice;
  static const cudaDeviceProp emulated = {"fisub emulator", 16ull << 30, 48 << 10, 227 << 10, 228 << 10, 32, 1024, 2048, 132, 9, 0, 50 << 20};
  *p = emulated; // in two steps for g++ 10
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  std::lock_guard<std::mutex> lock(regions_mutex);
  for (size_t i = 0; i < regions.size(); ++i) {
    Region& r = regions[i];
    if (r.data != p || r.name.find("cudaMalloc") == std::string::npos) continue;
    check_region(r);
    munmap(r.map - kGuard, r.map_size + 2 * kGuard);
    regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
    return cudaSuccess;
  }
  return last_error = cudaErrorInvalidValue;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return memmove(to, from, bytes), cudaSuccess; }
cudaError_t cudaMemset(void* p, int value, size_t bytes) { return memset(p, value, bytes), cudaSuccess; }

int TVMFFIObjectIncRef(TVMFFIObjectHandle obj) {
  __atomic_fetch_add(&static_cast<TVMFFIObject*>(obj)->combined_ref_count, 1, __ATOMIC_RELAXED);
  return 0;
}

int TVMFFIObjectDecRef(TVMFFIObjectHandle obj) {
  auto* o = static_cast<TVMFFIObject*>(obj);
  if (__atomic_sub_fetch(&o->combined_ref_count, 1, __ATOMIC_ACQ_REL) == 0 && o->deleter) o->deleter(o, 3);
  return 0;
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  error_kind = kind;
  error_text = message;
}

// Streams mean nothing here; like a real one, this is not null.
TVMFFIStreamHandle TVMFFIEnvGetStream(int32_t device_type, int32_t) { return device_type == kDLCUDA ? reinterpret_cast<void*>(1) : nullptr; }
int TVMFFIEnvSetStream(int32_t, int32_t, TVMFFIStreamHandle, TVMFFIStreamHandle* previous) {
  if (previous) *previous = reinterpret_cast<void*>(1);
  return 0;
}
int TVMFFIEnvCheckSignals() { return 0; }

int TVMFFIEnvTensorAlloc(DLTensor* prototype, TVMFFIObjectHandle* out) {
  const size_t n = static_cast<size_t>(prototype->ndim);
  auto* o = static_cast<TVMFFIObject*>(calloc(1, sizeof(TVMFFIObject) + sizeof(DLTensor) + 2 * n * sizeof(int64_t)));
  if (!o) return -1;
  *o = {1, kTVMFFITensor, 0, [](void* self, int) {
          cudaFree(TVMFFITensorGetDLTensorPtr(self)->data);
          free(self);
        }};
  DLTensor* t = TVMFFITensorGetDLTensorPtr(o);
  *t = *prototype;
  t->shape = reinterpret_cast<int64_t*>(t + 1);
  t->strides = t->shape + n;
  t->byte_offset = 0;
  uint64_t elements = 1;
  for (size_t i = n; i-- > 0;) {
    t->shape[i] = prototype->shape[i];
    t->strides[i] = static_cast<int64_t>(elements);
    elements *= static_cast<uint64_t>(t->shape[i]);
  }
  if (allocate(&t->data, (elements * t->dtype.bits * t->dtype.lanes + 7) / 8) != cudaSuccess) {
    free(o);
    return -1;
  }
  *out = o;
  return 0;
}

void __assert_fail(const char* expression, const char* file, unsigned line, const char*) noexcept {
  report("DeviceFault", 0, std::string(file) + ":" + std::to_string(line) + ": Assertion `" + expression + "` failed (" + where() + ")");
}

#ifdef FISUB_EMU_ASAN
// Adds to AddressSanitizer's report which thread it was, and which argument.
static void on_sanitizer_death() {
  if (!inside() || !__asan_report_present()) return;
  const char* a = static_cast<const char*>(__asan_get_report_address());
  const bool shared = a >= dynamic_shared_bytes && a < dynamic_shared_bytes + sizeof dynamic_shared_bytes;
  write_all(2, where() + (__asan_get_report_access_type() ? ": invalid write, " : ": invalid read, ") +
                   (shared ? "past the end of dynamic shared memory" : near_region(a)) + "\n");
}
#endif

}  // extern "C"

// ---- one call ------------------------------------------------------------------------------------------------------

namespace {

// A Reader takes the call's description apart; it is written by the parent process for this very program.
class Reader {
 public:
  explicit Reader(std::string data) : data_(std::move(data)) {}
  template <class T> T get() {
    T v;
    need(sizeof v);
    memcpy(&v, data_.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  std::string text() {
    const auto n = get<uint32_t>();
    need(n);
    at_ += n;
    return data_.substr(at_ - n, n);
  }

 private:
  void need(size_t n) {
    if (n > data_.size() - at_) report("ProtocolError", 0, "the call's description is too short");
  }
  std::string data_;
  size_t at_ = 0;
};

std::string read_all(int fd) {
  std::string s;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno != EINTR) report("ProtocolError", 0, "reading the call's description");
    if (n > 0) s.append(buffer, static_cast<size_t>(n));
  }
  return s;
}

struct TensorObject {
  TVMFFIObject header;
  DLTensor tensor;
  std::vector<int64_t> shape, strides;
};

}  // namespace

int main() {
  use_signal_stack();
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(s, &action, nullptr);
#ifdef FISUB_EMU_ASAN
  __sanitizer_set_death_callback(on_sanitizer_death);
#endif

  Reader in(read_all(0));
  const std::string entry = in.text();
  num_workers = static_cast<int>(in.get<uint32_t>());
  private_memory = in.get<uint32_t>() != 0;
  for (auto n = in.get<uint32_t>(); n > 0; --n) {
    const auto offset = in.get<uint64_t>(), size = in.get<uint64_t>();
    shared_variables.push_back({offset, size});
  }
  std::vector<char*> data;
  const auto buffers = in.get<uint32_t>();
  for (uint32_t i = 0; i < buffers; ++i) {
    const auto map_size = in.get<uint64_t>(), offset = in.get<uint64_t>(), size = in.get<uint64_t>();
    const std::string name = in.text();
    const int fd = kResultFD + 1 + static_cast<int>(i);
    char* map = map_region(map_size, fd);
    if (!map) report("OutOfMemory", 0, "no memory for " + name);
    close(fd);
    add_region({map, map_size, map + offset, size, name});
    data.push_back(map + offset);
  }
  const auto n = in.get<uint32_t>();
  std::vector<TVMFFIAny> args(n);
  std::vector<std::unique_ptr<TensorObject>> tensors;
  for (TVMFFIAny& a : args) {
    a.type_index = static_cast<int32_t>(in.get<uint32_t>());
    if (a.type_index != kTVMFFITensor) {
      a.v_int64 = in.get<int64_t>();
      continue;
    }
    auto t = std::make_unique<TensorObject>();
    t->header = {1, kTVMFFITensor, 0, nullptr};
    char* const start = data.at(in.get<uint32_t>());
    t->tensor.data = start + in.get<uint64_t>();
    t->tensor.device = {kDLCUDA, 0};
    t->tensor.dtype = in.get<DLDataType>();
    t->tensor.ndim = static_cast<int32_t>(in.get<uint32_t>());
    t->shape.resize(static_cast<size_t>(t->tensor.ndim) + 1);
    t->strides.resize(t->shape.size());
    for (int i = 0; i < t->tensor.ndim; ++i) t->shape[static_cast<size_t>(i)] = in.get<int64_t>();
    int64_t stride = 1;
    for (int i = t->tensor.ndim - 1; i >= 0; --i) {
      t->strides[static_cast<size_t>(i)] = stride;
      stride *= t->shape[static_cast<size_t>(i)] ? t->shape[static_cast<size_t>(i)] : 1;
    }
    t->tensor.shape = t->shape.data();
    t->tensor.strides = t->strides.data();
    static_assert(offsetof(TensorObject, tensor) == sizeof(TVMFFIObject), "the tensor follows the header");
    a.v_obj = &t->header;
    tensors.push_back(std::move(t));
  }

  const auto function = reinterpret_cast<TVMFFISafeCallType>(dlsym(RTLD_DEFAULT, ("__tvm_ffi_" + entry).c_str()));
  if (!function) report("ProtocolError", 0, "entry point " + entry + " not found");
  TVMFFIAny result{};
  const int rc = function(nullptr, args.data(), static_cast<int32_t>(n), &result);
  fflush(stdout);
  if (rc == 0 && result.type_index >= kTVMFFIObject && result.v_obj) TVMFFIObjectDecRef(result.v_obj);
  {
    std::lock_guard<std::mutex> lock(regions_mutex);
    for (const Region& r : regions) check_region(r);
  }
  write_all(kResultFD, rc == 0 ? "ok\n\n0 0\n" : "error\n" + error_kind + "\n0 0\n" + error_text);
  _exit(0);
}
