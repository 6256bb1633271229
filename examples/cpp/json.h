// A small strict reader of JSON texts (RFC 8259).
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// A value; asking for another type than it has throws.
struct Json {
  using List = std::vector<Json>;
  using Object = std::map<std::string, Json>;
  std::variant<std::nullptr_t, bool, double, std::string, List, Object> value;

  bool is_null() const { return value.index() == 0; }

  template <class T>
  const T& as() const {
    if (const T* found = std::get_if<T>(&value)) return *found;
    throw std::runtime_error("the metadata is damaged: a value has another type");
  }

  const Json& operator[](const std::string& name) const {
    const auto found = as<Object>().find(name);
    if (found == as<Object>().end()) throw std::runtime_error("the metadata lacks " + name);
    return found->second;
  }
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  Json document() {
    Json found = value(0);
    skip("");
    check(rest_.empty());
    return found;
  }

 private:
  std::string_view rest_;

  static void check(bool good) {
    if (!good) throw std::runtime_error("the metadata is no JSON text");
  }

  // Skips white space, and then a word; returns whether it is there.
  bool skip(std::string_view word) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  Json value(int depth) {
    check(depth < 64);
    if (skip("null")) return {nullptr};
    if (skip("true")) return {true};
    if (skip("false")) return {false};
    if (skip("\"")) return {string()};
    if (skip("[")) return list(depth);
    if (skip("{")) return object(depth);
    double number = 0;
    check(!rest_.empty() && (rest_[0] == '-' || ('0' <= rest_[0] && rest_[0] <= '9')));
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    check(error == std::errc());
    rest_.remove_prefix(end - rest_.data());
    return {number};
  }

  Json list(int depth) {
    Json::List items;
    if (skip("]")) return {items};
    do items.push_back(value(depth + 1));
    while (skip(","));
    check(skip("]"));
    return {items};
  }

  Json object(int depth) {
    Json::Object members;
    if (skip("}")) return {members};
    do {
      check(skip("\""));
      const std::string name = string();
      check(skip(":"));
      members[name] = value(depth + 1);
    } while (skip(","));
    check(skip("}"));
    return {members};
  }

  // The rest of a string after its first quotation mark.
  std::string string() {
    constexpr std::string_view escapes = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    std::string found;
    while (true) {
      const size_t mark = rest_.find_first_of("\"\\");
      check(mark < rest_.size());
      found += rest_.substr(0, mark);
      const bool ends = rest_[mark] == '"';
      rest_.remove_prefix(mark + 1);
      if (ends) return found;
      check(!rest_.empty());
      const size_t escape = escapes.find(rest_[0]);
      if (rest_[0] == 'u') {
        found += character();
      } else {
        check(escape < escapes.size());
        found += meant[escape];
        rest_.remove_prefix(1);
      }
    }
  }

  // A character "uXXXX" in UTF-8; pairs of surrogates are not read, as the text is UTF-8 already.
  std::string character() {
    check(rest_.size() >= 5);
    unsigned code = 0;
    check(std::from_chars(rest_.data() + 1, rest_.data() + 5, code, 16).ptr == rest_.data() + 5);
    check(code < 0xD800 || code >= 0xE000);
    rest_.remove_prefix(5);
    const auto low = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
    if (code < 0x80) return {static_cast<char>(code)};
    if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), low(0)};
    return {static_cast<char>(0xE0 | code >> 12), low(6), low(0)};
  }
};
