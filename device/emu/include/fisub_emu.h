// The threads of a kernel launch on the CPU. A block runs on one worker; its threads are fibers that switch where CUDA
// threads wait for each other. Included by cuda_runtime.h; implemented in runtime/emu.cc.
#ifndef FISUB_EMU_H_
#define FISUB_EMU_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "vector_types.h"

struct CUstream_st;
typedef CUstream_st* cudaStream_t;

// Constant for a thread; the runtime changes them when a worker switches threads.
#ifdef FISUB_EMU_RUNTIME
#define FISUB_CONST
#else
#define FISUB_CONST const
#endif
extern __thread FISUB_CONST uint3 threadIdx;
extern __thread FISUB_CONST uint3 blockIdx;
extern __thread FISUB_CONST dim3 blockDim;
extern __thread FISUB_CONST dim3 gridDim;
#undef FISUB_CONST
constexpr int warpSize = 32;

namespace fisub_emu {

constexpr size_t kMaxDynamicShared = 227 * 1024;
extern __thread char dynamic_shared_bytes[kMaxDynamicShared + 256];

// inside tells whether the caller is a thread of a kernel.
bool inside();
[[noreturn]] void fault(const char* what, const char* file, int line);

// Converts to a reference to an array of any type: what `extern __shared__ T name[]` is bound to.
struct DynamicShared {
  template <class Array>
  operator Array&() const {
    if (!inside()) fault("dynamic shared memory is used outside a kernel", __builtin_FILE(), __builtin_LINE());
    char* p = dynamic_shared_bytes;
#if defined(__SANITIZE_ADDRESS__)
    asm volatile("" : "+r"(p));  // accesses to a thread-local variable itself would go unchecked
#endif
    return *reinterpret_cast<Array*>(p);
  }
};
constexpr DynamicShared dynamic_shared{};

enum Op : int {
  kNone, kSyncThreads, kSyncThreadsCount, kSyncThreadsAnd, kSyncThreadsOr,
  kSyncWarp, kShfl, kShflUp, kShflDown, kShflXor, kBallot, kAny, kAll, kMatchAny, kMatchAll, kActiveMask,
  kReduceAdd, kReduceMin, kReduceMax, kReduceMinU, kReduceMaxU, kReduceAnd, kReduceOr, kReduceXor,
};

// collective waits for the lanes of mask to call it with the same op and mask, and returns this lane's result.
uint64_t collective(Op op, unsigned mask, uint64_t value, int arg, int width, const char* file, int line);
// barrier waits for the block's threads that have not ended.
int barrier(Op op, int predicate, const char* file, int line);
// yield lets the block's other threads run.
void yield();

struct Config {
  dim3 grid, block;
  size_t shared;
};
// run executes body once for each thread; a bad configuration only sets the runtime's last error.
void run(const char* name, const Config& config, void (*body)(void*), void* context);

template <class F>
struct Launch {
  const char* name;
  F kernel;
  Config config;

  template <class... Args>
  void operator()(Args... args) const {
    struct Call {
      const F* kernel;
      std::tuple<Args...> args;
    } call{&kernel, std::tuple<Args...>(args...)};
    run(name, config, [](void* p) { std::apply(*static_cast<Call*>(p)->kernel, static_cast<Call*>(p)->args); }, &call);
  }
};

template <class F>
Launch<F> launch(const char* name, F kernel, dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr) {
  return {name, kernel, {grid, block, shared}};
}

// The rewriter puts this call where a source has inline PTX, so that only code that is really emitted is refused.
__attribute__((error("inline PTX cannot run on the emulator (guard it with #ifndef __FISUB_EMU__ and give a C++ path)")))
void inline_ptx();

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<From>, "only the type may change");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

template <class T>
inline uint64_t word(T value) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8),
                "warp functions take values of 2, 4 or 8 bytes");
  uint64_t w = 0;
  memcpy(&w, &value, sizeof value);
  return w;
}

template <class T>
inline T unword(uint64_t w) {
  T value;
  memcpy(static_cast<void*>(&value), &w, sizeof value);
  return value;
}

template <class T> struct Identity { using type = T; };
template <class T> using Id = typename Identity<T>::type;

}  // namespace fisub_emu

// The place of the call, for the report of a deadlock.
#define FISUB_SITE const char* file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(FISUB_SITE) { fisub_emu::barrier(fisub_emu::kSyncThreads, 0, file, line); }
inline int __syncthreads_count(int p, FISUB_SITE) { return fisub_emu::barrier(fisub_emu::kSyncThreadsCount, p, file, line); }
inline int __syncthreads_and(int p, FISUB_SITE) { return fisub_emu::barrier(fisub_emu::kSyncThreadsAnd, p, file, line); }
inline int __syncthreads_or(int p, FISUB_SITE) { return fisub_emu::barrier(fisub_emu::kSyncThreadsOr, p, file, line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, FISUB_SITE) {
  fisub_emu::collective(fisub_emu::kSyncWarp, mask, 0, 0, 32, file, line);
}
inline unsigned __activemask(FISUB_SITE) {
  return static_cast<unsigned>(fisub_emu::collective(fisub_emu::kActiveMask, 0xffffffffu, 0, 0, 32, file, line));
}

template <class T>
inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, FISUB_SITE) {
  return fisub_emu::unword<T>(fisub_emu::collective(fisub_emu::kShfl, mask, fisub_emu::word(v), lane, width, file, line));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, FISUB_SITE) {
  return fisub_emu::unword<T>(
      fisub_emu::collective(fisub_emu::kShflUp, mask, fisub_emu::word(v), static_cast<int>(delta), width, file, line));
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, FISUB_SITE) {
  return fisub_emu::unword<T>(
      fisub_emu::collective(fisub_emu::kShflDown, mask, fisub_emu::word(v), static_cast<int>(delta), width, file, line));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, FISUB_SITE) {
  return fisub_emu::unword<T>(
      fisub_emu::collective(fisub_emu::kShflXor, mask, fisub_emu::word(v), lanes, width, file, line));
}

inline unsigned __ballot_sync(unsigned mask, int p, FISUB_SITE) {
  return static_cast<unsigned>(fisub_emu::collective(fisub_emu::kBallot, mask, p != 0, 0, 32, file, line));
}
inline int __any_sync(unsigned mask, int p, FISUB_SITE) {
  return static_cast<int>(fisub_emu::collective(fisub_emu::kAny, mask, p != 0, 0, 32, file, line));
}
inline int __all_sync(unsigned mask, int p, FISUB_SITE) {
  return static_cast<int>(fisub_emu::collective(fisub_emu::kAll, mask, p != 0, 0, 32, file, line));
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T v, FISUB_SITE) {
  return static_cast<unsigned>(fisub_emu::collective(fisub_emu::kMatchAny, mask, fisub_emu::word(v), 0, 32, file, line));
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T v, int* all, FISUB_SITE) {
  const auto m = static_cast<unsigned>(
      fisub_emu::collective(fisub_emu::kMatchAll, mask, fisub_emu::word(v), 0, 32, file, line));
  *all = m != 0;
  return m;
}

#define FISUB_REDUCE(name, T, op)                                                              \
  inline T name(unsigned mask, T v, FISUB_SITE) {                                              \
    return fisub_emu::unword<T>(fisub_emu::collective(op, mask, fisub_emu::word(v), 0, 32, file, line)); \
  }
FISUB_REDUCE(__reduce_add_sync, unsigned, fisub_emu::kReduceAdd)
FISUB_REDUCE(__reduce_add_sync, int, fisub_emu::kReduceAdd)
FISUB_REDUCE(__reduce_min_sync, unsigned, fisub_emu::kReduceMinU)
FISUB_REDUCE(__reduce_min_sync, int, fisub_emu::kReduceMin)
FISUB_REDUCE(__reduce_max_sync, unsigned, fisub_emu::kReduceMaxU)
FISUB_REDUCE(__reduce_max_sync, int, fisub_emu::kReduceMax)
FISUB_REDUCE(__reduce_and_sync, unsigned, fisub_emu::kReduceAnd)
FISUB_REDUCE(__reduce_or_sync, unsigned, fisub_emu::kReduceOr)
FISUB_REDUCE(__reduce_xor_sync, unsigned, fisub_emu::kReduceXor)
#undef FISUB_REDUCE

inline void __trap(FISUB_SITE) { fisub_emu::fault("__trap()", file, line); }

#endif  // FISUB_EMU_H_
