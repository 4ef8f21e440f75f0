// Operations on tensors of the device. Copies are ours; everything else is torch's CPU kernel, run
// by the stream's thread on the same bytes: the caller does not wait, whatever the operation.
//
// What an operation returns is known from its run on meta tensors. One whose result depends on the
// data (nonzero, item) makes the caller wait, as it does on any device.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "torch_side.h"

namespace emulated {

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr auto OURS = c10::DeviceType::PrivateUse1;

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == OURS; }

// A CPU tensor over the same bytes; it does not keep them.
Tensor on_back(const Tensor& tensor) {
  void* back = tensor.numel() == 0 ? nullptr : back_of(tensor.mutable_data_ptr());
  const auto options = tensor.options().device(at::kCPU);
  Tensor host = at::from_blob(back, tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) host = host._conj();
  return tensor.is_neg() ? host._neg_view() : host;
}

void run_on_stream(std::function<void()> kernel) {
  translated([&] {
    submit(current_stream(), [kernel = std::move(kernel)] {
      at::AutoDispatchBelowADInplaceOrView no_grad;
      kernel();
    });
  });
}

// ----------------------------------------------------------------------------------- creation

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> layout, std::optional<at::Device>,
             std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "emulated device: dense only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "only memory of the host is pinned");
  return at::detail::empty_generic(size, c10::GetAllocator(OURS),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(OURS),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.dtype().itemsize(), static_cast<size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

// ------------------------------------------------------------------------------------- copies

// The bytes of both lie in one row and mean the same.
bool are_alike(const Tensor& one, const Tensor& other) {
  if (one.dtype() != other.dtype()) return false;
  if (one.is_conj() != other.is_conj() || one.is_neg() != other.is_neg()) return false;
  if (one.is_contiguous() && other.is_contiguous()) return true;
  return one.strides() == other.strides() && one.is_non_overlapping_and_dense();
}

void copy_on_device(const Tensor& source, const Tensor& target) {
  if (target.numel() == 0) return;
  run_on_stream([from = on_back(source), to = on_back(target)]() mutable { to.copy_(from); });
}

void carry(const Tensor& source, const Tensor& target, bool non_blocking) {
  const auto direction = is_ours(source) ? TO_HOST : TO_DEVICE;
  const void* from = source.const_data_ptr();
  void* to = target.mutable_data_ptr();
  const void* host = direction == TO_HOST ? to : from;
  if (target.numel() == 0) return;
  translated([&] {
    transfer(current_stream(), direction, direction == TO_HOST ? to : back_of(to),
             direction == TO_HOST ? back_of(from) : from, host, target.nbytes(), non_blocking);
  });
}

// What is not alike is converted on the device, in memory that only the current stream uses.
void copy_to_host(const Tensor& source, const Tensor& target, bool non_blocking) {
  if (are_alike(source, target)) return carry(source, target, non_blocking);
  const Tensor row = at::empty(target.sizes(), source.options().dtype(target.scalar_type()));
  copy_on_device(source, row);
  if (target.is_contiguous()) return carry(row, target, non_blocking);
  Tensor host = at::empty(target.sizes(), target.options());
  carry(row, host, false);
  target.copy_(host);
}

void copy_to_device(const Tensor& source, const Tensor& target, bool non_blocking) {
  if (are_alike(source, target)) return carry(source, target, non_blocking);
  const Tensor host = source.resolve_conj().resolve_neg().contiguous();
  const Tensor row = at::empty(target.sizes(), target.options().dtype(source.scalar_type()));
  carry(host, row, non_blocking && host.is_same(source));
  copy_on_device(row, target);
}

Tensor copy_from(const Tensor& given, const Tensor& target, bool non_blocking) {
  const Tensor source = given.expand(target.sizes());
  if (!is_ours(source))
    copy_to_device(source, target, non_blocking);
  else if (!is_ours(target))
    copy_to_host(source, target, non_blocking);
  else
    copy_on_device(source, target);
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar item(const Tensor& self) { return at::native::_local_scalar_dense_cpu(self.cpu()); }

void record_stream(Tensor& self, c10::Stream stream) {
  c10::impl::getDeviceGuardImpl(OURS)->recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

// ---------------------------------------------------------------------------- all other operations

// A number stays as it is: it gives way to the types of the others.
Tensor on_meta(const Tensor& tensor) {
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;
  const auto options = tensor.options().device(at::kMeta).pinned_memory(false);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// For a kernel that runs later: a CPU tensor as it is now.
Tensor for_kernel(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (is_ours(tensor)) return on_back(tensor);
  Tensor kept = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    kept.unsafeGetTensorImpl()->set_wrapped_number(true);
  return kept;
}

template <typename Change>
IValue mapped(const IValue& value, at::DeviceType device, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isDevice()) return c10::Device(device);
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> each : value.toOptionalTensorList())
      list.push_back(each ? std::optional<Tensor>(change(*each)) : std::nullopt);
    return list;
  }
  return value;
}

template <typename Change>
Stack mapped(const Stack& values, at::DeviceType device, Change change) {
  Stack all;
  for (const IValue& value : values) all.push_back(mapped(value, device, change));
  return all;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool returns_only_tensors(const c10::FunctionSchema& schema) {
  for (const auto& each : schema.returns())
    if (!each.type()->isSubtypeOf(*c10::TensorType::get()) &&
        !each.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return false;
  return true;
}

// Which argument a returned alias is.
size_t argument_of(const c10::FunctionSchema& schema, const c10::Argument& returned) {
  TORCH_CHECK(is_written(returned), "emulated device: ", schema.operator_name(), " makes a view");
  for (size_t at = 0; at < schema.arguments().size(); ++at)
    if (is_written(schema.arguments()[at]) &&
        *schema.arguments()[at].alias_info() == *returned.alias_info())
      return at;
  TORCH_CHECK(false, "emulated device: ", schema.operator_name(), " returns none of its arguments");
}

// Arguments that are given to be resized get the shape that the run on meta gave them.
void resize_written(const c10::FunctionSchema& schema, const Stack& arguments, const Stack& metas) {
  for (size_t at = 0; at < arguments.size(); ++at) {
    if (!is_written(schema.arguments()[at]) || !arguments[at].isTensor()) continue;
    const Tensor& tensor = arguments[at].toTensor();
    const Tensor& meta = metas[at].toTensor();
    if (is_ours(tensor) && tensor.sizes() != meta.sizes()) tensor.resize_(meta.sizes());
  }
}

Tensor made_like(const Tensor& meta) {
  const auto options = meta.options().device(c10::Device(OURS, 0));
  return at::empty_strided(meta.sizes(), meta.strides(), options);
}

// What the operation will return: its own arguments, and new tensors. Throws where only the data
// can say.
Stack results_of(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto& schema = op.schema();
  Stack metas = mapped(arguments, at::kMeta, on_meta);
  Stack run = metas;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &run);
  resize_written(schema, arguments, metas);
  Stack results;
  for (size_t at = 0; at < schema.returns().size(); ++at) {
    const auto& returned = schema.returns()[at];
    if (returned.alias_info() != nullptr)
      results.push_back(arguments[argument_of(schema, returned)]);
    else
      results.push_back(mapped(run[at], OURS, made_like));
  }
  return results;
}

void copy_result(const IValue& from, const IValue& to) {
  if (to.isTensor()) {
    if (!to.toTensor().is_same(from.toTensor())) to.toTensor().copy_(from.toTensor());
    return;
  }
  const auto froms = from.toTensorVector();
  const auto tos = to.toTensorVector();
  for (size_t at = 0; at < tos.size(); ++at) tos[at].copy_(froms[at]);
}

void run_later(const c10::OperatorHandle& op, const Stack& arguments, const Stack& results) {
  Stack hosts = mapped(arguments, at::kCPU, for_kernel);
  std::vector<std::pair<size_t, IValue>> made;
  for (size_t at = 0; at < results.size(); ++at)
    if (op.schema().returns()[at].alias_info() == nullptr)
      made.emplace_back(at, mapped(results[at], at::kCPU, for_kernel));
  run_on_stream([op, hosts, made]() mutable {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &hosts);
    for (const auto& [at, target] : made) copy_result(hosts[at], target);
  });
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const Stack arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  Stack results;
  // That only the data know the result is said by c10, or in Python.
  try {
    TORCH_CHECK_NOT_IMPLEMENTED(returns_only_tensors(op.schema()), "a result that is no tensor");
    results = results_of(op, arguments);
  } catch (const c10::NotImplementedError&) {
    return at::native::cpu_fallback(op, stack, true);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {
    return at::native::cpu_fallback(op, stack, true);
  }
  run_later(op, arguments, results);
  torch::jit::drop(*stack, count);
  for (IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("record_stream", record_stream);
  m.impl("as_strided", [](const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                          std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
  });
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage",
         static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

// torch would resolve what is lazy by a copy, and so without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace emulated
