#include "services/manifest/yaml_document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
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

YamlNode::Kind ResolvePlainScalar(absl::string_view text) {
  using Kind = YamlNode::Kind;
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return Kind::kNull;
  }
  for (absl::string_view word : {"true", "false", "yes", "no", "on", "off"}) {
    const std::string capital =
        absl::StrCat(absl::AsciiStrToUpper(word.substr(0, 1)), word.substr(1));
    if (text == word || text == capital || text == absl::AsciiStrToUpper(word)) {
      return Kind::kBoolean;
    }
  }
  absl::string_view number = text;
  if (number[0] == '+' || number[0] == '-') number.remove_prefix(1);
  const std::string lower = absl::AsciiStrToLower(number);
  if (lower == ".inf" || lower == ".nan") return Kind::kNumber;
  if (AllDigits(number)) return Kind::kInteger;
  if (absl::StartsWith(lower, "0x") || absl::StartsWith(lower, "0o") ||
      absl::StartsWith(lower, "0b")) {
    const bool digits = lower.size() > 2 && std::all_of(lower.begin() + 2, lower.end(), [](char c) {
                          return absl::ascii_isxdigit(c) || c == '_';
                        });
    return digits ? Kind::kInteger : Kind::kString;
  }
  if (IsDecimal(number)) return Kind::kNumber;
  return Kind::kString;
}

const YamlNode::Entry* YamlNode::Find(absl::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

std::string YamlNode::Describe() const {
  std::string shown = text;
  if (shown.size() > kMaxShownBytes) {
    size_t cut = kMaxShownBytes;
    while (cut > 0 && (static_cast<unsigned char>(shown[cut]) & 0xc0) == 0x80) --cut;
    shown = absl::StrCat(shown.substr(0, cut), "...");
  }
  switch (kind) {
    case Kind::kNull:
      return "empty";
    case Kind::kBoolean:
      return absl::StrCat("the boolean ", shown);
    case Kind::kInteger:
    case Kind::kNumber:
      return absl::StrCat("the number ", shown);
    case Kind::kString:
      // As JSON, which is a quoted YAML string.
      return absl::StrCat(
          "the string ",
          nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
  }
  return "unknown";
}

// Turns yaml-cpp's events into nodes of a document.
class YamlTreeBuilder : public YAML::EventHandler {
 public:
  explicit YamlTreeBuilder(YamlDocument* document) : document_(document) {}

  void OnDocumentStart(const YAML::Mark&) override {
    anchors_.clear();
    open_.clear();
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(NewNode(mark, anchor, YamlNode::Kind::kNull));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode* node = NewNode(mark, anchor, YamlNode::Kind::kString);
    node->text = value;
    if (tag == "?" || tag.empty()) {
      node->kind = ResolvePlainScalar(value);
    } else if (tag != "!" && tag != "tag:yaml.org,2002:str") {
      RefuseTag(mark, tag);
    }
    Add(node);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    const YamlNode* node = found == anchors_.end() ? nullptr : found->second;
    for (const Open& open : open_) {
      if (open.node == node) node = nullptr;
    }
    if (node == nullptr) Stop(mark, "this alias refers to a value that contains it");
    Add(node, ToPlace(mark));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    OpenNode(mark, tag, anchor, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { CloseNode(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    OpenNode(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { CloseNode(); }

 private:
  struct Open {
    YamlNode* node;
    const YamlNode* key = nullptr;  // of a map: read, its value not yet
    Place key_place;
    std::vector<YamlNode::Entry> merged;
  };

  [[noreturn]] void Stop(const YAML::Mark& mark, std::string message) {
    document_->problems_.push_back({ToPlace(mark), "", std::move(message)});
    throw StopReading();
  }

  void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag == "?" || tag == "!" || tag.empty()) return;
    if (tag == "tag:yaml.org,2002:map" || tag == "tag:yaml.org,2002:seq") return;
    Stop(mark, absl::StrCat("YAML tags like ", absl::Utf8SafeCEscape(tag.substr(0, kMaxShownBytes)),
                            " are not supported; leave it out"));
  }

  YamlNode* NewNode(const YAML::Mark& mark, YAML::anchor_t anchor, YamlNode::Kind kind) {
    if (document_->nodes_.size() >= kMaxYamlNodes) {
      Stop(mark, absl::StrCat("the text has more than ", kMaxYamlNodes, " values"));
    }
    YamlNode* node = &document_->nodes_.emplace_back();
    node->kind = kind;
    node->place = ToPlace(mark);
    if (anchor != 0) anchors_[anchor] = node;
    return node;
  }

  void OpenNode(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                YamlNode::Kind kind) {
    RefuseTag(mark, tag);
    if (open_.size() >= kMaxYamlDepth) {
      Stop(mark, absl::StrCat("nested deeper than ", kMaxYamlDepth, " levels"));
    }
    open_.push_back({NewNode(mark, anchor, kind), nullptr, {}, {}});
  }

  void CloseNode() {
    Open done = std::move(open_.back());
    open_.pop_back();
    for (YamlNode::Entry& entry : done.merged) {
      if (done.node->Find(entry.key) == nullptr) done.node->entries.push_back(std::move(entry));
    }
    Add(done.node);
  }

  void Add(const YamlNode* node) { Add(node, node->place); }

  // Hands a finished node to the node that contains it.
  void Add(const YamlNode* node, Place place) {
    if (open_.empty()) {
      if (node->kind != YamlNode::Kind::kNull) document_->roots_.push_back(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node->kind == YamlNode::Kind::kList) {
      parent.node->items.push_back(node);
    } else if (parent.key == nullptr) {
      parent.key = node;
      parent.key_place = place;
    } else {
      AddEntry(&parent, node);
    }
  }

  void AddEntry(Open* parent, const YamlNode* value) {
    const YamlNode& key = *parent->key;
    parent->key = nullptr;
    if (key.kind == YamlNode::Kind::kList || key.kind == YamlNode::Kind::kMap) {
      AddProblem(parent->key_place, "", "must be a name, not a list or map");
      return;
    }
    if (key.text == "<<" && Merge(parent, *value)) return;
    const std::string name = key.kind == YamlNode::Kind::kNull ? "null" : key.text;
    if (const YamlNode::Entry* first = parent->node->Find(name)) {
      AddProblem(parent->key_place, absl::Utf8SafeCEscape(name.substr(0, kMaxShownBytes)),
                 absl::StrCat("given twice; first on line ", first->key_place.line));
      return;
    }
    if (parent->node->entries.size() >= kMaxEntries) {
      AddProblem(parent->key_place, "", absl::StrCat("a map of more than ", kMaxEntries, " names"));
      throw StopReading();
    }
    parent->node->entries.push_back({name, parent->key_place, value});
  }

  // `<<: *other`: adds the names that the map does not have itself.
  bool Merge(Open* parent, const YamlNode& value) {
    if (value.kind != YamlNode::Kind::kMap) return false;
    merged_ += value.entries.size();
    if (merged_ > kMaxEntries) {
      AddProblem(parent->key_place, "<<", "merges too many names from other maps; write them out");
      throw StopReading();
    }
    parent->merged.insert(parent->merged.end(), value.entries.begin(), value.entries.end());
    return true;
  }

  void AddProblem(Place place, std::string path, std::string message) {
    document_->problems_.push_back({place, std::move(path), std::move(message)});
    if (document_->problems_.size() >= kMaxReported) throw StopReading();
  }

  // Bounds the cost of the search for duplicate names, which is linear in each map.
  static constexpr size_t kMaxEntries = 1000;
  static constexpr size_t kMaxReported = 20;

  YamlDocument* document_;
  size_t merged_ = 0;  // copied by merge keys
  std::map<YAML::anchor_t, const YamlNode*> anchors_;
  std::vector<Open> open_;
};

const YamlNode* YamlDocument::WithNumber(const YamlNode& tree, absl::string_view field,
                                         uint64_t value) {
  YamlNode& copy = nodes_.emplace_back(tree);
  copy.kind = field.empty() ? YamlNode::Kind::kInteger : YamlNode::Kind::kMap;
  copy.text = field.empty() ? absl::StrCat(value) : "";
  if (field.empty()) return &copy;

  const std::pair<std::string, absl::string_view> names =
      absl::StrSplit(field, absl::MaxSplits('.', 1));
  auto entry = std::find_if(copy.entries.begin(), copy.entries.end(),
                            [&](const auto& each) { return each.key == names.first; });
  if (entry == copy.entries.end()) {
    entry = copy.entries.insert(entry, {names.first, copy.place, &nodes_.emplace_back()});
  }
  entry->value = WithNumber(*entry->value, names.second, value);
  return &copy;
}

YamlDocument YamlDocument::Parse(absl::string_view text) {
  YamlDocument document;
  Place place;
  if (!WideEncoding(text).empty()) {
    document.problems_.push_back({Place{}, "", WideEncodingMessage(text)});
    return document;
  }
  if (absl::StartsWith(text, "\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  if (FindInvalidByte(text, &place)) {
    document.problems_.push_back(
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
    document.problems_.push_back(Explain(error.msg, at, text));
  } catch (const std::exception& error) {
    document.problems_.push_back({Place{}, "", absl::StrCat("not valid YAML: ", error.what())});
  }
  return document;
}

}  // namespace sluice::api
