// The exponential function's numbers, for every table of kernels.
//
//   exp(x) = 2^n exp(r),  n = x / ln 2 rounded,  r = (x - n * high part of ln 2) - n * low part
//   exp(r) = 1 + r + r^2 (c2 + r (c3 + r (c4 + r (c5 + r c6))))   for |r| <= ln(2) / 2
//
// The coefficients are a weighted least-squares fit, levelled until all extremes of the relative error
// were alike: below 5e-9, less than a tenth of a float's last bit. The high part of ln 2 has 14 bits,
// so that its product with n is exact.
#pragma once

namespace draftproof {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2High = 0.69317626953125f;
constexpr float kLn2Low = -0x1.e8082ep-16f;
constexpr float kExp2 = 0x1.fffffcp-2f;
constexpr float kExp3 = 0x1.555490p-3f;
constexpr float kExp4 = 0x1.5558f4p-5f;
constexpr float kExp5 = 0x1.123a6cp-7f;
constexpr float kExp6 = 0x1.6a2352p-10f;

// Outside, the portable table answers infinity and 0, because 2^n would not be a normal number.
constexpr float kExpHighest = 88.0f;
constexpr float kExpLowest = -87.0f;

// gelu(x) = x / (1 + exp(-(a x + b x^3))): the tanh form, tanh written by exp.
constexpr float kGeluA = 0x1.988454p+0f;  // 2 sqrt(2 / pi)
constexpr float kGeluB = 0x1.2444f2p-4f;  // 0.044715 times that

}  // namespace draftproof
