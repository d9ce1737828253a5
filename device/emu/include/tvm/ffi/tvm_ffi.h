// The part of TVM-FFI's C++ API that kernels use, under its own names: tensors, optional and scalar parameters, errors,
// and the export of a typed function. Argument conversions and error texts are those of TVM-FFI. Every other header of
// tvm/ffi includes this one.
#ifndef FISUB_EMU_TVM_FFI_H_
#define FISUB_EMU_TVM_FFI_H_

#include <stddef.h>
#include <stdint.h>

#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <tvm/ffi/c_api.h>

#define TVM_FFI_INLINE [[gnu::always_inline]] inline
#define TVM_FFI_NO_INLINE [[gnu::noinline]]
#define TVM_FFI_UNREACHABLE() __builtin_unreachable()

inline bool operator==(const DLDataType& a, const DLDataType& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool operator!=(const DLDataType& a, const DLDataType& b) { return !(a == b); }
inline bool operator==(const DLDevice& a, const DLDevice& b) {
  return a.device_type == b.device_type && a.device_id == b.device_id;
}
inline bool operator!=(const DLDevice& a, const DLDevice& b) { return !(a == b); }

namespace tvm {
namespace ffi {

class Error : public std::exception {
 public:
  Error(std::string kind, std::string message, std::string = "") : kind_(std::move(kind)), message_(std::move(message)) {}
  const std::string& kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string kind_, message_;
};

namespace detail {

struct ErrorBuilder {
  explicit ErrorBuilder(const char* kind) : kind(kind) {}
  [[noreturn]] ~ErrorBuilder() noexcept(false) { throw Error(kind, text.str()); }
  std::ostringstream& stream() { return text; }
  const char* kind;
  std::ostringstream text;
};

template <class X, class Y>
std::unique_ptr<std::string> check_text(const X& x, const Y& y) {
  std::ostringstream os;
  os << " (" << x << " vs. " << y << ") ";
  return std::make_unique<std::string>(os.str());
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#define FISUB_CHECK(name, op)                                            \
  template <class X, class Y>                                            \
  std::unique_ptr<std::string> check_##name(const X& x, const Y& y) {    \
    if (x op y) return nullptr;                                          \
    return check_text(x, y);                                             \
  }
FISUB_CHECK(LT, <)
FISUB_CHECK(GT, >)
FISUB_CHECK(LE, <=)
FISUB_CHECK(GE, >=)
FISUB_CHECK(EQ, ==)
FISUB_CHECK(NE, !=)
#undef FISUB_CHECK
#pragma GCC diagnostic pop

}  // namespace detail

#define TVM_FFI_THROW(ErrorKind) ::tvm::ffi::detail::ErrorBuilder(#ErrorKind).stream()
#define TVM_FFI_LOG_AND_THROW(ErrorKind) TVM_FFI_THROW(ErrorKind)
#define TVM_FFI_CHECK(cond, ErrorKind) \
  if (!(cond)) TVM_FFI_THROW(ErrorKind) << "Check failed: (" #cond << ") is false: "
#define FISUB_CHECK_OP(name, op, x, y, ErrorKind)                              \
  if (auto fisub_check_text_ = ::tvm::ffi::detail::check_##name(x, y))         \
  TVM_FFI_THROW(ErrorKind) << "Check failed: " << #x " " #op " " #y << *fisub_check_text_ << ": "
#define TVM_FFI_CHECK_LT(x, y, ErrorKind) FISUB_CHECK_OP(LT, <, x, y, ErrorKind)
#define TVM_FFI_CHECK_GT(x, y, ErrorKind) FISUB_CHECK_OP(GT, >, x, y, ErrorKind)
#define TVM_FFI_CHECK_LE(x, y, ErrorKind) FISUB_CHECK_OP(LE, <=, x, y, ErrorKind)
#define TVM_FFI_CHECK_GE(x, y, ErrorKind) FISUB_CHECK_OP(GE, >=, x, y, ErrorKind)
#define TVM_FFI_CHECK_EQ(x, y, ErrorKind) FISUB_CHECK_OP(EQ, ==, x, y, ErrorKind)
#define TVM_FFI_CHECK_NE(x, y, ErrorKind) FISUB_CHECK_OP(NE, !=, x, y, ErrorKind)
#define TVM_FFI_CHECK_NOTNULL(x, ErrorKind) \
  ((x) == nullptr ? TVM_FFI_THROW(ErrorKind) << "Check not null: " #x << ' ', (x) : (x))
#define TVM_FFI_ICHECK(x) TVM_FFI_CHECK(x, InternalError)
#define TVM_FFI_ICHECK_LT(x, y) TVM_FFI_CHECK_LT(x, y, InternalError)
#define TVM_FFI_ICHECK_GT(x, y) TVM_FFI_CHECK_GT(x, y, InternalError)
#define TVM_FFI_ICHECK_LE(x, y) TVM_FFI_CHECK_LE(x, y, InternalError)
#define TVM_FFI_ICHECK_GE(x, y) TVM_FFI_CHECK_GE(x, y, InternalError)
#define TVM_FFI_ICHECK_EQ(x, y) TVM_FFI_CHECK_EQ(x, y, InternalError)
#define TVM_FFI_ICHECK_NE(x, y) TVM_FFI_CHECK_NE(x, y, InternalError)
#define TVM_FFI_ICHECK_NOTNULL(x) TVM_FFI_CHECK_NOTNULL(x, InternalError)

class ShapeView {
 public:
  ShapeView() = default;
  ShapeView(const int64_t* data, size_t size) : data_(data), size_(size) {}
  ShapeView(const std::initializer_list<int64_t>& list) : data_(list.begin()), size_(list.size()) {}
  const int64_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  int64_t operator[](size_t i) const { return data_[i]; }
  int64_t at(size_t i) const {
    if (i >= size_) TVM_FFI_THROW(IndexError) << "indexing " << i << " on a Shape of size " << size_;
    return data_[i];
  }
  int64_t front() const { return at(0); }
  int64_t back() const { return at(size_ - 1); }
  int64_t Product() const {
    int64_t n = 1;
    for (int64_t s : *this) n *= s;
    return n;
  }

 private:
  const int64_t* data_ = nullptr;
  size_t size_ = 0;
};

inline bool IsContiguous(const DLTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}
inline bool IsAligned(const DLTensor& t, size_t alignment) {
  return (reinterpret_cast<size_t>(t.data) + t.byte_offset) % alignment == 0;
}
inline bool IsDirectAddressDevice(const DLDevice&) { return true; }
inline size_t GetDataSize(size_t elements, DLDataType dtype) {
  return static_cast<size_t>((static_cast<uint64_t>(elements) * dtype.bits * dtype.lanes + 7) / 8);
}
inline size_t GetDataSize(const DLTensor& t) {
  return GetDataSize(static_cast<size_t>(ShapeView(t.shape, static_cast<size_t>(t.ndim)).Product()), t.dtype);
}

namespace detail {

// The accessors of Tensor and TensorView; Self has a method get that gives the DLTensor.
template <class Self>
class TensorMethods {
 public:
  void* data_ptr() const { return t().data; }
  DLDevice device() const { return t().device; }
  int32_t ndim() const { return t().ndim; }
  int32_t dim() const { return t().ndim; }
  DLDataType dtype() const { return t().dtype; }
  ShapeView shape() const { return ShapeView(t().shape, static_cast<size_t>(t().ndim)); }
  ShapeView sizes() const { return shape(); }
  ShapeView strides() const {
    TVM_FFI_ICHECK(t().strides != nullptr || t().ndim == 0);
    return ShapeView(t().strides, static_cast<size_t>(t().ndim));
  }
  int64_t size(int64_t i) const { return t().shape[index(i)]; }
  int64_t stride(int64_t i) const { return t().strides[index(i)]; }
  int64_t numel() const { return shape().Product(); }
  uint64_t byte_offset() const { return t().byte_offset; }
  bool IsContiguous() const { return ffi::IsContiguous(t()); }
  bool is_contiguous() const { return IsContiguous(); }
  bool IsAligned(size_t alignment) const { return ffi::IsAligned(t(), alignment); }
  const DLTensor* GetDLTensorPtr() const { return &t(); }

 private:
  const DLTensor& t() const { return static_cast<const Self*>(this)->get(); }
  int64_t index(int64_t i) const {
    const int64_t adjusted = i >= 0 ? i : t().ndim + i;
    if (adjusted < 0 || adjusted >= t().ndim) {
      TVM_FFI_THROW(IndexError) << "Index " << i << " out of bounds for tensor with " << t().ndim << " dimensions";
    }
    return adjusted;
  }
};

}  // namespace detail

class ObjectRef {
 public:
  ObjectRef() = default;
  ObjectRef(std::nullptr_t) {}
  // Takes over one reference.
  explicit ObjectRef(TVMFFIObject* owned) : object_(owned) {}
  ObjectRef(const ObjectRef& o) : object_(o.object_) {
    if (object_) TVMFFIObjectIncRef(object_);
  }
  ObjectRef(ObjectRef&& o) noexcept : object_(std::exchange(o.object_, nullptr)) {}
  ObjectRef& operator=(ObjectRef o) noexcept { return std::swap(object_, o.object_), *this; }
  ~ObjectRef() {
    if (object_) TVMFFIObjectDecRef(object_);
  }
  bool defined() const { return object_ != nullptr; }
  bool operator==(std::nullptr_t) const { return !object_; }
  bool operator!=(std::nullptr_t) const { return object_; }
  TVMFFIObject* object() const { return object_; }
  TVMFFIObject* release() { return std::exchange(object_, nullptr); }

 private:
  TVMFFIObject* object_ = nullptr;
};

class Tensor : public ObjectRef, public detail::TensorMethods<Tensor> {
 public:
  using ObjectRef::ObjectRef;
  const DLTensor& get() const {
    TVM_FFI_ICHECK(defined());
    return *TVMFFITensorGetDLTensorPtr(object());
  }
  const DLTensor* operator->() const { return &get(); }
  static Tensor FromEnvAlloc(int (*alloc)(DLTensor*, TVMFFIObjectHandle*), ShapeView shape, DLDataType dtype, DLDevice device) {
    DLTensor prototype{};
    prototype.device = device;
    prototype.dtype = dtype;
    prototype.shape = const_cast<int64_t*>(shape.data());
    prototype.ndim = static_cast<int32_t>(shape.size());
    TVMFFIObjectHandle out = nullptr;
    if (alloc(&prototype, &out) != 0) TVM_FFI_THROW(RuntimeError) << "TVMFFIEnvTensorAlloc: out of memory";
    return Tensor(static_cast<TVMFFIObject*>(out));
  }
};

class TensorView : public detail::TensorMethods<TensorView> {
 public:
  TensorView(const Tensor& t) : tensor_(t.get()) {}
  TensorView(Tensor&&) = delete;
  TensorView(const DLTensor* t) {
    TVM_FFI_ICHECK(t != nullptr);
    tensor_ = *t;
  }
  const DLTensor& get() const { return tensor_; }
  TensorView as_strided(ShapeView shape, ShapeView strides, std::optional<int64_t> element_offset = std::nullopt) const {
    TVM_FFI_ICHECK_EQ(shape.size(), strides.size());
    TVM_FFI_ICHECK_GE(element_offset.value_or(0), 0);
    DLTensor t = tensor_;
    t.shape = const_cast<int64_t*>(shape.data());
    t.ndim = static_cast<int32_t>(shape.size());
    t.strides = const_cast<int64_t*>(strides.data());
    t.data = static_cast<char*>(t.data) + t.byte_offset + GetDataSize(static_cast<size_t>(element_offset.value_or(0)), t.dtype);
    t.byte_offset = 0;
    return TensorView(&t);
  }

 private:
  DLTensor tensor_;
};

template <class T> size_t GetDataSize(const detail::TensorMethods<T>& t) {
  return GetDataSize(static_cast<size_t>(t.numel()), t.dtype());
}

template <class T>
class Optional : public std::optional<T> {
 public:
  using std::optional<T>::optional;
  Optional() = default;
  Optional(std::nullptr_t) {}
};

class String : public std::string {
 public:
  using std::string::string;
  String(std::string s) : std::string(std::move(s)) {}
  operator std::string_view() const { return {data(), size()}; }
};

inline std::string DLDataTypeToString(DLDataType t) {
  static const char* const names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  std::string s = t.code < 7 ? names[t.code] : t.code == 10 ? "float8_e4m3fn" : t.code == 12 ? "float8_e5m2" : t.code == 17 ? "float4_e2m1fn" : "code" + std::to_string(t.code);
  if (t.code < 7 && !(t.code == kDLBool && t.bits == 8)) s += std::to_string(t.bits);
  if (t.lanes != 1) s += "x" + std::to_string(t.lanes);
  return s;
}

// How a parameter type reads an argument: from gives nothing where the argument does not convert.
template <class T, class = void> struct TypeTraits;

template <> struct TypeTraits<bool> {
  static std::string name() { return "bool"; }
  static std::optional<bool> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIInt || a.type_index == kTVMFFIBool) return a.v_int64 != 0;
    return std::nullopt;
  }
};
template <class T> struct TypeTraits<T, std::enable_if_t<std::is_integral_v<T> || std::is_enum_v<T>>> {
  static std::string name() { return "int"; }
  static std::optional<T> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIInt || a.type_index == kTVMFFIBool) return static_cast<T>(a.v_int64);
    return std::nullopt;
  }
};
template <class T> struct TypeTraits<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static std::string name() { return "float"; }
  static std::optional<T> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIFloat) return static_cast<T>(a.v_float64);
    if (a.type_index == kTVMFFIInt || a.type_index == kTVMFFIBool) return static_cast<T>(a.v_int64);
    return std::nullopt;
  }
};
template <> struct TypeTraits<DLTensor*> {
  static std::string name() { return "DLTensor*"; }
  static std::optional<DLTensor*> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIDLTensorPtr) return static_cast<DLTensor*>(a.v_ptr);
    if (a.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(a.v_obj);
    return std::nullopt;
  }
};
template <> struct TypeTraits<TensorView> {
  static std::string name() { return "DLTensor*"; }
  static std::optional<TensorView> from(const TVMFFIAny& a) {
    if (auto t = TypeTraits<DLTensor*>::from(a)) return TensorView(*t);
    return std::nullopt;
  }
};
template <> struct TypeTraits<Tensor> {
  static std::string name() { return "ffi.Tensor"; }
  static std::optional<Tensor> from(const TVMFFIAny& a) {
    if (a.type_index != kTVMFFITensor) return std::nullopt;
    TVMFFIObjectIncRef(a.v_obj);
    return Tensor(a.v_obj);
  }
};
template <> struct TypeTraits<void*> {
  static std::string name() { return "void*"; }
  static std::optional<void*> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIOpaquePtr) return a.v_ptr;
    if (a.type_index == kTVMFFINone) return static_cast<void*>(nullptr);
    return std::nullopt;
  }
};
template <> struct TypeTraits<const char*> {
  static std::string name() { return "const char*"; }
  static std::optional<const char*> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIRawStr) return a.v_c_str;
    return std::nullopt;
  }
};
template <> struct TypeTraits<String> {
  static std::string name() { return "str"; }
  static std::optional<String> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIRawStr) return String(a.v_c_str);
    return std::nullopt;
  }
};
template <> struct TypeTraits<std::string> {
  static std::string name() { return "std::string"; }
  static std::optional<std::string> from(const TVMFFIAny& a) { return TypeTraits<String>::from(a); }
};
template <> struct TypeTraits<DLDevice> {
  static std::string name() { return "Device"; }
  static std::optional<DLDevice> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIDevice) return a.v_device;
    return std::nullopt;
  }
};
template <> struct TypeTraits<DLDataType> {
  static std::string name() { return "DataType"; }
  static std::optional<DLDataType> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIDataType) return a.v_dtype;
    return std::nullopt;
  }
};
template <class T> struct TypeTraits<Optional<T>> {
  static std::string name() { return "Optional<" + TypeTraits<T>::name() + ">"; }
  static std::optional<Optional<T>> from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFINone) return Optional<T>(std::nullopt);
    if (auto v = TypeTraits<T>::from(a)) return Optional<T>(*std::move(v));
    return std::nullopt;
  }
};

namespace detail {

inline const char* type_key(int32_t index) {
  switch (index) {
    case kTVMFFINone: return "None";
    case kTVMFFIInt: return "int";
    case kTVMFFIBool: return "bool";
    case kTVMFFIFloat: return "float";
    case kTVMFFIOpaquePtr: return "void*";
    case kTVMFFIDLTensorPtr: return "DLTensor*";
    case kTVMFFIRawStr: return "const char*";
    case kTVMFFITensor: return "ffi.Tensor";
    default: return "ffi.Object";
  }
}

template <class T> using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

template <class T> std::string type_name() {
  if constexpr (std::is_void_v<T>) return "void";
  else return TypeTraits<Bare<T>>::name();
}

inline void set_result(TVMFFIAny* r, Tensor t) { *r = {}, r->type_index = t.defined() ? kTVMFFITensor : kTVMFFINone, r->v_obj = t.release(); }
template <class T> std::enable_if_t<std::is_arithmetic_v<T>> set_result(TVMFFIAny* r, T v) {
  *r = {};
  if constexpr (std::is_floating_point_v<T>) r->type_index = kTVMFFIFloat, r->v_float64 = v;
  else r->type_index = std::is_same_v<T, bool> ? kTVMFFIBool : kTVMFFIInt, r->v_int64 = static_cast<int64_t>(v);
}

// An argument on its way to a parameter: the conversion throws what TVM-FFI throws.
template <class T>
struct Argument {
  const TVMFFIAny* args;
  size_t index;
  const char* name;
  std::string (*signature)();
  operator Bare<T>() const {
    auto v = TypeTraits<Bare<T>>::from(args[index]);
    if (!v) {
      TVM_FFI_THROW(TypeError) << "Mismatched type on argument #" << index << " when calling: `" << name << signature()
                               << "`. Expected `" << type_name<T>() << "` but got `" << type_key(args[index].type_index)
                               << "`";
    }
    return *std::move(v);
  }
};

template <class F> struct Signature : Signature<decltype(&F::operator())> {};
template <class C, class R, class... A> struct Signature<R (C::*)(A...) const> : Signature<R (*)(A...)> {};
template <class R, class... A> struct Signature<R (*)(A...)> {
  static std::string text() {
    std::ostringstream os;
    size_t i = 0;
    os << "(";
    ((os << (i ? ", " : "") << i << ": " << type_name<A>(), ++i), ...);
    os << ") -> " << type_name<R>();
    return os.str();
  }
  template <class F, size_t... I>
  static void apply(const char* name, const F& f, const TVMFFIAny* args, TVMFFIAny* result, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<R>) f(Argument<A>{args, I, name, text}...);
    else set_result(result, f(Argument<A>{args, I, name, text}...));
  }
  template <class F>
  static int call(const char* name, const F& f, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
    try {
      if (n != static_cast<int32_t>(sizeof...(A))) {
        TVM_FFI_THROW(TypeError) << "Mismatched number of arguments when calling: `" << name << text() << "`. Expected "
                                 << sizeof...(A) << " but got " << n << " arguments";
      }
      apply(name, f, args, result, std::index_sequence_for<A...>{});
      return 0;
    } catch (const Error& e) {
      TVMFFIErrorSetRaisedFromCStr(e.kind().c_str(), e.message().c_str());
    } catch (const std::exception& e) {
      TVMFFIErrorSetRaisedFromCStr("InternalError", e.what());
    }
    return -1;
  }
};

}  // namespace detail
}  // namespace ffi
}  // namespace tvm

inline std::ostream& operator<<(std::ostream& os, DLDataType t) { return os << tvm::ffi::DLDataTypeToString(t); }

#define TVM_FFI_SAFE_CALL_BEGIN() \
  try {                           \
  (void)0
#define TVM_FFI_SAFE_CALL_END()                                                   \
  return 0;                                                                       \
  }                                                                               \
  catch (const ::tvm::ffi::Error& err) {                                          \
    TVMFFIErrorSetRaisedFromCStr(err.kind().c_str(), err.what());                 \
    return -1;                                                                    \
  }                                                                               \
  catch (const std::exception& ex) {                                              \
    TVMFFIErrorSetRaisedFromCStr("InternalError", ex.what());                     \
    return -1;                                                                    \
  }                                                                               \
  (void)0

#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(ExportName, Function)                                                            \
  extern "C" {                                                                                                         \
  TVM_FFI_DLL_EXPORT int __tvm_ffi_##ExportName(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {   \
    auto function = Function;                                                                                          \
    return ::tvm::ffi::detail::Signature<decltype(function)>::call(#ExportName, function, args, num_args, result);     \
  }                                                                                                                    \
  }
#define TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC(ExportName, DocString)

#endif  // FISUB_EMU_TVM_FFI_H_
