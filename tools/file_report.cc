#include "tools/file_report.h"

#include <fmt/format.h>

namespace millipede::tools {
namespace {

template <typename T>
void AddValues(fixtures::SafetensorsWriter& writer, const std::string& name,
               const std::vector<int64_t>& shape, std::span<const std::byte> bytes) {
  writer.Add<T>(name, shape, {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)});
}

}  // namespace

void FileReport::AddUnchecked(const fixtures::SafetensorsFile& file,
                              const std::set<std::string>& judged) {
  for (const auto& [name, entry] : file.tensors()) {
    if (!judged.contains(name)) problems.push_back(name + ": no rule checked it");
  }
}

std::string FileReport::Text() const {
  std::string text = fmt::format("{}: {}", path, ok() ? "ok" : "FAILED");
  if (!kind.empty()) text += fmt::format(", {}", kind);
  text += fmt::format(", {} values by {} rules\n", rules.num_values(), rules.rows().size());
  for (const std::string& problem : problems) text += fmt::format("  {}\n", problem);
  if (!rules.rows().empty()) text += rules.Text("  ");
  return text;
}

nlohmann::json FileReport::Json() const {
  return {{"path", path},         {"kind", kind},
          {"ok", ok()},           {"values", rules.num_values()},
          {"problems", problems}, {"rules", rules.Json()}};
}

void AddTensor(fixtures::SafetensorsWriter& writer, const std::string& name, fixtures::DType dtype,
               const std::vector<int64_t>& shape, std::span<const std::byte> bytes) {
  using fixtures::DType;
  switch (dtype) {
    case DType::kF32:
      return AddValues<float>(writer, name, shape, bytes);
    case DType::kBf16:
      return AddValues<Bf16>(writer, name, shape, bytes);
    case DType::kI8:
      return AddValues<int8_t>(writer, name, shape, bytes);
    case DType::kI32:
      return AddValues<int32_t>(writer, name, shape, bytes);
    case DType::kI64:
      return AddValues<int64_t>(writer, name, shape, bytes);
  }
}

}  // namespace millipede::tools
