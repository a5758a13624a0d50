#ifndef SLUICE_SERVICES_WORKER_DESCRIBE_H_
#define SLUICE_SERVICES_WORKER_DESCRIBE_H_

#include "services/worker/worker_process.h"

namespace sluice::worker {

// `sluice-worker describe --job FILE --output FILE`: opens a job's model and data, as a worker does
// before it registers, and writes a Description message to a file: what the worker would report,
// and the traffic between the stages of server-side execution. Returns the exit code. Run by
// `sluice plan` and `sluice import`, which do not link LibTorch.
int DescribeMain(int argc, char** argv, const EngineFactory& make_engine,
                 const DataFetcher& fetch_data);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_DESCRIBE_H_
