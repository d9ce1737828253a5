// What sources of CUDA 12 need, compiled with its headers (fisub nvcc --cuda 12.9): functions that CUDA 13 has removed,
// and the former types of others. Part of runtime.c.

// The fields of cudaDeviceProp in CUDA 12.9, except the last one: those that CUDA 13 has kept, and those that are gone.
#define PROPERTIES(KEPT, GONE) \
  KEPT(char, name, [256]) KEPT(cudaUUID_t, uuid, ) KEPT(char, luid, [8]) KEPT(unsigned, luidDeviceNodeMask, ) \
  KEPT(size_t, totalGlobalMem, ) KEPT(size_t, sharedMemPerBlock, ) KEPT(int, regsPerBlock, ) KEPT(int, warpSize, ) \
  KEPT(size_t, memPitch, ) KEPT(int, maxThreadsPerBlock, ) KEPT(int, maxThreadsDim, [3]) \
  KEPT(int, maxGridSize, [3]) GONE(int, clockRate, ) KEPT(size_t, totalConstMem, ) KEPT(int, major, ) \
  KEPT(int, minor, ) KEPT(size_t, textureAlignment, ) KEPT(size_t, texturePitchAlignment, ) \
  GONE(int, deviceOverlap, ) KEPT(int, multiProcessorCount, ) GONE(int, kernelExecTimeoutEnabled, ) \
  KEPT(int, integrated, ) KEPT(int, canMapHostMemory, ) GONE(int, computeMode, ) KEPT(int, maxTexture1D, ) \
  KEPT(int, maxTexture1DMipmap, ) GONE(int, maxTexture1DLinear, ) KEPT(int, maxTexture2D, [2]) \
  KEPT(int, maxTexture2DMipmap, [2]) KEPT(int, maxTexture2DLinear, [3]) KEPT(int, maxTexture2DGather, [2]) \
  KEPT(int, maxTexture3D, [3]) KEPT(int, maxTexture3DAlt, [3]) KEPT(int, maxTextureCubemap, ) \
  KEPT(int, maxTexture1DLayered, [2]) KEPT(int, maxTexture2DLayered, [3]) KEPT(int, maxTextureCubemapLayered, [2]) \
  KEPT(int, maxSurface1D, ) KEPT(int, maxSurface2D, [2]) KEPT(int, maxSurface3D, [3]) \
  KEPT(int, maxSurface1DLayered, [2]) KEPT(int, maxSurface2DLayered, [3]) KEPT(int, maxSurfaceCubemap, ) \
  KEPT(int, maxSurfaceCubemapLayered, [2]) KEPT(size_t, surfaceAlignment, ) KEPT(int, concurrentKernels, ) \
  KEPT(int, ECCEnabled, ) KEPT(int, pciBusID, ) KEPT(int, pciDeviceID, ) KEPT(int, pciDomainID, ) \
  KEPT(int, tccDriver, ) KEPT(int, asyncEngineCount, ) KEPT(int, unifiedAddressing, ) GONE(int, memoryClockRate, ) \
  KEPT(int, memoryBusWidth, ) KEPT(int, l2CacheSize, ) KEPT(int, persistingL2CacheMaxSize, ) \
  KEPT(int, maxThreadsPerMultiProcessor, ) KEPT(int, streamPrioritiesSupported, ) \
  KEPT(int, globalL1CacheSupported, ) KEPT(int, localL1CacheSupported, ) KEPT(size_t, sharedMemPerMultiprocessor, ) \
  KEPT(int, regsPerMultiprocessor, ) KEPT(int, managedMemory, ) KEPT(int, isMultiGpuBoard, ) \
  KEPT(int, multiGpuBoardGroupID, ) KEPT(int, hostNativeAtomicSupported, ) \
  GONE(int, singleToDoublePrecisionPerfRatio, ) KEPT(int, pageableMemoryAccess, ) \
  KEPT(int, concurrentManagedAccess, ) KEPT(int, computePreemptionSupported, ) \
  KEPT(int, canUseHostPointerForRegisteredMem, ) KEPT(int, cooperativeLaunch, ) \
  GONE(int, cooperativeMultiDeviceLaunch, ) KEPT(size_t, sharedMemPerBlockOptin, ) \
  KEPT(int, pageableMemoryAccessUsesHostPageTables, ) KEPT(int, directManagedMemAccessFromHost, ) \
  KEPT(int, maxBlocksPerMultiProcessor, ) KEPT(int, accessPolicyMaxWindowSize, ) \
  KEPT(size_t, reservedSharedMemPerBlock, ) KEPT(int, hostRegisterSupported, ) \
  KEPT(int, sparseCudaArraySupported, ) KEPT(int, hostRegisterReadOnlySupported, ) \
  KEPT(int, timelineSemaphoreInteropSupported, ) KEPT(int, memoryPoolsSupported, ) \
  KEPT(int, gpuDirectRDMASupported, ) KEPT(unsigned, gpuDirectRDMAFlushWritesOptions, ) \
  KEPT(int, gpuDirectRDMAWritesOrdering, ) KEPT(unsigned, memoryPoolSupportedHandleTypes, ) \
  KEPT(int, deferredMappingCudaArraySupported, ) KEPT(int, ipcEventSupported, ) KEPT(int, clusterLaunch, ) \
  KEPT(int, unifiedFunctionPointers, )
#define MEMBER(type, name, size) type name size;
typedef struct {
  PROPERTIES(MEMBER, MEMBER)
  int reserved[63];
} properties12;

cudaError_t cudaGetDeviceProperties_v2(properties12 *to, int d) {
  struct cudaDeviceProp p;
  cudaError_t e = to ? cudaGetDeviceProperties(&p, d) : fail(cudaErrorInvalidValue);
  if (e) return e;
  memset(to, 0, sizeof *to);
#define COPY(type, name, size) memcpy(&to->name, &p.name, sizeof to->name);
#define NOTHING(type, name, size)
  PROPERTIES(COPY, NOTHING)
  cudaDeviceGetAttribute(&to->clockRate, cudaDevAttrClockRate, d);
  cudaDeviceGetAttribute(&to->memoryClockRate, cudaDevAttrMemoryClockRate, d);
  to->deviceOverlap = 1, to->singleToDoublePrecisionPerfRatio = 2, to->maxTexture1DLinear = 1 << 28;
  return cudaSuccess;
}

cudaError_t cudaThreadSynchronize(void) { return cudaDeviceSynchronize(); }
cudaError_t cudaThreadExit(void) { return cudaDeviceReset(); }
cudaError_t cudaThreadSetLimit(enum cudaLimit l, size_t n) { return cudaDeviceSetLimit(l, n); }
cudaError_t cudaThreadGetLimit(size_t *n, enum cudaLimit l) { return cudaDeviceGetLimit(n, l); }
cudaError_t cudaThreadSetCacheConfig(enum cudaFuncCache c) { return cudaDeviceSetCacheConfig(c); }
cudaError_t cudaMemAdvise_v2(const void *p, size_t n, enum cudaMemoryAdvise a, struct cudaMemLocation l) { return cudaMemAdvise(p, n, a, l); }
cudaError_t cudaMemAdvise_cuda12(const void *p, size_t n, enum cudaMemoryAdvise a, int d) {
  return cudaMemAdvise(p, n, a, (struct cudaMemLocation){cudaMemLocationTypeDevice, d});
}
cudaError_t cudaMemPrefetchAsync_v2(const void *p, size_t n, struct cudaMemLocation l, unsigned flags, cudaStream_t s) {
  return cudaMemPrefetchAsync(p, n, l, flags, s);
}
cudaError_t cudaMemPrefetchAsync_cuda12(const void *p, size_t n, int d, cudaStream_t s) {
  return cudaMemPrefetchAsync(p, n, (struct cudaMemLocation){d < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice, d < 0 ? 0 : d}, 0, s);
}
cudaError_t cudaGraphAddDependencies_v2(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to, const cudaGraphEdgeData *data, size_t n) {
  return cudaGraphAddDependencies(g, from, to, data, n);
}
cudaError_t cudaGraphAddDependencies_cuda12(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to, size_t n) {
  return cudaGraphAddDependencies(g, from, to, NULL, n);
}
cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t from, cudaEvent_t to) { return cudaEventElapsedTime(ms, from, to); }
