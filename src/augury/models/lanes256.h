/* Sixteen floats in two registers: AVX2 with FMA. The same operations as in lanes512.h. */
#define LANES_NAME "AVX2"
#define PAIRS 0

typedef struct { __m256 a, b; } vec;   /* 16 floats */
typedef struct { __m256i a, b; } line; /* 32 bfloat16 in pair order */

static inline vec zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline vec all(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vec load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float *p, vec v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
static inline vec add(vec x, vec y) { return (vec){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline vec sub(vec x, vec y) { return (vec){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline vec mul(vec x, vec y) { return (vec){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline vec div_(vec x, vec y) { return (vec){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline vec fma_(vec x, vec y, vec z) /* x y + z */
{
    return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline vec fms_(vec x, vec y, vec z) /* x y - z */
{
    return (vec){_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)};
}
static inline vec fnma_(vec x, vec y, vec z) /* z - x y */
{
    return (vec){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
static inline vec larger(vec x, vec y) { return (vec){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline float sum_of(vec v)
{
    __m256 x = _mm256_add_ps(v.a, v.b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
static inline float largest_of(vec v)
{
    __m256 x = _mm256_max_ps(v.a, v.b);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

static inline vec whole_number(vec v)
{
    const int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return (vec){_mm256_round_ps(v.a, mode), _mm256_round_ps(v.b, mode)};
}
static inline vec clamp(vec v, float low, float high)
{
    vec l = all(low), h = all(high);
    return (vec){_mm256_min_ps(_mm256_max_ps(v.a, l.a), h.a), _mm256_min_ps(_mm256_max_ps(v.b, l.b), h.b)};
}

/* In two steps, because 2^n itself may lie beyond the exponents of a float. */
static inline __m256 half_times_2_to(__m256 v, __m256 n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    v = _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
static inline vec times_2_to(vec v, vec n) /* n whole, |n| <= 250 */
{
    return (vec){half_times_2_to(v.a, n.a), half_times_2_to(v.b, n.b)};
}

static inline __m256i lanes_from(int32_t first)
{
    return _mm256_add_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(first));
}

/* The first n lanes of memory, the others zero; and only those back. */
static inline line first_lanes(int64_t n)
{
    __m256i end = _mm256_set1_epi32(n < LANES ? (int)n : LANES);
    return (line){_mm256_cmpgt_epi32(end, lanes_from(0)), _mm256_cmpgt_epi32(end, lanes_from(8))};
}
static inline vec load_first(const float *p, int64_t n)
{
    line mask = first_lanes(n);
    return (vec){_mm256_maskload_ps(p, mask.a), _mm256_maskload_ps(p + 8, mask.b)};
}
static inline void store_first(float *p, int64_t n, vec v)
{
    line mask = first_lanes(n);
    _mm256_maskstore_ps(p, mask.a, v.a);
    _mm256_maskstore_ps(p + 8, mask.b, v.b);
}

/* v where first + lane lies in low .. high, elsewhere `other`. */
static inline __m256 half_within(__m256 v, __m256i at, int32_t low, int32_t high, __m256 other)
{
    __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), at),
                                  _mm256_cmpgt_epi32(at, _mm256_set1_epi32(high)));
    return _mm256_blendv_ps(v, other, _mm256_castsi256_ps(out));
}
static inline vec where_within(vec v, int32_t first, int32_t low, int32_t high, vec other)
{
    return (vec){half_within(v.a, lanes_from(first), low, high, other.a),
                 half_within(v.b, lanes_from(first + 8), low, high, other.b)};
}

/* v where `key` is not minus infinity, elsewhere zero. */
static inline vec where_finite(vec key, vec v)
{
    const __m256 least = _mm256_set1_ps(-INFINITY);
    return (vec){_mm256_and_ps(_mm256_cmp_ps(key.a, least, _CMP_NEQ_UQ), v.a),
                 _mm256_and_ps(_mm256_cmp_ps(key.b, least, _CMP_NEQ_UQ), v.b)};
}

/* Sixteen whole numbers of -128 to 127, as bytes. */
static inline void store_bytes(int8_t *p, vec v)
{
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)p,
                     _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
static inline __m256 half_words(const bf16 *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vec load_words(const bf16 *p) /* sixteen bfloat16 in natural order */
{
    return (vec){half_words(p), half_words(p + 8)};
}
/* Lane i's bit is set where v is not below `least`. */
static inline unsigned lanes_from_on(vec v, float least)
{
    const __m256 l = _mm256_set1_ps(least);
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(v.a, l, _CMP_GE_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(v.b, l, _CMP_GE_OQ)) << 8;
}

static inline __m256i half_line_of(const bf16 *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline line line_of(const bf16 *p) { return (line){half_line_of(p), half_line_of(p + 16)}; }
static inline void store_line(bf16 *p, line l)
{
    _mm256_storeu_si256((__m256i *)p, l.a);
    _mm256_storeu_si256((__m256i *)(p + 16), l.b);
}
static inline __m256 low_of(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
static inline __m256 high_of(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u)));
}
static inline vec low_half(line l) { return (vec){low_of(l.a), low_of(l.b)}; }
static inline vec high_half(line l) { return (vec){high_of(l.a), high_of(l.b)}; }

/* Two vectors that hold bfloat16 values, as a line in pair order. */
static inline __m256i pairs_from(__m256 low, __m256 high)
{
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(low), 16), _mm256_castps_si256(high));
}
static inline line line_from(vec low, vec high) { return (line){pairs_from(low.a, high.a), pairs_from(low.b, high.b)}; }

/* Nearest bfloat16, ties to even, as a float. */
static inline __m256 half_rounded(__m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return high_of(u);
}
static inline vec rounded(vec v) { return (vec){half_rounded(v.a), half_rounded(v.b)}; }

/* One register of a line, for the kernel: outputs 8 part .. 8 part + 7 and 16 more. */
enum { PARTS = 2, REGISTERS = 12 /* sums that may be held */, WHOLE_LINES = 8 /* beside all of a line */, STEPS = 8 /* unrolled */ };
typedef __m256 reg;
static inline reg reg_zero(void) { return _mm256_setzero_ps(); }
static inline reg reg_load(const float *p) { return _mm256_loadu_ps(p); }
static inline reg reg_add(reg a, reg b) { return _mm256_add_ps(a, b); }
static inline reg reg_all(float x) { return _mm256_set1_ps(x); }
static inline reg reg_mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
static inline reg reg_fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
static inline void reg_store(float *p, reg v) { _mm256_storeu_ps(p, v); }
static inline void reg_widen(const bf16 *p, reg *low, reg *high)
{
    __m256i words = half_line_of(p);
    *low = low_of(words);
    *high = high_of(words);
}

/* 32-bit words of several small numbers each, for lowbits.h. */
typedef __m256i bits_reg;
static inline bits_reg bits_load(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline bits_reg bits_zero(void) { return _mm256_setzero_si256(); }
static inline bits_reg bits_all(const float *four) { return _mm256_castps_si256(_mm256_set1_ps(*four)); }
static inline bits_reg low_halves(bits_reg words) { return _mm256_and_si256(words, _mm256_set1_epi8(15)); }
static inline bits_reg high_halves(bits_reg words) { return low_halves(_mm256_srli_epi16(words, 4)); }
static inline reg bits_float(bits_reg v) { return _mm256_cvtepi32_ps(v); }
static inline reg bytes_float(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* To each word the sum of its four bytes (0..255) times four signed ones. Without VNNI two products at a time must fit
 * 16 bits. */
#ifdef __AVXVNNI__
#define QUAD_MOST_8 127.0f
static inline bits_reg bits_dot(bits_reg sum, bits_reg bytes, bits_reg by)
{
    return _mm256_dpbusd_avx_epi32(sum, bytes, by);
}
#else
#define QUAD_MOST_8 63.0f
static inline bits_reg bits_dot(bits_reg sum, bits_reg bytes, bits_reg by)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, by), _mm256_set1_epi16(1)));
}
#endif
