#include "tests/simulation/network.h"

#include <algorithm>
#include <utility>

namespace sluice::simulation {

Network::~Network() {
  // Handlers hold processes, which hold streams.
  for (const std::weak_ptr<Stream>& weak : all_) {
    if (StreamRef stream = weak.lock()) {
      stream->client = {};
      stream->server = {};
      stream->on_frame = nullptr;
    }
  }
}

absl::Duration Network::Delay() {
  if (!calm_ && random_.OneIn(200)) {
    return random_.Between(absl::Milliseconds(5), absl::Milliseconds(80));
  }
  return random_.Between(absl::Microseconds(100), absl::Milliseconds(2));
}

void Network::Open(std::shared_ptr<Process> client, std::function<std::shared_ptr<Process>()> find,
                   std::function<void(StreamRef)> accept, std::function<void(StreamRef)> connected,
                   std::function<void()> refused) {
  scheduler_.After(Delay(), [this, client, find = std::move(find), accept = std::move(accept),
                             connected = std::move(connected), refused = std::move(refused)] {
    std::shared_ptr<Process> server = find();
    if (AreApart(client, server)) {
      opens_.push_back([=] { Open(client, find, accept, connected, refused); });
      return;
    }
    if (server == nullptr || !server->alive() || !client->alive()) {
      scheduler_.After(Delay(), [client, refused] { client->Handle(refused); });
      return;
    }
    auto stream = std::make_shared<Stream>();
    stream->id = ++last_id_;
    stream->client.process = client;
    stream->server.process = server;
    stream->client.on_closed = refused;  // until the client is connected
    Forget();
    all_.push_back(stream);
    streams_.push_back(stream);
    server->Handle([stream, accept] { accept(stream); });
    ToClient(stream, [stream, connected] { connected(stream); });
  });
}

void Network::ToServer(const StreamRef& stream, std::function<void()> deliver) {
  if (stream->cut || !stream->client.open) return;
  stream->server.last_arrival =
      std::max(stream->server.last_arrival, scheduler_.now() + Delay()) + absl::Nanoseconds(1);
  scheduler_.At(stream->server.last_arrival, [this, stream, deliver = std::move(deliver)] {
    Arrive(stream, /*client=*/false, [stream, deliver] {
      if (stream->lost_to_server) return;
      stream->server.process->Handle([stream, deliver] {
        if (stream->server.open) deliver();
      });
    });
  });
}

void Network::ToClient(const StreamRef& stream, std::function<void()> deliver) {
  if (stream->cut || !stream->server.open) return;
  stream->client.last_arrival =
      std::max(stream->client.last_arrival, scheduler_.now() + Delay()) + absl::Nanoseconds(1);
  scheduler_.At(stream->client.last_arrival, [this, stream, deliver = std::move(deliver)] {
    Arrive(stream, /*client=*/true, [stream, deliver] {
      if (stream->lost_to_client) return;
      stream->client.process->Handle([stream, deliver] {
        if (stream->client.open) deliver();
      });
    });
  });
}

// ---- isolated processes

absl::Duration Network::ResendDelay() {
  return random_.Between(absl::ZeroDuration(), absl::Milliseconds(300));
}

bool Network::AreApart(const std::shared_ptr<Process>& a, const std::shared_ptr<Process>& b) const {
  const auto is_cut_from = [this](const auto& isolated, const auto& other) {
    const auto found = isolated_.find(isolated);
    return found != isolated_.end() && found->second.count(other.get()) == 0;
  };
  return is_cut_from(a, b) || is_cut_from(b, a);
}

bool Network::IsHeld(const Stream& stream, const Stream::End& to) const {
  return scheduler_.now() < to.resumes || !to.held.empty() ||
         AreApart(stream.client.process, stream.server.process);
}

void Network::Arrive(const StreamRef& stream, bool client, std::function<void()> arrival) {
  Stream::End& to = client ? stream->client : stream->server;
  if (IsHeld(*stream, to)) {
    to.held.push_back(std::move(arrival));
  } else {
    arrival();
  }
}

void Network::Heal(const std::shared_ptr<Process>& process) {
  isolated_.erase(process);
  for (const std::weak_ptr<Stream>& weak : all_) {
    const StreamRef stream = weak.lock();
    if (stream == nullptr ||
        (stream->client.process != process && stream->server.process != process)) {
      continue;
    }
    for (const bool client : {true, false}) {
      Stream::End& to = client ? stream->client : stream->server;
      to.resumes = scheduler_.now() + ResendDelay();
      scheduler_.At(to.resumes, [this, stream, client] { Resume(stream, client); });
    }
  }
  for (std::function<void()>& open : std::exchange(opens_, {})) {
    scheduler_.After(ResendDelay(), std::move(open));
  }
}

void Network::Resume(const StreamRef& stream, bool client) {
  Stream::End& to = client ? stream->client : stream->server;
  if (AreApart(stream->client.process, stream->server.process)) return;
  while (!to.held.empty()) {
    const std::function<void()> arrival = std::move(to.held.front());
    to.held.pop_front();
    arrival();
  }
}

void Network::BreakIsolated(const Process& process) {
  for (const StreamRef& stream : std::vector<StreamRef>(streams_)) {
    const bool ends_here =
        stream->client.process.get() == &process || stream->server.process.get() == &process;
    if (!ends_here || !AreApart(stream->client.process, stream->server.process)) continue;
    stream->cut = stream->lost_to_client = stream->lost_to_server = true;
    for (const bool client : {true, false}) {
      Notify(stream, client, random_.Between(absl::ZeroDuration(), absl::Milliseconds(300)),
             /*local=*/true);
    }
  }
}

void Network::CloseByClient(const StreamRef& stream) {
  if (!stream->client.open) return;
  stream->client.open = false;
  Notify(stream, /*client=*/false, Delay());
}

void Network::CloseByServer(const StreamRef& stream) {
  if (!stream->server.open) return;
  stream->server.open = false;
  Notify(stream, /*client=*/true, Delay());
}

void Network::Cut(const StreamRef& stream) {
  if (stream->cut) return;
  stream->cut = true;
  stream->lost_to_client = random_.OneIn(2);
  stream->lost_to_server = random_.OneIn(2);
  for (bool client : {true, false}) {
    const bool slow = random_.OneIn(4);
    Notify(stream, client,
           random_.Between(absl::Microseconds(100),
                           slow ? absl::Milliseconds(800) : absl::Milliseconds(5)));
  }
}

void Network::CutAll(const Process& process) {
  for (const StreamRef& stream : std::vector<StreamRef>(streams_)) {
    if (stream->client.process.get() == &process || stream->server.process.get() == &process) {
      Cut(stream);
    }
  }
  // Its machine answers for an isolated process that has died.
  for (const auto& [isolated, spared] : isolated_) {
    if (isolated.get() != &process || process.alive()) continue;
    Heal(std::shared_ptr<Process>(isolated));
    return;
  }
}

void Network::CutSome(const Process& process) {
  for (const StreamRef& stream : std::vector<StreamRef>(streams_)) {
    if (stream->client.process.get() != &process && stream->server.process.get() != &process) {
      continue;
    }
    if (random_.OneIn(2)) Cut(stream);
  }
}

StreamRef Network::Pick() {
  Forget();
  return streams_.empty() ? nullptr : streams_[random_.Below(streams_.size())];
}

// `local`: the end notices by itself.
void Network::Notify(const StreamRef& stream, bool client, absl::Duration delay, bool local) {
  Stream::End& end = client ? stream->client : stream->server;
  end.last_arrival = std::max(end.last_arrival, scheduler_.now() + delay) + absl::Nanoseconds(1);
  const auto close = [stream, client] {
    Stream::End& end = client ? stream->client : stream->server;
    end.process->Handle([stream, client] {
      Stream::End& end = client ? stream->client : stream->server;
      if (!end.open) return;
      end.open = false;
      if (end.on_closed) end.on_closed();
    });
  };
  scheduler_.At(end.last_arrival, [this, stream, client, local, close] {
    if (local) {
      close();
    } else {
      Arrive(stream, client, close);
    }
  });
}

void Network::Forget() {
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const StreamRef& stream) {
                                  return stream->cut ||
                                         (!stream->client.open && !stream->server.open);
                                }),
                 streams_.end());
}

}  // namespace sluice::simulation
