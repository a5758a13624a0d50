// Peers' data on streams: frames, blocks in their encodings, rows, tables of tensors.
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/common/io/page_server.h"
#include "services/coordinator/core/decisions/model_difference.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/protocol/row_selection.h"
#include "services/protocol/stages.h"
#include "services/transport/frames/frame.h"
#include "services/transport/frames/frame_wire.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/status_check.h"

namespace sluice::fuzz {
namespace {

// ---------------------------------------------------------------- frames

// Shared memory of two pages, whose places a peer may name.
class TwoPages final : public SharedPayloads {
 public:
  absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) override {
    if (place.offset() > bytes_.size() || place.bytes() > bytes_.size() - place.offset()) {
      return absl::InvalidArgumentError("no such place");
    }
    return absl::Cord(absl::string_view(bytes_).substr(place.offset(), place.bytes()));
  }

 private:
  const std::string bytes_ = std::string(8192, 'p');
};

grpc::ByteBuffer InSlices(absl::string_view bytes, size_t slice) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice) {
    const absl::string_view piece = bytes.substr(at, slice);
    slices.emplace_back(piece.data(), piece.size());
  }
  return {slices.data(), slices.size()};
}

void CheckRoundTrip(const DecodedFrame& frame) {
  SLUICE_CHECK(frame.payload.size() <= kMaxPayloadBytes, "payloads are within the limit");
  SLUICE_CHECK(CheckPayloadSize(frame.header, frame.payload.size()).ok(),
               "a decoded frame's payload matches its blocks");
  const absl::StatusOr<DecodedFrame> again = DecodeFrame(
      EncodeFrameToCord(frame.header, frame.payload), {.max_header_bytes = 2 * kMaxHeaderBytes});
  SLUICE_CHECK(again.ok(), "a decoded frame can be encoded");
  SLUICE_CHECK(again->header.SerializeAsString() == frame.header.SerializeAsString(),
               "headers survive a round trip");
  SLUICE_CHECK(again->payload == frame.payload, "payloads survive a round trip");
}

bool RunFrame(absl::string_view input) {
  TwoPages pages;
  const size_t chunk = 1 + input.size() % 97;
  const absl::StatusOr<std::vector<DecodedFrame>> frames =
      DecodeFrames(InChunks(input, chunk), {}, &pages);
  const absl::StatusOr<std::vector<DecodedFrame>> received =
      DecodeFrames(InSlices(input, chunk), {}, &pages);
  SLUICE_CHECK(frames.status().code() == received.status().code(),
               "a frame decodes alike from a Cord and from gRPC's slices");
  // Without shared memory a frame that refers to it is refused, and any other decodes alike.
  (void)DecodeFrames(InChunks(input, chunk)).ok();
  if (!CheckedOk(frames.status())) return false;
  SLUICE_CHECK(!frames->empty() && frames->size() <= kMaxBatchFrames, "a batch is bounded");
  SLUICE_CHECK(frames->size() == received->size(), "as many frames");
  for (const DecodedFrame& frame : *frames) CheckRoundTrip(frame);
  return true;
}

v1::Header HeaderInView() {
  v1::Header header;
  header.mutable_view()->set_attempt(1);
  header.mutable_view()->mutable_term()->set_counter(1);
  header.mutable_view()->mutable_term()->set_coordinator(77);
  header.mutable_view()->set_number(2);
  return header;
}

std::vector<std::string> FrameSeeds() {
  v1::Header push = HeaderInView();
  push.mutable_push()->set_step(3);
  push.mutable_push()->mutable_microbatches()->set_end(2);
  push.mutable_push()->add_complete(0);
  v1::BlockHeader& block = *push.mutable_push()->add_blocks();
  block.set_payload_bytes(16);
  v1::Header pull = HeaderInView();
  pull.mutable_pull()->set_version(4);
  pull.mutable_pull()->add_rows()->set_count(2);
  v1::Header hello;
  hello.mutable_hello()->set_max_wire_version(1);
  hello.mutable_hello()->set_job("default/mnist/1");
  hello.mutable_hello()->mutable_sender()->set_role(v1::WORKER);
  hello.mutable_hello()->mutable_shared_memory()->set_half_bytes(4096);
  v1::Header init = HeaderInView();
  init.mutable_init_push()->set_last(true);
  init.mutable_init_push()->add_blocks()->set_payload_bytes(4096);
  v1::SharedPayload place;
  place.set_offset(4096);
  place.set_bytes(4096);

  std::vector<std::string> seeds = {
      std::string(EncodeFrameToCord(push, absl::Cord(std::string(16, 'x')))),
      std::string(EncodeFrameToCord(pull, absl::Cord(std::string(16, '\1')))),
      std::string(EncodeFrameToCord(hello, absl::Cord())),
      EncodeSharedFrame(init, place),
  };
  std::string batch;
  for (const std::string& frame : std::vector<std::string>(seeds.begin(), seeds.begin() + 3)) {
    absl::StrAppend(&batch, EncodeBatchPrefix(frame.size()), frame);
  }
  seeds.push_back(batch);
  return seeds;
}

// ---------------------------------------------------------------- codecs

// An input has the codec, data type and number of elements (2 bytes), then the payload.
constexpr size_t kMaxElements = 2048;

// Elements in their own memory, all bytes the same.
struct Memory {
  Memory(v1::DataType dtype, size_t count, uint8_t fill)
      : words(count + 1), elements(dtype, words.data(), count) {
    std::memset(words.data(), fill, words.size() * sizeof(uint64_t));
  }
  std::vector<uint64_t> words;
  Elements elements;
};

bool RunCodec(absl::string_view input) {
  ByteSource bytes(input);
  const auto id = static_cast<v1::Codec>(bytes.Byte());
  const auto dtype = static_cast<v1::DataType>(bytes.Byte());
  const size_t count = bytes.Number(2) % (kMaxElements + 1);
  const absl::string_view flat = bytes.Rest();
  const absl::Cord payload = InChunks(flat, 1 + flat.size() % 61);
  const absl::StatusOr<const Codec*> codec = FindCodec(id);
  if (!codec.ok()) return false;
  const absl::Status valid = (*codec)->Validate(payload, dtype, count);

  Memory values(dtype, count, 0xa5);
  const std::vector<uint64_t> before = values.words;
  const absl::Status decoded = (*codec)->Decode(payload, values.elements);
  SLUICE_CHECK(decoded.ok() == valid.ok(), "Validate agrees with Decode");
  SLUICE_CHECK(decoded.ok() || values.words == before, "a call that fails has written nothing");

  Memory sums(ComputeDataType(dtype), count, 0);
  const std::vector<uint64_t> zeros = sums.words;
  const absl::Status added = (*codec)->DecodeAdd(payload, dtype, sums.elements);
  SLUICE_CHECK(valid.ok() || !added.ok(), "Validate agrees with DecodeAdd");
  SLUICE_CHECK(added.ok() == (valid.ok() && IsFloatingPoint(dtype)),
               "only floating point can be added");
  SLUICE_CHECK(added.ok() || sums.words == zeros, "a call that fails has written nothing");
  if (!CheckedOk(valid)) return false;

  // Decoded elements can be encoded, into at most as many bytes as promised.
  const absl::StatusOr<size_t> most = (*codec)->EncodedBytes(count, dtype);
  SLUICE_CHECK(most.ok(), "a type that can be decoded can be encoded");
  std::string encoded(*most, '\0');
  const absl::StatusOr<size_t> length = (*codec)->Encode(
      ConstElements(dtype, values.words.data(), count), absl::MakeSpan(&encoded[0], *most));
  SLUICE_CHECK(length.ok() && *length <= *most, "EncodedBytes bounds the output of Encode");
  SLUICE_CHECK(
      (*codec)
          ->Validate(absl::Cord(absl::string_view(encoded).substr(0, *length)), dtype, count)
          .ok(),
      "the output of Encode is valid");
  return true;
}

std::vector<std::string> CodecSeeds() {
  std::vector<std::string> seeds;
  std::vector<float> values(600);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 8;
  for (int id = 0; id < v1::Codec_ARRAYSIZE; ++id) {
    const Codec& codec = **FindCodec(static_cast<v1::Codec>(id));
    for (size_t count : {size_t{1}, size_t{20}, values.size()}) {
      const ConstElements elements(v1::FLOAT32, values.data(), count);
      std::string encoded(*codec.EncodedBytes(count, v1::FLOAT32), '\0');
      encoded.resize(*codec.Encode(elements, absl::MakeSpan(&encoded[0], encoded.size())));
      seeds.push_back(
          absl::StrCat(std::string{static_cast<char>(id), static_cast<char>(v1::FLOAT32),
                                   static_cast<char>(count), static_cast<char>(count >> 8)},
                       encoded));
    }
  }
  // Rows 1 and 3 of a block of eight rows of four.
  const RowCut cut{4, 2, 30};
  const std::vector<uint64_t> rows = {1, 3};
  const absl::Cord some = EncodeRowsOfBlock(
      cut, rows, v1::FLOAT32, {reinterpret_cast<const char*>(values.data()), 30 * sizeof(float)});
  seeds.push_back(absl::StrCat(std::string{v1::CODEC_ROWS, v1::FLOAT32, 30, 0}, std::string(some)));
  return seeds;
}

// ---------------------------------------------------------------- rows that a Pull names

v1::TensorTable TableWithMatrices() {
  v1::TensorTable table;
  const auto add = [&](const char* name, const std::vector<int64_t>& shape) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::FLOAT32);
    for (int64_t extent : shape) tensor.add_shape(extent);
  };
  add("embedding.weight", {1000, 8});
  add("fc.weight", {64, 4});
  add("fc.bias", {4});
  return table;
}

// An input is the length of a Pull (2 bytes), the Pull, then the payload.
bool RunPullRows(absl::string_view input) {
  ByteSource bytes(input);
  v1::Pull pull;
  const absl::string_view header = bytes.Piece();
  if (!pull.ParseFromArray(header.data(), static_cast<int>(header.size()))) return false;
  const absl::string_view flat = bytes.Rest();
  const v1::TensorTable table = TableWithMatrices();
  const absl::StatusOr<RowSelections> selections =
      ReadSelections(pull, InChunks(flat, 1 + flat.size() % 23), table);
  if (!CheckedOk(selections.status())) return false;
  for (const auto& [tensor, rows] : *selections) {
    SLUICE_CHECK(tensor < static_cast<uint32_t>(table.tensors_size()), "the tensor exists");
    SLUICE_CHECK(std::is_sorted(rows.begin(), rows.end()), "rows ascend");
    SLUICE_CHECK(
        rows.empty() ||
            rows.back() < static_cast<uint64_t>(table.tensors(static_cast<int>(tensor)).shape(0)),
        "rows exist");
  }
  v1::Pull again = pull;
  again.clear_rows();
  const absl::Cord payload = AppendSelections(*selections, &again);
  const absl::StatusOr<RowSelections> read = ReadSelections(again, payload, table);
  SLUICE_CHECK(read.ok() && *read == *selections, "selections survive a round trip");
  return true;
}

std::string Behind(const std::string& header) {
  return absl::StrCat(
      std::string{static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)}, header);
}

std::vector<std::string> PullRowsSeeds() {
  v1::Pull pull;
  const absl::Cord payload = AppendSelections({{0, {1, 5, 999}}, {1, {}}}, &pull);
  return {absl::StrCat(Behind(pull.SerializeAsString()), std::string(payload)),
          Behind(v1::Pull().SerializeAsString())};
}

// ---------------------------------------------------------------- tables and layouts

// The lengths of both (2 bytes each), a worker's Ready, then a Layout. A coordinator reads the
// first from workers, and the second from checkpoint indexes.
bool RunLayout(absl::string_view input) {
  ByteSource bytes(input);
  v1::Ready ready;
  v1::Layout layout;
  const absl::string_view table_bytes = bytes.Piece();
  const absl::string_view layout_bytes = bytes.Piece();
  if (!ready.ParseFromArray(table_bytes.data(), static_cast<int>(table_bytes.size())) ||
      !layout.ParseFromArray(layout_bytes.data(), static_cast<int>(layout_bytes.size()))) {
    return false;
  }
  v1::Ready expected;
  *expected.mutable_table() = TableWithMatrices();
  (void)coordinator::Difference(expected, ready);
  (void)coordinator::Difference(ready, expected);
  SLUICE_CHECK(coordinator::Difference(ready, ready).empty(),
               "a table does not differ from itself");

  const v1::TensorTable& table = ready.table();
  if (!CheckedOk(ValidateTable(table))) return false;
  v1::ModelSpec model;
  model.add_stages()->add_layers("embedding");
  model.add_stages()->add_layers("fc");
  (void)StageOfTensors(table, model).ok();
  (void)CheckStagedLayout(table, model, layout).ok();
  uint64_t total = 0;
  for (const v1::TensorSpec& tensor : table.tensors()) {
    total += ElementCount(tensor) * ElementBytes(tensor.dtype());
  }
  // The layout of a large table is large, which is not a finding.
  if (total <= uint64_t{64} << 20) {
    const absl::StatusOr<v1::Layout> made = MakeLayout(table, 1 + layout.partitions() % 8);
    SLUICE_CHECK(made.ok() && ValidateLayout(table, *made).ok(), "a valid table has a layout");
  }
  if (!CheckedOk(ValidateLayout(table, layout))) return false;
  (void)LayoutHash(table, layout);
  const LayoutIndex index(table, layout);
  const std::vector<uint32_t> places = PlacePartitions(index, 3);
  SLUICE_CHECK(places.size() == index.partitions(), "every partition has a place");
  for (uint32_t place : places) SLUICE_CHECK(place < 3, "the place is a shard");
  return true;
}

std::vector<std::string> LayoutSeeds() {
  v1::Ready ready;
  *ready.mutable_table() = TableWithMatrices();
  ready.set_training_samples(1000);
  const v1::Layout layout = *MakeLayout(ready.table(), 4);
  return {absl::StrCat(Behind(ready.SerializeAsString()), Behind(layout.SerializeAsString()))};
}

// ---------------------------------------------------------------- requests for metrics and probes

// The answer of a server in this process to these bytes, after which the client's side is closed.
std::string AnswerTo(absl::string_view request) {
  static const int port = [] {
    auto server = PageServer::Start({}, {{"/metrics",
                                          [] {
                                            return PageServer::Answer{200, "steps 1\n"};
                                          }},
                                         {"/healthz", [] {
                                            return PageServer::Answer{503, "not yet\n"};
                                          }}});
    SLUICE_CHECK(server.ok(), "this machine has a loopback interface");
    // Serves until the process ends.
    static PageServer* const running = (*server).release();
    return running->port();
  }();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  SLUICE_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
               "the server listens");
  (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (ssize_t got = 0; (got = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return answer;
}

bool RunPageRequest(absl::string_view input) {
  const std::string answer = AnswerTo(input);
  SLUICE_CHECK(answer.empty() || absl::StartsWith(answer, "HTTP/1.1 "), "an answer is HTTP");
  // Whatever the previous client did.
  SLUICE_CHECK(absl::StartsWith(AnswerTo("GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 "),
               "the next client is served");
  return absl::StartsWith(answer, "HTTP/1.1 200 ");
}

std::vector<std::string> PageRequestSeeds() {
  return {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD /metrics?a=b HTTP/1.1\r\n\r\n"};
}

}  // namespace

std::vector<FuzzTarget> WireTargets() {
  return {
      {"frame", RunFrame, FrameSeeds, 8192,
       "services/transport/frames/frame_wire.cc services/transport/frames/frame.cc"},
      {"codec", RunCodec, CodecSeeds, 8192,
       "services/protocol/codec/codec.cc services/protocol/codec/checks.cc "
       "services/protocol/codec/float_codec.cc services/protocol/codec/half_precision.cc "
       "services/protocol/codec/int8.cc services/protocol/codec/one_bit.cc "
       "services/protocol/codec/raw.cc services/protocol/codec/rows.cc "
       "services/protocol/codec/sign_threshold.cc services/protocol/codec/top_k.cc"},
      {"pull_rows", RunPullRows, PullRowsSeeds, 4096, "services/protocol/row_selection.cc"},
      {"page_request", RunPageRequest, PageRequestSeeds, 4096, "services/common/io/page_server.cc"},
      {"layout", RunLayout, LayoutSeeds, 4096,
       "services/protocol/layout.cc services/protocol/stages.cc "
       "services/coordinator/core/decisions/model_difference.cc"},
  };
}

}  // namespace sluice::fuzz
