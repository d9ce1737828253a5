
// Appended to kernel.cu by family_test.go: an entry point with every option. The slots of state, and of new_state where that
// is the same tensor, lie gap elements further apart than they are long; the tensors given have one dimension then.
namespace {

using gdn::Optional;
using gdn::TensorView;

void family(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
            TensorView dt_bias, TensorView b, Optional<double> scale, int64_t l2norm, int64_t v_last, Optional<TensorView> read,
            Optional<TensorView> write, Optional<TensorView> token_slots, TensorView output, Optional<TensorView> new_state,
            Optional<TensorView> token_states, int64_t gap) {
  int64_t size = v.size(2) * 128 * 128;
  int64_t strides[] = {size + gap, 128 * 128, 128, 1}, shape[] = {gap > 0 ? state.value().size(0) / (size + gap) : 0, v.size(2), 128, 128};
  DLTensor t{};
  if (gap > 0) {
    t.data = state.value().data_ptr();
    t.device = q.device();
    t.ndim = 4;
    t.dtype = state.value().dtype();
    t.shape = shape;
    t.strides = strides;
    state = TensorView(&t);
    if (new_state.has_value()) {
      new_state = state;
    }
  }
  gdn::run({q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state, token_states, read, write, token_slots, l2norm != 0,
            v_last != 0});
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(family, family);
