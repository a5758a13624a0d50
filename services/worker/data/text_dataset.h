// Text as samples for language models: some successive tokens each, with the token behind each of
// them to predict.
//
//   state zero      sample i is the tokens i*T .. i*T+T-1 of the text, its labels those one further
//   state carried   the text is cut into R streams of C samples each; sample i is sample i / R of
//                   stream i mod R. In the order of the text (without shuffling) and with R samples
//                   in a batch, each batch has one sample of each stream, and goes on where the
//                   batch before it ended
//
// What is left behind the last whole sample (of each stream) is not used.
#ifndef SLUICE_SERVICES_WORKER_DATA_TEXT_DATASET_H_
#define SLUICE_SERVICES_WORKER_DATA_TEXT_DATASET_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/vocabulary.h"

namespace sluice {

// See OpenDataset. Both splits read the training text, unless text.vocabulary names a file.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTextDataset(const v1::DataSpec& spec, Split split);

// The words of a job's text: those of the file text.vocabulary, or learnt from the training text.
// Errors as OpenDataset.
absl::StatusOr<Vocabulary> OpenVocabulary(const v1::DataSpec& spec);

// Has a job's text use the same words for ever: takes those of the file `path` if there is one, and
// writes it otherwise (whole or not at all; who comes second takes the first one's). From then on
// `spec` names the file. Does nothing for other formats than Text.
//
// InvalidArgument if `spec` names a vocabulary and its words differ from those of `path`: a model
// trained on the latter would take one word for another. Else errors as OpenDataset, or what
// writing gave.
absl::Status KeepVocabulary(const std::string& path, v1::DataSpec* spec);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_TEXT_DATASET_H_
