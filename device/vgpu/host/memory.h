// The rest of the runtime's functions for memory: 3D memory, memory pools, peers, registered host memory, advice. Part
// of runtime.c.

static cudaError_t nothing_on(cudaStream_t s) {
  cudaError_t e = permitted();
  return e ? e : check_stream(s);
}

/* 3D memory */

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *p, struct cudaExtent n) {
  if (p == NULL) return fail(cudaErrorInvalidValue);
  *p = (struct cudaPitchedPtr){.xsize = n.width, .ysize = n.height};
  if (n.depth && n.width > SIZE_MAX / 1024 / (n.height + 1) / n.depth) return fail(cudaErrorMemoryAllocation);
  return cudaMallocPitch(&p->ptr, &p->pitch, n.width, n.height * n.depth);
}
// A box is one side of a 3D copy: the address of its first byte, and the distances of rows and slices.
typedef struct {
  char *first;
  size_t pitch, slice;
} box;
// box_of sets *b for an array or other memory; extent is in elements if it is an array, whose position is, too.
static cudaError_t box_of(box *b, cudaArray_const_t handle, const struct cudaPitchedPtr *p, struct cudaPos at, struct cudaExtent n) {
  const array *a = (const array *)handle;
  if (a == NULL) {
    if (p->ptr == NULL || (n.depth > 1 && p->ysize < n.height)) return fail(cudaErrorInvalidValue);
    *b = (box){(char *)p->ptr + at.z * p->pitch * p->ysize + at.y * p->pitch + at.x, p->pitch, p->pitch * p->ysize};
    return cudaSuccess;
  }
  if (!held(a, ARRAY)) return fail(cudaErrorInvalidResourceHandle);
  if (p->ptr || at.x > a->size[0] || n.width > a->size[0] - at.x || at.y > a->size[1] || n.height > a->size[1] - at.y ||
      at.z > a->size[2] || n.depth > a->size[2] - at.z)
    return fail(cudaErrorInvalidValue);
  *b = (box){a->data + at.z * a->slice + at.y * a->row + at.x * a->bytes, a->row, a->slice};
  return cudaSuccess;
}
static cudaError_t copy_3d(const char *function, const struct cudaMemcpy3DParms *p, cudaStream_t st) {
  if (p == NULL) return fail(cudaErrorInvalidValue);
  box to, from;
  cudaError_t e = box_of(&to, p->dstArray, &p->dstPtr, p->dstPos, p->extent);
  if (e || (e = box_of(&from, p->srcArray, &p->srcPtr, p->srcPos, p->extent))) return e;
  const array *a = (const array *)p->dstArray, *b = (const array *)p->srcArray;
  if (a && b && a->bytes != b->bytes) return fail(cudaErrorInvalidValue);
  size_t width = p->extent.width * (a ? a->bytes : b ? b->bytes : 1);
  for (size_t z = 0; z < p->extent.depth && e == cudaSuccess; z++)
    e = copy_rows(function, to.first + z * to.slice, to.pitch, from.first + z * from.slice, from.pitch, width, p->extent.height, p->kind, st);
  return e;
}
cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *p) { return copy_3d("cudaMemcpy3D", p, NULL); }
cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t st) { return copy_3d("cudaMemcpy3DAsync", p, st); }
static cudaError_t set_3d(const char *function, struct cudaPitchedPtr p, int v, struct cudaExtent n, cudaStream_t st) {
  if (n.depth > 1 && p.ysize < n.height) return fail(cudaErrorInvalidValue);
  cudaError_t e = cudaSuccess;
  for (size_t z = 0; z < n.depth && e == cudaSuccess; z++)
    e = set_rows(function, (char *)p.ptr + z * p.pitch * p.ysize, p.pitch, (unsigned)v, 1, n.width, n.height, st);
  return e;
}
cudaError_t cudaMemset3D(struct cudaPitchedPtr p, int v, struct cudaExtent n) { return set_3d("cudaMemset3D", p, v, n, NULL); }
cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr p, int v, struct cudaExtent n, cudaStream_t st) {
  return set_3d("cudaMemset3DAsync", p, v, n, st);
}

/* Peers: there is one device, which is not its own peer. */

cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int peer) {
  if (can == NULL) return fail(cudaErrorInvalidValue);
  *can = 0;
  return d || peer ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return fail(flags ? cudaErrorInvalidValue : peer ? cudaErrorInvalidDevice : cudaErrorPeerAccessUnsupported);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) { return fail(peer ? cudaErrorInvalidDevice : cudaErrorPeerAccessNotEnabled); }
cudaError_t cudaMemcpyPeer(void *d, int to, const void *s, int from, size_t n) {
  if (to || from) return fail(cudaErrorInvalidDevice);
  return copy_rows("cudaMemcpyPeer", d, n, s, n, n, 1, cudaMemcpyDeviceToDevice, NULL);
}
cudaError_t cudaMemcpyPeerAsync(void *d, int to, const void *s, int from, size_t n, cudaStream_t st) {
  if (to || from) return fail(cudaErrorInvalidDevice);
  return copy_rows("cudaMemcpyPeerAsync", d, n, s, n, n, 1, cudaMemcpyDeviceToDevice, st);
}

/* Memory pools keep attributes. Memory that is freed is not used again. */

typedef struct {
  unsigned long long threshold;
  int reuse[3];
} pool;
static pool default_pool = {0, {1, 1, 1}}, *current_pool = &default_pool;

static int is_pool(const void *p) { return p == &default_pool || held(p, POOL); }
static cudaError_t give_pool(cudaMemPool_t *to, pool *p, int d) {
  if (to == NULL) return fail(cudaErrorInvalidValue);
  if (d) return fail(cudaErrorInvalidDevice);
  *to = (cudaMemPool_t)p;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *p, int d) { return give_pool(p, &default_pool, d); }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *p, int d) { return give_pool(p, current_pool, d); }
cudaError_t cudaDeviceSetMemPool(int d, cudaMemPool_t p) {
  if (d) return fail(cudaErrorInvalidDevice);
  if (!is_pool(p)) return fail(cudaErrorInvalidValue);
  current_pool = (pool *)p;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *p, const struct cudaMemPoolProps *props) {
  if (props == NULL || props->allocType != cudaMemAllocationTypePinned) return fail(cudaErrorInvalidValue);
  if (props->location.type != cudaMemLocationTypeDevice) return lacks("cudaMemPoolCreate of host memory");
  if (props->location.id) return fail(cudaErrorInvalidDevice);
  cudaError_t e = new_handle((void **)p, sizeof(pool), POOL);
  if (e == cudaSuccess) *(pool *)*p = (pool){0, {1, 1, 1}};
  return e;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t p) {
  if (!held(p, POOL)) return fail(cudaErrorInvalidValue); // the default pool cannot be destroyed
  if (current_pool == (pool *)p) current_pool = &default_pool;
  let_go(p);
  free(p);
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t p, size_t keep) {
  (void)keep;
  return is_pool(p) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr a, void *v) {
  if (!is_pool(handle) || v == NULL) return fail(cudaErrorInvalidValue);
  pool *p = (pool *)handle;
  switch ((int)a) {
  case cudaMemPoolReuseFollowEventDependencies: case cudaMemPoolReuseAllowOpportunistic:
  case cudaMemPoolReuseAllowInternalDependencies: p->reuse[a - cudaMemPoolReuseFollowEventDependencies] = *(int *)v; return cudaSuccess;
  case cudaMemPoolAttrReleaseThreshold: p->threshold = *(unsigned long long *)v; return cudaSuccess;
  case cudaMemPoolAttrReservedMemHigh: case cudaMemPoolAttrUsedMemHigh:
    return *(unsigned long long *)v ? fail(cudaErrorInvalidValue) : cudaSuccess; // they can only be reset
  }
  return fail(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr a, void *v) {
  if (!is_pool(handle) || v == NULL) return fail(cudaErrorInvalidValue);
  pool *p = (pool *)handle;
  switch ((int)a) {
  case cudaMemPoolReuseFollowEventDependencies: case cudaMemPoolReuseAllowOpportunistic:
  case cudaMemPoolReuseAllowInternalDependencies: *(int *)v = p->reuse[a - cudaMemPoolReuseFollowEventDependencies]; return cudaSuccess;
  case cudaMemPoolAttrReleaseThreshold: *(unsigned long long *)v = p->threshold; return cudaSuccess;
  case cudaMemPoolAttrReservedMemCurrent: case cudaMemPoolAttrReservedMemHigh: case cudaMemPoolAttrUsedMemCurrent:
  case cudaMemPoolAttrUsedMemHigh: return lacks("cudaMemPoolGetAttribute for the sizes of a pool");
  }
  return fail(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t p, const struct cudaMemAccessDesc *list, size_t n) {
  if (!is_pool(p) || (n && list == NULL)) return fail(cudaErrorInvalidValue);
  for (size_t i = 0; i < n; i++)
    if (list[i].location.type != cudaMemLocationTypeDevice || list[i].location.id) return fail(cudaErrorInvalidDevice);
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void **p, size_t n, cudaMemPool_t from, cudaStream_t s) {
  return is_pool(from) ? cudaMallocAsync(p, n, s) : fail(cudaErrorInvalidValue);
}

/* Host memory that is registered, and managed memory */

cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
  cudaError_t e = permitted();
  if (e || (e = unsafe())) return e;
  if (p == NULL || n == 0 || flags & ~15u || flags & cudaHostRegisterIoMemory) return fail(cudaErrorInvalidValue);
  return hooks.expose && hooks.expose(p, n) ? cudaSuccess : fail(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void *p) {
  cudaError_t e = permitted();
  if (e || (e = unsafe())) return e;
  all_awaited();
  return hooks.conceal && hooks.conceal(p) ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t s, void *p, size_t n, unsigned flags) {
  (void)n;
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost && flags != cudaMemAttachSingle) return fail(cudaErrorInvalidValue);
  return known(p) == FISUB_VGPU_PINNED ? nothing_on(s) : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMemAdvise(const void *p, size_t n, enum cudaMemoryAdvise a, struct cudaMemLocation l) {
  (void)n, (void)l;
  return a >= cudaMemAdviseSetReadMostly && a <= cudaMemAdviseUnsetAccessedBy && known(p) == FISUB_VGPU_PINNED
             ? permitted() : fail(cudaErrorInvalidValue);
}

/* The device */

cudaError_t cudaGetDeviceFlags(unsigned *f) { return give((int *)f, cudaDeviceMapHost); }
cudaError_t cudaChooseDevice(int *d, const struct cudaDeviceProp *p) { return p ? give(d, 0) : fail(cudaErrorInvalidValue); }
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int d) {
  if (id == NULL || n <= 0) return fail(cudaErrorInvalidValue);
  if (d) return fail(cudaErrorInvalidDevice);
  snprintf(id, (size_t)n, "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int *d, const char *id) {
  return id && strcmp(id, "0000:00:00.0") == 0 ? give(d, 0) : fail(cudaErrorInvalidValue);
}
cudaError_t cudaFuncGetName(const char **name, const void *host) {
  function *f = find_function(host);
  if (name == NULL) return fail(cudaErrorInvalidValue);
  if (f == NULL) return no_function(host);
  *name = f->name;
  return cudaSuccess;
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size, const void *host, int blocks, int threads) {
  int n = 0;
  if (size == NULL || blocks < 1) return fail(cudaErrorInvalidValue);
  for (*size = 227 << 10; *size; *size -= 1024) {
    cudaError_t e = blocks_of(&n, host, threads < 0 ? 0 : (size_t)threads, *size);
    if (e || n >= blocks) return e;
  }
  return cudaSuccess;
}

/* Changes of executable graphs */

// same_shape reports whether two graphs have the same nodes and dependencies.
static int same_shape(const graph *a, const graph *b) {
  const node *x = a->first, *y = b->first;
  for (; x && y; x = x->next, y = y->next) {
    if (x->kind != y->kind || x->n_after != y->n_after) return 0;
    for (size_t i = 0; i < x->n_after; i++)
      if (x->after[i]->index != y->after[i]->index) return 0;
    if (x->kind == NODE_GRAPH && !same_shape(x->child, y->child)) return 0;
  }
  return x == NULL && y == NULL;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t g, cudaGraphExecUpdateResultInfo *result) {
  if (result) memset(result, 0, sizeof *result);
  cudaError_t e = check_graph(exec, EXEC);
  if (e || (e = check_graph(g, GRAPH))) return e;
  if (!same_shape((graph *)exec, (graph *)g)) {
    if (result) result->result = cudaGraphExecUpdateErrorTopologyChanged;
    return fail(cudaErrorGraphExecUpdateFailure);
  }
  graph *next = clone_of((graph *)g), *now = (graph *)exec, old = *now;
  now->first = next->first, now->end = next->end, now->source = next->source;
  next->first = old.first, next->end = old.end, next->source = old.source;
  if (next->first == NULL) next->end = &next->first;
  if (now->first == NULL) now->end = &now->first;
  drop(next);
  return cudaSuccess;
}
// changed returns the node of exec for a node of its graph if it has the kind, or NULL.
static node *changed(cudaGraphExec_t exec, cudaGraphNode_t of, int kind) {
  if (!held(exec, EXEC) || !held(of, NODE)) return NULL;
  node *n = ((graph *)exec)->first;
  while (n && n->index != ((node *)of)->index) n = n->next;
  return n && n->kind == kind ? n : NULL;
}
static cudaError_t prepare_node(const struct cudaKernelNodeParams *p, void **ready) {
  void *none[1] = {NULL};
  if (p == NULL) return fail(cudaErrorInvalidValue);
  if (p->kernelParams == NULL && p->extra) return lacks("a graph's kernel node with its parameters in one buffer");
  return prepare(p->func, p->gridDim, p->blockDim, NULL, p->kernelParams ? p->kernelParams : none, p->sharedMemBytes, ready);
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t of, const struct cudaKernelNodeParams *p) {
  node *n = changed(exec, of, NODE_LAUNCH);
  void *ready = NULL;
  cudaError_t e = n ? prepare_node(p, &ready) : fail(cudaErrorInvalidValue);
  if (e) return e;
  if (n->own_launch) hooks.forget(n->launch);
  n->launch = ready, n->own_launch = 1;
  return cudaSuccess;
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t of, void *to, const void *from, size_t size,
                                               enum cudaMemcpyKind k) {
  node *n = changed(exec, of, NODE_COPY);
  cudaError_t e = n ? check_copy(to, from, k) : fail(cudaErrorInvalidValue);
  if (e) return e;
  n->to = to, n->from = from, n->size = size, n->rows = n->slices = 1;
  return cudaSuccess;
}
cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t of, const struct cudaHostNodeParams *p) {
  node *n = changed(exec, of, NODE_CALL);
  if (n == NULL || p == NULL || p->fn == NULL) return fail(cudaErrorInvalidValue);
  n->call = p->fn, n->to = p->userData;
  return cudaSuccess;
}
