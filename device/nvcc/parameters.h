// This header shadows tvm-ffi's own header of the same name. Each exported function also defines a constant with one
// letter per parameter, so that the parameters can be read from the object without loading it.
#pragma once
#include_next <tvm/ffi/function.h>

namespace fisub_parameters {
template <class T, class = void> struct letter { static constexpr char value = '?'; };
template <class T> struct letter<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static constexpr char value = 'f';
};
template <class T> struct letter<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static constexpr char value = 'i';
};
template <class T> struct letter<T*, void> { static constexpr char value = 'p'; };
template <> struct letter<DLTensor*, void> { static constexpr char value = 't'; };
template <class T> struct letter<T, std::void_t<decltype(std::declval<const T>().data_ptr()),
                                                decltype(std::declval<const T>().dtype())>> {
  static constexpr char value = 't';
};
template <class... A> struct letters {
  char of[sizeof...(A) + 1] = {letter<std::remove_cv_t<std::remove_reference_t<A>>>::value..., 0};
};
struct unknown { char of[1] = {1}; };
template <class F, class = void> struct function { using type = unknown; };
template <class R, class... A> struct function<R (*)(A...), void> { using type = letters<A...>; };
template <class R, class C, class... A> struct function<R (C::*)(A...) const, void> { using type = letters<A...>; };
template <class F> struct function<F, std::void_t<decltype(&F::operator())>> : function<decltype(&F::operator())> {};
}  // namespace fisub_parameters

#undef TVM_FFI_DLL_EXPORT_TYPED_FUNC
#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(ExportName, Function)                                                          \
  TVM_FFI_DLL_EXPORT_TYPED_FUNC_IMPL_(ExportName, Function)                                                          \
  extern "C" {                                                                                                       \
  extern TVM_FFI_DLL_EXPORT const ::fisub_parameters::function<std::decay_t<decltype(Function)>>::type               \
      __fisub_parameters_##ExportName;                                                                               \
  const ::fisub_parameters::function<std::decay_t<decltype(Function)>>::type __fisub_parameters_##ExportName = {};  \
  }
