#include "services/common/threads/mutex.h"

#ifdef SLUICE_THREAD_SANITIZER

// gRPC's headers put code into our binaries whose synchronization is inside gRPC, where
// ThreadSanitizer does not see it. `race_top` applies only where that code itself makes the access;
// `race` also applies where it calls other code, so it is limited to frames that call none of our
// code except the cancellation of a stream.
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:grpcpp/\n"
         "race_top:std::function<void (bool)>::operator()\n"
         "race:grpc::internal::CallbackWithStatusTag::CallbackWithStatusTag\n"
         "race_top:std::_Function_base::_M_empty\n"
         "race_top:std::__atomic_base<long>::fetch_sub\n"
         "race_top:internal_any_invocable::LocalManagerTrivial\n"
         "race_top:grpc::internal::CallbackWithSuccessTag::StaticRun\n"
         "race_top:grpc::internal::CallbackBidiHandler\n"
         "race:grpcpp/impl/call_op_set.h\n"
         "race:grpcpp/impl/call.h\n"
         "race:grpcpp/impl/codegen/server_interface.h\n"
         "race:grpcpp/support/byte_buffer.h\n"
         "race:grpcpp/support/slice.h\n"
         "race:grpcpp/impl/proto_utils.h\n"
         "race:grpc::internal::CallbackWithSuccessTag::Clear\n"
         "race:grpc::internal::CallbackWithSuccessTag::Set\n"
         "race:~ServerCallbackReaderWriterImpl\n"
         "race:~ClientCallbackReaderWriterImpl\n"
         "race:grpc::internal::InterceptorBatchMethodsImpl::InterceptorBatchMethodsImpl\n"
         "race:grpc::internal::ServerCallbackCall::ServerCallbackCall\n"
         "race:PreBindBacklog::~PreBindBacklog\n"
         "race:grpc::internal::ServerCallbackCall::Unref\n"
         "race:grpc::internal::ServerCallbackCall::Ref\n"
         "race:grpc::internal::AlarmImpl\n";
}

#endif
