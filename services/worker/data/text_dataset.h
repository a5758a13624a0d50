// Text as samples for language models: some successive tokens each; the labels are the tokens that
// follow each of them.
//
//   state zero      sample i is the tokens i*T .. i*T+T-1 of the text, its labels those one further
//   state carried   the text is cut into R streams of C samples each; sample i is sample i / R of
//                   stream i mod R. In the order of the text (without shuffling) and with R samples
//                   in a batch, each batch has one sample of each stream, and continues where the
//                   batch before it ended
//
// The text after the last whole sample (of each stream) is not used.
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

// The vocabulary of a job's text: the words of the file text.vocabulary, or those learned from the
// training text. Errors as for OpenDataset.
absl::StatusOr<Vocabulary> OpenVocabulary(const v1::DataSpec& spec);

// Makes a job's text always use the same vocabulary: takes the words of the file `path` if it
// exists, and writes it otherwise (completely or not at all; if two workers write at once, the
// second uses the first one's file). From then on `spec` names the file. Does nothing for formats
// other than Text.
//
// InvalidArgument if `spec` names a vocabulary and its words differ from those of `path`: a model
// trained on the latter would confuse words. Otherwise the errors of OpenDataset or of writing.
absl::Status KeepVocabulary(const std::string& path, v1::DataSpec* spec);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_TEXT_DATASET_H_
