/* A few rows through weights of 4 or 8 bits, which a target makes of its own to guess with. Included by native.c.
 *
 * Layout: blocks of 32 outputs. A block begins with a line of 32 floats, each output's unit of scales. Then come groups of
 * 32 inputs (the last may be shorter): 32 bytes of scales in those units, 32 bytes that say where zero lies between the
 * bits, in sixteenths for 4 bits and in whole numbers for 8, and lines of 32 words that hold 32 / bits inputs of each
 * output: the first four in the bytes, or in their low halves, the next four in the high halves. Rows are kept in bytes
 * too, those of a group with a scale of their own, so that four products are one operation:
 *     weight = scale * (bits - zero), x = step * byte, so a group adds
 *     scale * step * (sum of bits * byte) - scale * zero * (sum of x).
 * Memory is what a row costs, and this is 0.29 or 0.54 of bfloat16's; up to LOW_GROUP rows share what is read. What comes
 * out is a guess: no other row's bits depend on it.
 */

enum { REG = sizeof(reg) / sizeof(float), REGS = BLOCK / REG, GROUP_WORDS = 2 + BLOCK / 4, LOW_NEAR = 4096 };

static inline int64_t row_words(int64_t depth) { return (depth + BLOCK - 1) / BLOCK * GROUP_WORDS; }

/* A row as the kernel reads it: for each group its step and its sum, then its bytes; GROUP_WORDS floats each. Its columns
 * lie 16 by 16 in a panel, so many floats apart. */
static void into_bytes(const float *x, int64_t apart, int64_t depth, int64_t bits, float *to)
{
    const float most = bits == 8 ? QUAD_MOST_8 : 127.0f; /* whole numbers up to it: none is rounded beyond */
    for (int64_t k = 0, n; k < depth; k += n, to += GROUP_WORDS) {
        n = depth - k < BLOCK ? depth - k : BLOCK;
        vec size = zero(), sum = zero();
        for (int64_t i = 0; i < n; i += LANES) {
            const vec v = load(x + (k + i) / LANES * apart);
            size = larger(size, larger(v, sub(zero(), v)));
        }
        const float step = largest_of(size) / most;
        const vec inverse = all(step > 1e-30f ? 1.0f / step : 0.0f); /* of less it would be infinite */
        for (int64_t i = 0; i < n; i += LANES) {
            const vec v = whole_number(mul(load(x + (k + i) / LANES * apart), inverse));
            store_bytes((int8_t *)(to + 2) + i, v);
            sum = add(sum, v);
        }
        to[0] = step;
        to[1] = step * sum_of(sum); /* of the bytes: what rounding left out must not be left out of one term alone */
    }
}

/* Fetch a stream on until `until`, half a kB at a time: a line of each of eight pages. */
INLINE const char *fetch_on(const char *ahead, const char *until)
{
    for (; ahead < until; ahead += 512) {
        const char *fetch = spread(ahead) + ((uintptr_t)ahead >> 9 & 1) * 64;
        UNROLL for (int i = 0; i < 8; i++) _mm_prefetch(fetch + i * 4096, _MM_HINT_T1);
    }
    return ahead;
}

INLINE void low_bits(const int bits, const int rows, const int blocks, const float *x, const bf16 *w, int64_t pitch, int64_t depth,
                     const char *ahead, float *out, Strides to)
{
    const int per = 32 / bits;
    const int64_t next_row = row_words(depth), next_block = pitch / 2;
    const uint32_t *words = (const uint32_t *)w;
    const char *until = ahead = (const char *)((uintptr_t)ahead & ~(uintptr_t)1023);
    reg sum[LOW_GROUP][2][REGS], unit[2][REGS];
    UNROLL for (int b = 0; b < blocks; b++)
        UNROLL for (int r = 0; r < REGS; r++) unit[b][r] = reg_load((const float *)words + b * next_block + r * REG);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int r = 0; r < REGS; r++) sum[i][b][r] = reg_zero();
    words += BLOCK;
    until += blocks * BLOCK * 4;
    for (int64_t k = 0; k < depth; k += BLOCK, x += GROUP_WORDS) {
        const int64_t lines = (depth - k < BLOCK ? depth - k : BLOCK) / per;
        bits_reg part[LOW_GROUP][2][REGS];
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int b = 0; b < blocks; b++)
                UNROLL for (int r = 0; r < REGS; r++) part[i][b][r] = bits_zero();
        until += blocks * (lines * 2 + 1) * 64;
        ahead = fetch_on(ahead, until);
        const uint32_t *line = words + BLOCK / 2;
        const float *quads = x + 2;
        for (int64_t l = 0; l < lines; l++, line += BLOCK, quads += per / 4)
            UNROLL for (int b = 0; b < blocks; b++) {
                _mm_prefetch((const char *)(line + b * next_block) + LOW_NEAR, _MM_HINT_T0);
                _mm_prefetch((const char *)(line + b * next_block) + LOW_NEAR + 64, _MM_HINT_T0);
                UNROLL for (int r = 0; r < REGS; r++) {
                    const bits_reg word = bits_load(line + b * next_block + r * REG);
                    const bits_reg low = bits == 8 ? word : low_halves(word), high = high_halves(word);
                    UNROLL for (int i = 0; i < rows; i++) {
                        part[i][b][r] = bits_dot(part[i][b][r], low, bits_all(quads + i * next_row));
                        if (bits == 4) part[i][b][r] = bits_dot(part[i][b][r], high, bits_all(quads + i * next_row + 1));
                    }
                }
            }
        UNROLL for (int b = 0; b < blocks; b++) {
            const uint8_t *small = (const uint8_t *)(words + b * next_block);
            _mm_prefetch((const char *)small + LOW_NEAR, _MM_HINT_T0);
            UNROLL for (int r = 0; r < REGS; r++) {
                const reg scale = reg_mul(bytes_float(small + r * REG), unit[b][r]);
                const reg part_of = reg_mul(scale, reg_all(bits == 4 ? -1.0f / 16 : -1.0f));
                const reg least = reg_mul(bytes_float(small + BLOCK + r * REG), part_of);
                UNROLL for (int i = 0; i < rows; i++) {
                    const reg step = reg_all(x[i * next_row]), all_x = reg_all(x[i * next_row + 1]);
                    sum[i][b][r] = reg_fma(reg_mul(scale, step), bits_float(part[i][b][r]), sum[i][b][r]);
                    sum[i][b][r] = reg_fma(least, all_x, sum[i][b][r]);
                }
            }
        }
        words = line;
    }
    (void)fetch_on(ahead, (const char *)((uintptr_t)(until + 1023) & ~(uintptr_t)1023));
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int r = 0; r < REGS; r++)
                reg_store(out + i * to.row + b * to.block + r * REG / LANES * to.half + r * REG % LANES, sum[i][b][r]);
}

#define LOW_BITS(n, i, b)                                                                                              \
    static __attribute__((noinline)) void low_##n##_##i##_##b(TILE_ARGS)                                               \
    {                                                                                                                  \
        (void)turn;                                                                                                    \
        low_bits(n, i, b, x, w, pitch, depth, ahead, out, to);                                                         \
    }
LOW_BITS(4, 1, 2) LOW_BITS(4, 1, 1) LOW_BITS(4, 2, 1) LOW_BITS(4, 3, 1) LOW_BITS(4, 4, 1)
LOW_BITS(8, 1, 2) LOW_BITS(8, 1, 1) LOW_BITS(8, 2, 1) LOW_BITS(8, 3, 1) LOW_BITS(8, 4, 1)

static Tile *const LOW_TILES[2][LOW_GROUP + 1] = { /* of one block; the first for two, of one row */
    {low_4_1_2, low_4_1_1, low_4_2_1, low_4_3_1, low_4_4_1},
    {low_8_1_2, low_8_1_1, low_8_2_1, low_8_3_1, low_8_4_1},
};

static inline float widened(bf16 word)
{
    const uint32_t bits = (uint32_t)word << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Words of a block of 32 outputs. */
static inline int64_t low_words(int64_t depth, int64_t bits)
{
    return BLOCK + (depth + BLOCK - 1) / BLOCK * (BLOCK / 2) + depth * bits;
}

/* What a group's scale is, and where zero lies, for one output of n weights at w. The 2^bits values lie at equal distances
 * from the least weight to the greatest, zero always among what they span. */
typedef struct { float scale, zero; } Fit;

static Fit fit(const bf16 *w, int64_t n, float steps)
{
    float least = 0.0f, most = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        const float v = widened(w[i * BLOCK]);
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    const float scale = (most - least) / steps;
    return (Fit){scale, scale > 0.0f ? -least / scale : 0.0f};
}

/* Blocks of 32 outputs from bfloat16 in pair order to fewer bits. */
void augury_low_bits(const bf16 *w, int64_t blocks, int64_t depth, int64_t bits, uint32_t *to)
{
    const float steps = (float)((1 << bits) - 1), parts = bits == 4 ? 16.0f : 1.0f;
    for (; blocks > 0; blocks--, w += depth * BLOCK, to += low_words(depth, bits)) {
        memset(to, 0, (size_t)low_words(depth, bits) * sizeof *to);
        for (int o = 0; o < BLOCK; o++) { /* in pair order, as it lies in w; natural order leaves */
            const int place = o / 2 + o % 2 * LANES;
            float most = 0.0f;
            for (int64_t k = 0; k < depth; k += BLOCK)
                most = fmaxf(most, fit(w + k * BLOCK + o, depth - k < BLOCK ? depth - k : BLOCK, steps).scale);
            const float unit = most / 255.0f;
            memcpy(to + place, &unit, sizeof unit);
            uint32_t *words = to + BLOCK;
            for (int64_t k = 0, n; k < depth && unit > 0.0f; k += n) {
                n = depth - k < BLOCK ? depth - k : BLOCK;
                const bf16 *from = w + k * BLOCK + o;
                const Fit f = fit(from, n, steps);
                const float whole = fminf(rintf(f.scale / unit), 255.0f), zero = fminf(rintf(f.zero * parts), 255.0f);
                uint32_t *lines = words + BLOCK / 2;
                ((uint8_t *)words)[place] = (uint8_t)whole;
                ((uint8_t *)words)[BLOCK + place] = (uint8_t)zero;
                for (int64_t i = 0; i < n; i++) {
                    float q = whole > 0.0f ? rintf(widened(from[i * BLOCK]) / (whole * unit) + zero / parts) : 0.0f;
                    q = q >= 0.0f ? (q > steps ? steps : q) : 0.0f; /* no weight may be NaN; its bits would be undefined */
                    lines[i * bits / 32 * BLOCK + place] |= (uint32_t)q << (i % 4 * 8 + bits * (i / 4 % 2) % 8);
                }
                words = lines + n * bits / 32 * BLOCK;
            }
        }
    }
}
