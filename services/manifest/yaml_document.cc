#include "services/manifest/yaml_document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/common/text/wide_encoding.h"

namespace sluice::api {
namespace {

constexpr size_t kMaxShownBytes = 60;

Place ToPlace(const YAML::Mark& mark) { return Place{mark.line + 1, mark.column + 1}; }

// Thrown by the builder to stop the parser; never leaves this file.
struct StopReading : std::exception {};

// Length of the UTF-8 sequence at the start of `text`; 0 if it is invalid, or a control character.
size_t ValidSequence(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    const bool control =
        (first < 0x20 && first != '\t' && first != '\n' && first != '\r') || first == 0x7f;
    return control ? 0 : 1;
  }
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && byte(1) < 0xa0) return 0;  // overlong
  if (first == 0xed && byte(1) > 0x9f) return 0;  // surrogates
  if (first == 0xf0 && byte(1) < 0x90) return 0;  // overlong
  if (first == 0xf4 && byte(1) > 0x8f) return 0;  // past U+10FFFF
  return length;
}

// Finds the first byte that YAML does not allow; yaml-cpp accepts them.
bool FindInvalidByte(absl::string_view text, Place* place) {
  *place = Place{1, 1};
  while (!text.empty()) {
    const size_t length = ValidSequence(text);
    if (length == 0) return true;
    if (text[0] == '\n') {
      ++place->line;
      place->column = 1;
    } else {
      ++place->column;
    }
    text.remove_prefix(length);
  }
  return false;
}

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// [0-9]+(\.[0-9]*)? or \.[0-9]+, then an optional exponent.
bool IsDecimal(absl::string_view text) {
  const size_t e = text.find_first_of("eE");
  if (e != absl::string_view::npos) {
    absl::string_view exponent = text.substr(e + 1);
    if (!exponent.empty() && (exponent[0] == '+' || exponent[0] == '-')) exponent.remove_prefix(1);
    if (!AllDigits(exponent)) return false;
    text = text.substr(0, e);
  }
  const size_t dot = text.find('.');
  if (dot == absl::string_view::npos) return AllDigits(text);
  const absl::string_view whole = text.substr(0, dot);
  const absl::string_view fraction = text.substr(dot + 1);
  if (whole.empty()) return AllDigits(fraction);
  return AllDigits(whole) && (fraction.empty() || AllDigits(fraction));
}

// The first line up to the given one that is indented with a tab; 0: none.
int LineWithTab(absl::string_view text, int last) {
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++number > last) break;
    const size_t indentation = std::min(line.find_first_not_of(" \t"), line.size());
    if (absl::StrContains(line.substr(0, indentation), '\t')) return number;
  }
  return 0;
}

// Translates an error of yaml-cpp into a message that says how to fix it. yaml-cpp notices most
// mistakes only where the surrounding structure ends.
Problem Explain(const std::string& found, Place at, absl::string_view text) {
  const auto invalid = [](Place place, absl::string_view why) {
    return Problem{place, "", absl::StrCat("not valid YAML: ", why)};
  };
  const std::pair<const char*, const char*> known[] = {
      {YAML::ErrorMsg::DOC_IN_SCALAR, "a quoted string is not closed"},
      {YAML::ErrorMsg::END_OF_SEQ_FLOW, "a `[` of this line or one above it is not closed"},
      {YAML::ErrorMsg::END_OF_MAP_FLOW, "a `{` of this line or one above it is not closed"},
      {YAML::ErrorMsg::END_OF_MAP, "the line is not indented like the lines around it"},
      {YAML::ErrorMsg::END_OF_SEQ, "the line is not indented like the lines around it"},
      {YAML::ErrorMsg::MAP_VALUE,
       "a `:` is not allowed here: quote a value that contains one, and begin a new line for each "
       "field"},
  };
  const auto* entry = std::find_if(std::begin(known), std::end(known),
                                   [&](const auto& entry) { return found == entry.first; });
  if (entry != std::begin(known)) {  // a quoted string may contain tabs
    if (const int line = LineWithTab(text, at.line); line > 0) {
      return invalid(Place{line, 1}, "the line is indented with a tab; YAML allows only spaces");
    }
  }
  return invalid(at, entry == std::end(known) ? found : entry->second);
}

}  // namespace

YamlKind ResolvePlainScalar(absl::string_view text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return YamlKind::kNull;
  }
  for (absl::string_view word : {"true", "false", "yes", "no", "on", "off"}) {
    const std::string capital =
        absl::StrCat(absl::AsciiStrToUpper(word.substr(0, 1)), word.substr(1));
    if (text == word || text == capital || text == absl::AsciiStrToUpper(word)) {
      return YamlKind::kBoolean;
    }
  }
  absl::string_view number = text;
  if (number[0] == '+' || number[0] == '-') number.remove_prefix(1);
  const std::string lower = absl::AsciiStrToLower(number);
  if (lower == ".inf" || lower == ".nan") return YamlKind::kNumber;
  if (AllDigits(number)) return YamlKind::kInteger;
  if (absl::StartsWith(lower, "0x") || absl::StartsWith(lower, "0o") ||
      absl::StartsWith(lower, "0b")) {
    const bool digits = lower.size() > 2 && std::all_of(lower.begin() + 2, lower.end(), [](char c) {
                          return absl::ascii_isxdigit(c) || c == '_';
                        });
    return digits ? YamlKind::kInteger : YamlKind::kString;
  }
  if (IsDecimal(number)) return YamlKind::kNumber;
  return YamlKind::kString;
}

YamlToken YamlTokens::Find(const YamlToken& parent, const std::string& name) const {
  const auto found = tokens_.find({parent.node, name});
  return found == tokens_.end() ? YamlToken{parent.name, parent.place, "", 0} : found->second;
}

// Turns yaml-cpp's events into the values of a document.
class YamlTreeBuilder : public YAML::EventHandler {
 public:
  explicit YamlTreeBuilder(YamlDocument* document) : document_(document) {}

  void OnDocumentStart(const YAML::Mark&) override {
    anchors_.clear();
    open_.clear();
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Finish(NewValue(mark, nullptr), anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const bool plain = tag == "?" || tag.empty();
    if (!plain && tag != "!" && tag != "tag:yaml.org,2002:str") RefuseTag(mark, tag);
    Value value = NewValue(mark, plain ? PlainScalar(text) : Json(text));
    value.token.text = text;
    value.size += text.size();
    Finish(std::move(value), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) Stop(mark, "this alias refers to a value that contains it");
    repeated_ += found->second.size;
    if (repeated_ > kMaxYamlRepeated) {
      Stop(mark, absl::StrCat("the aliases up to here repeat more than ", kMaxYamlRepeated,
                              " values and characters; write fewer"));
    }
    Value value = found->second;
    value.token.name = ToPlace(mark);
    Add(std::move(value));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Begin(mark, tag, anchor, Json::array());
  }
  void OnSequenceEnd() override { End(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Begin(mark, tag, anchor, Json::object());
  }
  void OnMapEnd() override { End(); }

 private:
  using Json = nlohmann::json;

  struct Value : YamlValue {
    size_t size = 1;  // values, and characters of names and scalars
  };
  struct Open {
    Value value;
    YAML::anchor_t anchor;
    std::optional<Value> key = std::nullopt;  // of a map: read, its value not yet
    std::vector<Value> merged = {};
  };

  static Json PlainScalar(const std::string& text) {
    switch (ResolvePlainScalar(text)) {
      case YamlKind::kNull:
        return nullptr;
      case YamlKind::kBoolean:
        return absl::EqualsIgnoreCase(text, "true") || absl::EqualsIgnoreCase(text, "yes") ||
               absl::EqualsIgnoreCase(text, "on");
      case YamlKind::kInteger:
      case YamlKind::kNumber: {
        double number = 0;
        return absl::SimpleAtod(text, &number) ? number : std::nan("");
      }
      case YamlKind::kString:
        break;
    }
    return text;
  }

  [[noreturn]] void Stop(const YAML::Mark& mark, std::string message) {
    document_->problems.push_back({ToPlace(mark), "", std::move(message)});
    throw StopReading();
  }

  void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag == "?" || tag == "!" || tag.empty()) return;
    if (tag == "tag:yaml.org,2002:map" || tag == "tag:yaml.org,2002:seq") return;
    Stop(mark, absl::StrCat("YAML tags like ", absl::Utf8SafeCEscape(tag.substr(0, kMaxShownBytes)),
                            " are not supported; leave it out"));
  }

  Value NewValue(const YAML::Mark& mark, Json json) {
    if (++values_ > kMaxYamlValues) {
      Stop(mark, absl::StrCat("the text has more than ", kMaxYamlValues, " values"));
    }
    Value value;
    value.json = std::move(json);
    value.token.name = value.token.place = ToPlace(mark);
    return value;
  }

  void Begin(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Json empty) {
    RefuseTag(mark, tag);
    if (open_.size() >= kMaxYamlDepth) {
      Stop(mark, absl::StrCat("nested deeper than ", kMaxYamlDepth, " levels"));
    }
    open_.push_back({NewValue(mark, std::move(empty)), anchor});
    open_.back().value.token.node = values_;
  }

  void End() {
    Open done = std::move(open_.back());
    open_.pop_back();
    for (const Value& from : done.merged) {
      done.value.size += from.size;
      for (const auto& [name, json] : from.json.items()) {
        if (done.value.json.contains(name)) continue;
        Put(name, {{json, document_->tokens.Find(from.token, name)}}, &done.value);
      }
    }
    Finish(std::move(done.value), done.anchor);
  }

  void Finish(Value value, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = value;
    Add(std::move(value));
  }

  // Hands a finished value to the one that contains it.
  void Add(Value value) {
    if (open_.empty()) {
      if (!value.json.is_null()) document_->roots.push_back(std::move(value));
      return;
    }
    Open& parent = open_.back();
    if (parent.value.json.is_array()) {
      value.token.name = value.token.place;
      Put(absl::StrCat("[", parent.value.json.size(), "]"), std::move(value), &parent.value);
    } else if (!parent.key.has_value()) {
      parent.key = std::move(value);
    } else {
      AddEntry(*std::exchange(parent.key, std::nullopt), std::move(value), &parent);
    }
  }

  void AddEntry(const Value& key, Value value, Open* parent) {
    const Place place = key.token.name;
    if (key.json.is_structured()) {
      AddProblem(place, "", "must be a name, not a list or map");
      return;
    }
    if (key.token.text == "<<" && value.json.is_object()) return Merge(place, value, parent);
    const std::string name = key.json.is_null() ? "null" : key.token.text;
    if (parent->value.json.contains(name)) {
      const Place first = document_->tokens.Find(parent->value.token, name).name;
      AddProblem(place, absl::Utf8SafeCEscape(name.substr(0, kMaxShownBytes)),
                 absl::StrCat("given twice; first on line ", first.line));
      return;
    }
    if (parent->value.json.size() >= kMaxEntries) {
      AddProblem(place, "", absl::StrCat("a map of more than ", kMaxEntries, " names"));
      throw StopReading();
    }
    value.token.name = place;
    Put(name, std::move(value), &parent->value);
  }

  // `<<: *other`: adds the names that the map does not have itself.
  void Merge(Place place, const Value& value, Open* parent) {
    merged_ += value.json.size();
    if (merged_ > kMaxEntries) {
      AddProblem(place, "<<", "merges too many names from other maps; write them out");
      throw StopReading();
    }
    parent->merged.push_back(value);
  }

  void Put(const std::string& name, Value value, Value* parent) {
    parent->size += name.size() + value.size;
    document_->tokens.tokens_[{parent->token.node, name}] = std::move(value.token);
    if (parent->json.is_array()) {
      parent->json.push_back(std::move(value.json));
    } else {
      parent->json[name] = std::move(value.json);
    }
  }

  void AddProblem(Place place, std::string path, std::string message) {
    document_->problems.push_back({place, std::move(path), std::move(message)});
    if (document_->problems.size() >= kMaxReported) throw StopReading();
  }

  static constexpr size_t kMaxEntries = 1000;
  static constexpr size_t kMaxReported = 20;

  YamlDocument* document_;
  size_t values_ = 0;    // read; also the number of the latest list or map
  size_t merged_ = 0;    // names copied by merge keys
  size_t repeated_ = 0;  // by aliases, as Value::size
  std::map<YAML::anchor_t, Value> anchors_;
  std::vector<Open> open_;
};

YamlDocument YamlDocument::Parse(absl::string_view text) {
  YamlDocument document;
  Place place;
  if (!WideEncoding(text).empty()) {
    document.problems.push_back({Place{}, "", WideEncodingMessage(text)});
    return document;
  }
  if (absl::StartsWith(text, "\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  if (FindInvalidByte(text, &place)) {
    document.problems.push_back(
        {place, "", "not text: an invalid UTF-8 sequence or a control character"});
    return document;
  }
  YamlTreeBuilder builder(&document);
  try {
    // yaml-cpp accepts the end of the text as the end of a quoted string; inside a string, an
    // end-of-document marker is an error.
    const bool ends = text.empty() || text.back() == '\n';
    std::istringstream stream{absl::StrCat(text, ends ? "" : "\n", "...\n")};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const StopReading&) {
  } catch (const YAML::Exception& error) {
    const Place at = error.mark.is_null() ? Place{} : ToPlace(error.mark);
    document.problems.push_back(Explain(error.msg, at, text));
  } catch (const std::exception& error) {
    document.problems.push_back({Place{}, "", absl::StrCat("not valid YAML: ", error.what())});
  }
  return document;
}

}  // namespace sluice::api
