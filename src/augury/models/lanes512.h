/* Sixteen floats in one register: AVX-512. See native.c for what the operations are used for. */
#ifdef __AVX512BF16__
#define LANES_NAME "AVX-512 bf16"
#define PAIRS 1
#else
#define LANES_NAME "AVX-512"
#define PAIRS 0
#endif

typedef __m512 vec;   /* 16 floats */
typedef __m512i line; /* 32 bfloat16 in pair order */

static inline vec zero(void) { return _mm512_setzero_ps(); }
static inline vec all(float x) { return _mm512_set1_ps(x); }
static inline vec load(const float *p) { return _mm512_loadu_ps(p); }
static inline void store(float *p, vec v) { _mm512_storeu_ps(p, v); }
static inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec div_(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec fma_(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
static inline vec fms_(vec a, vec b, vec c) { return _mm512_fmsub_ps(a, b, c); }   /* a b - c */
static inline vec fnma_(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
static inline vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline float sum_of(vec v) { return _mm512_reduce_add_ps(v); }
static inline float largest_of(vec v) { return _mm512_reduce_max_ps(v); }

static inline vec whole_number(vec v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vec clamp(vec v, float low, float high) { return _mm512_min_ps(_mm512_max_ps(v, all(low)), all(high)); }
static inline vec times_2_to(vec v, vec n) { return _mm512_scalef_ps(v, n); } /* n whole, |n| <= 250 */

/* The first n lanes of memory, the others zero; and only those back. */
static inline __mmask16 first_lanes(int64_t n) { return n < LANES ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff; }
static inline vec load_first(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void store_first(float *p, int64_t n, vec v) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

/* v where first + lane lies in low .. high, elsewhere `other`. */
static inline vec where_within(vec v, int32_t first, int32_t low, int32_t high, vec other)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
    __mmask16 seen = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(low)) &
                     _mm512_cmple_epi32_mask(at, _mm512_set1_epi32(high));
    return _mm512_mask_blend_ps(seen, other, v);
}

/* v where `key` is not minus infinity, elsewhere zero. */
static inline vec where_finite(vec key, vec v)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(key, all(-INFINITY), _CMP_NEQ_UQ), v);
}

/* Sixteen whole numbers of -128 to 127, as bytes. */
static inline void store_bytes(int8_t *p, vec v)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}
static inline vec load_words(const bf16 *p) /* sixteen bfloat16 in natural order */
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* Lane i's bit is set where v is not below `least`. */
static inline unsigned lanes_from_on(vec v, float least)
{
    return _mm512_cmp_ps_mask(v, all(least), _CMP_GE_OQ);
}

static inline line line_of(const bf16 *p) { return _mm512_loadu_si512(p); }
static inline void store_line(bf16 *p, line l) { _mm512_storeu_si512(p, l); }
static inline vec low_half(line l) { return _mm512_castsi512_ps(_mm512_slli_epi32(l, 16)); }
static inline vec high_half(line l)
{
    return _mm512_castsi512_ps(_mm512_and_si512(l, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Two vectors that hold bfloat16 values, as a line in pair order. */
static inline line line_from(vec low, vec high)
{
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high));
}

/* Nearest bfloat16, ties to even, as a float. */
static inline vec rounded(vec v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}

/* One register of a line, for the kernel: `part` 0 of 1. */
enum { PARTS = 1, REGISTERS = 24 /* sums that may be held */, WHOLE_LINES = 24 /* beside all of a line */, STEPS = 2 /* unrolled */ };
typedef __m512 reg;
static inline reg reg_zero(void) { return zero(); }
static inline reg reg_load(const float *p) { return load(p); }
static inline reg reg_add(reg a, reg b) { return add(a, b); }
static inline reg reg_all(float x) { return all(x); }
static inline reg reg_mul(reg a, reg b) { return mul(a, b); }
static inline reg reg_fma(reg a, reg b, reg c) { return fma_(a, b, c); }
static inline void reg_store(float *p, reg v) { store(p, v); }
static inline void reg_widen(const bf16 *p, reg *low, reg *high)
{
    line l = line_of(p);
    *low = low_half(l);
    *high = high_half(l);
}

#if PAIRS
/* Pairs of bfloat16 for k and k + 1, for the kernel. */
typedef __m512bh pairs;
static inline pairs pair_all(const float *two) { return (pairs)_mm512_castps_si512(_mm512_set1_ps(*two)); }
static inline reg pair_dot(reg sum, pairs a, pairs b) { return _mm512_dpbf16_ps(sum, a, b); }
/* Two lines in pair order: their lower 16 outputs, and their upper ones. */
static inline void pair_up(line first, line second, pairs *low, pairs *high)
{
    *low = (pairs)_mm512_mask_blend_epi16(0xaaaaaaaau, first, _mm512_slli_epi32(second, 16));
    *high = (pairs)_mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(first, 16), second);
}
static inline void store_words(bf16 *p, vec v) /* rounded, in natural order */
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}
#endif

/* 32-bit words of several small numbers each, for lowbits.h. */
typedef __m512i bits_reg;
static inline bits_reg bits_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
static inline bits_reg bits_zero(void) { return _mm512_setzero_si512(); }
static inline bits_reg bits_all(const float *four) { return _mm512_castps_si512(_mm512_set1_ps(*four)); }
static inline bits_reg low_halves(bits_reg words) { return _mm512_and_si512(words, _mm512_set1_epi8(15)); }
static inline bits_reg high_halves(bits_reg words) { return low_halves(_mm512_srli_epi16(words, 4)); }
static inline reg bits_float(bits_reg v) { return _mm512_cvtepi32_ps(v); }
static inline reg bytes_float(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* To each word the sum of its four bytes (0..255) times four signed ones. Without VNNI two products at a time must fit
 * 16 bits. */
#ifdef __AVX512VNNI__
#define QUAD_MOST_8 127.0f
static inline bits_reg bits_dot(bits_reg sum, bits_reg bytes, bits_reg by) { return _mm512_dpbusd_epi32(sum, bytes, by); }
#else
#define QUAD_MOST_8 63.0f
static inline bits_reg bits_dot(bits_reg sum, bits_reg bytes, bits_reg by)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(bytes, by), _mm512_set1_epi16(1)));
}
#endif
