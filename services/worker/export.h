// `sluice-worker export-torchscript`: what `sluice export` starts, since LibTorch is linked here
// only.
#ifndef SLUICE_SERVICES_WORKER_EXPORT_H_
#define SLUICE_SERVICES_WORKER_EXPORT_H_

namespace sluice::worker {

// As main, for a command line whose first argument is the command. Writes a TorchScript model with
// the values of a safetensors file. Returns the exit code.
int ExportMain(int argc, char** argv);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_EXPORT_H_
