#include "grpc_ping.hpp"

#include <grpcpp/grpcpp.h>

#include <cstdio>

#include "freeride/base/clock.hpp"
#include "ping.grpc.pb.h"

namespace freeride::bench {
namespace {

class Service final : public Ping::Service {
  grpc::Status Call(grpc::ServerContext*, const Beat* request, Beat* reply) override {
    reply->set_number(request->number());
    return grpc::Status::OK;
  }
};

}  // namespace

int serve_ping(const std::string& socket) {
  Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::puts("ready");
  std::fflush(stdout);
  server->Wait();
  return 0;
}

struct PingClient::Impl {
  explicit Impl(const std::string& socket)
      : stub(Ping::NewStub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()))) {}
  std::unique_ptr<Ping::Stub> stub;
  uint64_t number = 0;
};

PingClient::PingClient(const std::string& socket) : impl_(std::make_unique<Impl>(socket)) {}
PingClient::~PingClient() = default;

int64_t PingClient::call() {
  Beat request, reply;
  request.set_number(++impl_->number);
  const int64_t begin = SteadyClock::now();
  grpc::ClientContext context;
  const bool ok = impl_->stub->Call(&context, request, &reply).ok() && reply.number() == impl_->number;
  return ok ? SteadyClock::now() - begin : -1;
}

}  // namespace freeride::bench
