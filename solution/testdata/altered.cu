
// Appended to kernel.cu by decode_test.go: the entry point `altered` calls decode in ways that a caller of fisub cannot.
// change says how: 0 moves tensor number `which` (in the order of decode's tensors) by 8 bytes with its byte_offset, 1 by
// 8 bytes with its pointer, 2 states twice the stride in its last dimension, and 3 changes no tensor, but makes another
// stream the current one, where what decode puts into it is captured and then run.
namespace {

void on_another_stream(DLDevice device, const std::function<void()>& call) {
  cudaStream_t stream;
  GDN_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void* before = nullptr;
  if (TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &before) != 0) {
    TVM_FFI_THROW(RuntimeError) << "TVMFFIEnvSetStream: refused";
  }
  GDN_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  call();
  cudaGraph_t graph;
  GDN_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  TVMFFIEnvSetStream(device.device_type, device.device_id, before, nullptr);
  cudaGraphNode_t node;
  size_t nodes = 0;
  GDN_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  if (nodes != 1) {
    TVM_FFI_THROW(RuntimeError) << nodes << " operations in the stream; expected 1";
  }
  GDN_CUDA_CHECK(cudaGraphGetNodes(graph, &node, &nodes));
  cudaGraphNodeType type;
  GDN_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  if (type != cudaGraphNodeTypeKernel) {
    TVM_FFI_THROW(RuntimeError) << "operation of type " << int(type) << " in the stream; expected a kernel";
  }
  cudaGraphExec_t exec;
  GDN_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  GDN_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  GDN_CUDA_CHECK(cudaStreamSynchronize(stream));
  GDN_CUDA_CHECK(cudaGraphExecDestroy(exec));
  GDN_CUDA_CHECK(cudaGraphDestroy(graph));
  GDN_CUDA_CHECK(cudaStreamDestroy(stream));
}

void altered(int64_t change, int64_t which, gdn::TensorView q, gdn::TensorView k, gdn::TensorView v, gdn::TensorView state,
             gdn::TensorView a_log, gdn::TensorView a, gdn::TensorView dt_bias, gdn::TensorView b,
             tvm::ffi::Optional<double> scale, gdn::TensorView output, gdn::TensorView new_state) {
  gdn::TensorView* tensors[] = {&q, &k, &v, &state, &a_log, &a, &dt_bias, &b, &output, &new_state};
  gdn::TensorView& x = *tensors[which];
  int64_t strides[4];
  int64_t stride = change == 2 ? 2 : 1;
  for (int i = x.ndim() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= x.size(i);
  }
  DLTensor t{};
  t.data = static_cast<char*>(x.data_ptr()) + (change == 1 ? 8 : 0);
  t.device = x.device();
  t.ndim = x.ndim();
  t.dtype = x.dtype();
  t.shape = const_cast<int64_t*>(x.shape().data());
  t.strides = strides;
  t.byte_offset = x.byte_offset() + (change == 0 ? 8 : 0);
  x = gdn::TensorView(&t);
  const auto call = [&] { gdn::decode(q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state); };
  if (change == 3) {
    on_another_stream(q.device(), call);
  } else {
    call();
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(altered, altered);
