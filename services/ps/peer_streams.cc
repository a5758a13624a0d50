#include "services/ps/peer_streams.h"

#include <algorithm>

namespace sluice::ps {

PeerStreams::PeerStreams(CoreShell<ShardCore>* shell, StreamServer* server, SerialExecutor* closer,
                         std::shared_ptr<const security::TransportSecurity> security, Logger logger)
    : shell_(shell),
      server_(server),
      closer_(closer),
      security_(std::move(security)),
      logger_(std::move(logger)) {}

void PeerStreams::Send(SendToShard send) {
  Peer& peer = peers_[send.shard.incarnation()];
  if (peer.stream != nullptr && peer.connected) {
    peer.waiting.emplace_back(std::move(send.header), std::move(send.payload));
    SendWaiting(peer);
    return;
  }

  peer.address = std::move(send.address);
  peer.process = std::move(send.shard);
  if (peer.stream == nullptr && peer.retry_at == absl::InfiniteFuture()) Open(peer);
}

absl::Time PeerStreams::Retry(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [incarnation, peer] : peers_) {
    if (peer.retry_at <= now) Open(peer);
    next = std::min(next, peer.retry_at);
  }
  return next;
}

void PeerStreams::Open(Peer& peer) {
  const uint64_t incarnation = peer.process.incarnation();
  const uint64_t connection = ++last_connection_;
  peer.connection = connection;
  peer.retry_at = absl::InfiniteFuture();
  peer.connected = false;

  StreamClient::Options options;
  options.address = peer.address;
  options.loop = server_->loop();
  options.credentials = security::ChannelCredentialsOf(security_);

  peer.stream = StreamClient::Connect(
      options,
      {.on_frames =
           [this, incarnation, connection](const std::vector<DecodedFrame>& frames) {
             for (const DecodedFrame& frame : frames) {
               shell_->Event([this, incarnation, connection, header = frame.header](
                                 ShardCore&, absl::Time now) {
                 OnFrame(incarnation, connection, header, now);
               });
             }
           },
       .on_broken =
           [this, incarnation, connection](const absl::Status& why) {
             shell_->Event([this, incarnation, connection, why](ShardCore&, absl::Time now) {
               OnBroken(incarnation, connection, why, now);
             });
           }});
  peer.stream->Send(shell_->core().MakeHello(peer.process));
}

void PeerStreams::OnFrame(uint64_t incarnation, uint64_t connection, const v1::Header& header,
                          absl::Time now) {
  Peer* const peer = Find(incarnation, connection);
  if (peer == nullptr || peer->stream == nullptr) return;

  if (header.has_hello_reply()) {
    peer->connected = true;
    peer->window = peer->credit = header.hello_reply().window_bytes();
    peer->backoff.Reset();
    shell_->core().OnShardConnected(incarnation, now);
  } else if (header.has_credit()) {
    peer->credit = std::min(peer->window, peer->credit + header.credit().bytes());
    SendWaiting(*peer);
  }
}

void PeerStreams::SendWaiting(Peer& peer) {
  while (!peer.waiting.empty() && peer.waiting.front().second.size() <= peer.credit) {
    auto& [header, payload] = peer.waiting.front();
    peer.credit -= payload.size();
    peer.stream->Send(header, std::move(payload));
    peer.waiting.pop_front();
  }
}

void PeerStreams::OnBroken(uint64_t incarnation, uint64_t connection, const absl::Status& why,
                           absl::Time now) {
  Peer* const peer = Find(incarnation, connection);
  if (peer == nullptr) return;
  logger_.Info("Stream to another shard broke", {{"why", why.ToString()}});
  // This may run in the stream's own callback.
  closer_->Post([stream = std::move(peer->stream)] {});
  peer->connected = false;
  peer->waiting.clear();

  // Another instance of the shard answers, or the view is without it: it will not return.
  if (absl::IsNotFound(why) || !shell_->core().HasShard(incarnation)) {
    peers_.erase(incarnation);
  } else {
    peer->retry_at = now + peer->backoff.Next(random_);
  }
}

PeerStreams::Peer* PeerStreams::Find(uint64_t incarnation, uint64_t connection) {
  const auto found = peers_.find(incarnation);
  if (found == peers_.end() || found->second.connection != connection) return nullptr;
  return &found->second;
}

}  // namespace sluice::ps
