#include "token_tensors.hpp"

#include <algorithm>
#include <cstring>

#include "token_format.hpp"

namespace switchyard::reference {
namespace {

constexpr uint8_t kGap = 0xee;

template <typename T>
Status allocate(const Rank& rank, uint64_t size, Buffer<T>& buffer) {
  Result<Buffer<T>> allocated = rank.allocate<T>(size);
  if (!allocated.ok()) return allocated.status();
  buffer = std::move(allocated).value();
  return Status();
}

// Rows of so many bytes, with a gap behind each.
std::vector<uint8_t> spread(const void* rows, size_t row_bytes, size_t num_rows, size_t gap_bytes) {
  std::vector<uint8_t> spread_rows((row_bytes + gap_bytes) * num_rows, kGap);
  for (size_t i = 0; i < num_rows; ++i)
    std::memcpy(spread_rows.data() + i * (row_bytes + gap_bytes),
                static_cast<const uint8_t*>(rows) + i * row_bytes, row_bytes);
  return spread_rows;
}

}  // namespace

std::string TensorStyle::describe() const {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (has_wide_ids) add("64-bit ids");
  if (is_encoded) add("encoded tokens");
  if (has_device_scale) add("the input scale on the device");
  if (gap_bytes > 0) add(std::to_string(gap_bytes) + " bytes between rows");
  return text;
}

Step with_encoded_tokens(Step step) {
  step.token_codes.assign(step.tokens.size(), {});
  step.token_scales.assign(step.tokens.size(), {});
  for (int rank = 0; rank < step.n_ranks; ++rank)
    for (int token = 0; token < step.num_tokens(rank); ++token) {
      const auto first = step.tokens[rank].begin() + static_cast<ptrdiff_t>(token) * step.hidden;
      const EncodedToken encoded =
          encode_token(step.format, std::vector<bf16>(first, first + step.hidden), step.input_scale);
      step.token_codes[rank].insert(step.token_codes[rank].end(), encoded.codes.begin(), encoded.codes.end());
      step.token_scales[rank].insert(step.token_scales[rank].end(), encoded.scales.begin(),
                                     encoded.scales.end());
    }
  return step;
}

Result<TokenTensors> TokenTensors::create(const Rank& rank, const Step& step, int max_tokens,
                                          const TensorStyle& style, int rows_per_token) {
  const TokenFormatInfo format = info_of(step.format);
  const uint64_t tokens = static_cast<uint64_t>(max_tokens), gap = static_cast<uint64_t>(style.gap_bytes);
  const uint64_t num_ids = tokens * static_cast<uint64_t>(step.top_k);
  TokenTensors tensors;
  tensors.style_ = style;
  tensors.row_bytes_ = static_cast<uint32_t>(step.hidden) * static_cast<uint32_t>(sizeof(bf16));
  tensors.token_bytes_ = style.is_encoded ? format.row_bytes(step.hidden) : tensors.row_bytes_;
  tensors.scales_bytes_ = static_cast<uint32_t>(format.num_scales(step.hidden) * format.scale_bytes);
  SWITCHYARD_RETURN_IF_ERROR(allocate(rank, tokens * (tensors.token_bytes_ + gap), tensors.tokens_));
  if (style.is_encoded)
    SWITCHYARD_RETURN_IF_ERROR(allocate(rank, tokens * (tensors.scales_bytes_ + gap), tensors.scales_));
  SWITCHYARD_RETURN_IF_ERROR(style.has_wide_ids ? allocate(rank, num_ids, tensors.wide_ids_)
                                                : allocate(rank, num_ids, tensors.ids_));
  if (style.has_device_scale) SWITCHYARD_RETURN_IF_ERROR(allocate(rank, 1, tensors.scale_));
  SWITCHYARD_RETURN_IF_ERROR(allocate(
      rank, tokens * static_cast<uint64_t>(rows_per_token) * (tensors.row_bytes_ + gap), tensors.output_));
  return tensors;
}

Status TokenTensors::upload(const Step& step, int rank) {
  const size_t num_tokens = static_cast<size_t>(step.num_tokens(rank)),
               gap = static_cast<size_t>(style_.gap_bytes);
  const std::vector<int32_t>& ids = step.topk_ids[rank];
  const void* tokens =
      style_.is_encoded ? static_cast<const void*>(step.token_codes[rank].data()) : step.tokens[rank].data();
  SWITCHYARD_RETURN_IF_ERROR(tokens_.upload(spread(tokens, token_bytes_, num_tokens, gap)));
  if (style_.is_encoded)
    SWITCHYARD_RETURN_IF_ERROR(
        scales_.upload(spread(step.token_scales[rank].data(), scales_bytes_, num_tokens, gap)));
  SWITCHYARD_RETURN_IF_ERROR(style_.has_wide_ids
                                 ? wide_ids_.upload(std::vector<int64_t>(ids.begin(), ids.end()))
                                 : ids_.upload(ids));
  if (style_.has_device_scale) SWITCHYARD_RETURN_IF_ERROR(scale_.upload({step.input_scale}));
  return output_.fill_bytes(kGap);
}

DispatchInput TokenTensors::input(int num_tokens, const float* topk_weights) const {
  const uint64_t gap = static_cast<uint64_t>(style_.gap_bytes);
  DispatchInput input{tokens_.data(), topk_ids(), num_tokens, topk_weights};
  if (style_.has_wide_ids) input.topk_ids_64 = wide_ids_.data();
  if (gap > 0) input.token_stride_bytes = token_bytes_ + gap;
  if (style_.has_device_scale) input.input_scale = scale_.data();
  if (!style_.is_encoded) return input;
  input.format = InputFormat::kEncoded;
  input.scales = scales_.data();
  if (gap > 0) input.scales_stride_bytes = scales_bytes_ + gap;
  return input;
}

CombineDestination TokenTensors::destination(CombineReduction reduction) const {
  const uint64_t gap = static_cast<uint64_t>(style_.gap_bytes);
  return {.reduction = reduction,
          .output = reinterpret_cast<bf16*>(output_.data()),
          .output_stride_bytes = gap > 0 ? row_bytes_ + gap : 0};
}

Result<std::vector<bf16>> TokenTensors::output(int num_rows) const {
  const size_t stride = row_bytes_ + static_cast<size_t>(style_.gap_bytes);
  const Result<std::vector<uint8_t>> bytes = output_.download(static_cast<size_t>(num_rows) * stride);
  if (!bytes.ok()) return bytes.status();
  std::vector<bf16> rows(static_cast<size_t>(num_rows) * row_bytes_ / sizeof(bf16));
  for (size_t i = 0; i < static_cast<size_t>(num_rows); ++i) {
    const uint8_t* row = bytes.value().data() + i * stride;
    std::memcpy(reinterpret_cast<uint8_t*>(rows.data()) + i * row_bytes_, row, row_bytes_);
    if (!std::all_of(row + row_bytes_, row + stride, [](uint8_t byte) { return byte == kGap; }))
      return Status(StatusCode::kInternal,
                    "the gap behind row " + std::to_string(i) + " of the output has been written to");
  }
  return rows;
}

}  // namespace switchyard::reference
