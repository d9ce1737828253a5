// Device memory for what kernels hand to one another within a call. It is allocated by the first call and kept, since an
// allocation in each call would be timed with it. The contest allows that for buffers, not for results.

#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "tensor.cuh"

// A Workspace hands out pieces of one block of device memory. Their contents are what the call before left there.
class Workspace {
 public:
  // At least bytes on the device of t, which must be the current one. Only one stream may use it at a time.
  Workspace(TensorView t, size_t bytes) {
    struct Block {
      char* data = nullptr;
      size_t size = 0;
    };
    static std::mutex mutex;
    static std::map<int, Block> blocks;  // by device
    std::lock_guard<std::mutex> lock(mutex);
    Block& block = blocks[t.device().device_id];
    if (block.size < bytes) {
      CUDA_CHECK(cudaFree(block.data));  // waits for the kernels that use it
      block = Block();
      CUDA_CHECK(cudaMalloc(&block.data, bytes));
      block.size = bytes;
    }
    next_ = block.data;
    end_ = block.data + block.size;
  }

  // The bytes that n elements of T take in a workspace.
  template <typename T>
  static size_t bytes(size_t n) {
    return (n * sizeof(T) + 255) / 256 * 256;
  }

  // The next n elements of T.
  template <typename T>
  T* take(size_t n) {
    char* piece = next_;
    if (bytes<T>(n) > static_cast<size_t>(end_ - next_)) {
      TVM_FFI_THROW(InternalError) << "workspace: too small by " << bytes<T>(n) - static_cast<size_t>(end_ - next_) << " bytes";
    }
    next_ += bytes<T>(n);
    return reinterpret_cast<T*>(piece);
  }

 private:
  char* next_;
  char* end_;
};
