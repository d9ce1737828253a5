// This header shadows CUDA's own cuda.h when gorgonia.org/cu v0.9.6 is compiled (scripts/env puts this folder first on
// the include path). CUDA 13 changes the signatures of five functions that cu calls. Here they keep the old ones,
// which the driver still exports under the names below.
#ifndef FISUB_COMPAT_CUDA_H
#define FISUB_COMPAT_CUDA_H

#include_next <cuda.h>

#if CUDA_VERSION >= 13000

#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

#undef cuMemAdvise
#define cuMemAdvise fisub_cuMemAdvise
CUresult CUDAAPI fisub_cuMemAdvise(CUdeviceptr address, size_t count, CUmem_advise advice, CUdevice device) __asm__("cuMemAdvise");

#undef cuMemPrefetchAsync
#define cuMemPrefetchAsync fisub_cuMemPrefetchAsync
CUresult CUDAAPI fisub_cuMemPrefetchAsync(CUdeviceptr address, size_t count, CUdevice device, CUstream stream) __asm__("cuMemPrefetchAsync");

#undef cuGraphAddDependencies
#define cuGraphAddDependencies fisub_cuGraphAddDependencies
CUresult CUDAAPI fisub_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n) __asm__("cuGraphAddDependencies");

#undef cuGraphGetEdges
#define cuGraphGetEdges fisub_cuGraphGetEdges
CUresult CUDAAPI fisub_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n) __asm__("cuGraphGetEdges");

#endif

#endif
