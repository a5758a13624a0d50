// `sluice-worker export-torchscript`: run by `sluice export`, which does not link LibTorch.
#ifndef SLUICE_SERVICES_WORKER_EXPORT_H_
#define SLUICE_SERVICES_WORKER_EXPORT_H_

namespace sluice::worker {

// Like main, for a command line whose first argument is the command. Writes a TorchScript model
// with the values of a safetensors file. Returns the exit code.
int ExportMain(int argc, char** argv);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_EXPORT_H_
