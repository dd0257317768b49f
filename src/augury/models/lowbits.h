/* A few rows through weights of 4 or 8 bits, which a target makes of its own to guess with. Included by native.c.
 *
 * Layout: blocks of 32 outputs, each a run of groups of 32 inputs (the last may be shorter). A group is one line of
 * 32 words that hold a bfloat16 scale (high half) and least weight (low half) of each output, then lines of 32 words
 * that hold 32 / bits inputs of each output: the first four in the bytes, or in their low halves, the next four in the
 * high halves. Rows are kept in bytes too, those of a group with a scale of their own, so that four products are one
 * operation:
 *     weight = least + scale * bits, x = step * byte, so a group adds
 *     least * (sum of x) + scale * step * (sum of bits * byte).
 * Memory is what a row costs, and this is 0.31 or 0.56 of bfloat16's; up to LOW_GROUP rows share what is read. What comes
 * out is a guess: no other row's bits depend on it.
 */

enum { REG = sizeof(reg) / sizeof(float), REGS = BLOCK / REG, GROUP_WORDS = 2 + BLOCK / 4 };

static inline int64_t row_words(int64_t depth) { return (depth + BLOCK - 1) / BLOCK * GROUP_WORDS; }

/* A row as the kernel reads it: for each group its step and its sum, then its bytes; GROUP_WORDS floats each. Its columns
 * lie 16 by 16 in a panel, so many floats apart. */
static void into_bytes(const float *x, int64_t apart, int64_t depth, int64_t bits, float *to)
{
    const float most = bits == 8 ? QUAD_MOST_8 : 127.0f;
    for (int64_t k = 0, n; k < depth; k += n, to += GROUP_WORDS) {
        n = depth - k < BLOCK ? depth - k : BLOCK;
        vec size = zero(), sum = zero();
        for (int64_t i = 0; i < n; i += LANES) {
            const vec v = load(x + (k + i) / LANES * apart);
            size = larger(size, larger(v, sub(zero(), v)));
        }
        const float step = largest_of(size) / most;
        const vec inverse = all(step > 1e-30f ? 1.0f / step : 0.0f); /* of less it would be infinite */
        int8_t *bytes = (int8_t *)(to + 2);
        for (int64_t i = 0; i < n; i += LANES) {
            const vec v = clamp(whole_number(mul(load(x + (k + i) / LANES * apart), inverse)), -most, most);
            float whole[LANES];
            store(whole, v);
            for (int64_t j = 0; j < LANES; j++) bytes[i + j] = (int8_t)whole[j];
            sum = add(sum, v);
        }
        to[0] = step;
        to[1] = step * sum_of(sum); /* of the bytes: what rounding left out must not be left out of one term alone */
    }
}

INLINE void low_bits(const int bits, const int rows, const int blocks, const float *x, const bf16 *w, int64_t pitch, int64_t depth,
                     const char *ahead, float *out, Strides to)
{
    const int per = 32 / bits;
    const uint32_t *words = (const uint32_t *)w;
    const int64_t next_row = row_words(depth);
    reg sum[LOW_GROUP][2][REGS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int r = 0; r < REGS; r++) sum[i][b][r] = reg_zero();
    for (int64_t k = 0; k < depth; k += BLOCK, x += GROUP_WORDS) {
        const int64_t lines = (depth - k < BLOCK ? depth - k : BLOCK) / per;
        bits_reg part[LOW_GROUP][2][REGS];
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int b = 0; b < blocks; b++)
                UNROLL for (int r = 0; r < REGS; r++) part[i][b][r] = bits_zero();
        const uint32_t *line = words + BLOCK;
        const float *quads = x + 2;
        for (int64_t l = 0; l < lines; l++, line += BLOCK, quads += per / 4) {
            UNROLL for (int b = 0; b < blocks; b++, ahead += BLOCK * 4) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                _mm_prefetch(ahead + 64, _MM_HINT_T0);
            }
            UNROLL for (int b = 0; b < blocks; b++)
                UNROLL for (int r = 0; r < REGS; r++) {
                    const bits_reg word = bits_load(line + b * (pitch / 2) + r * REG);
                    const bits_reg low = bits == 8 ? word : low_halves(word), high = high_halves(word);
                    UNROLL for (int i = 0; i < rows; i++) {
                        part[i][b][r] = bits_dot(part[i][b][r], low, bits_all(quads + i * next_row));
                        if (bits == 4) part[i][b][r] = bits_dot(part[i][b][r], high, bits_all(quads + i * next_row + 1));
                    }
                }
        }
        UNROLL for (int b = 0; b < blocks; b++, ahead += BLOCK * 4) {
            _mm_prefetch(ahead, _MM_HINT_T0);
            _mm_prefetch(ahead + 64, _MM_HINT_T0);
            UNROLL for (int r = 0; r < REGS; r++) {
                reg least, scale;
                bits_widen(words + b * (pitch / 2) + r * REG, &least, &scale);
                UNROLL for (int i = 0; i < rows; i++) {
                    const reg step = reg_all(x[i * next_row]), all_x = reg_all(x[i * next_row + 1]);
                    sum[i][b][r] = reg_fma(reg_mul(scale, step), bits_float(part[i][b][r]), sum[i][b][r]);
                    sum[i][b][r] = reg_fma(least, all_x, sum[i][b][r]);
                }
            }
        }
        words = line;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int r = 0; r < REGS; r++)
                reg_store(out + i * to.row + b * to.block + r * REG / LANES * to.half + r * REG % LANES, sum[i][b][r]);
}

#define LOW_BITS(n, i, b)                                                                                              \
    static __attribute__((noinline)) void low_##n##_##i##_##b(TILE_ARGS)                                               \
    {                                                                                                                  \
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

/* Nearest bfloat16 of a positive number, as the high half of a word. */
static inline uint32_t high_word(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
}

/* Blocks of 32 outputs from bfloat16 in pair order to fewer bits: the 2^bits values of a group lie at equal distances
 * from its least weight to its greatest. */
void augury_low_bits(const bf16 *w, int64_t blocks, int64_t depth, int64_t bits, uint32_t *to)
{
    const float steps = (float)((1 << bits) - 1);
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t k = 0, n; k < depth; k += n, w += n * BLOCK) {
            n = depth - k < BLOCK ? depth - k : BLOCK;
            float least[BLOCK], most[BLOCK], scale[BLOCK];
            for (int o = 0; o < BLOCK; o++) least[o] = INFINITY, most[o] = -INFINITY;
            for (int64_t i = 0; i < n; i++)
                for (int o = 0; o < BLOCK; o++) {
                    const float v = widened(w[i * BLOCK + o]);
                    least[o] = v < least[o] ? v : least[o];
                    most[o] = v > most[o] ? v : most[o];
                }
            uint32_t *lines = to + BLOCK;
            memset(lines, 0, (size_t)(n * bits / 32 * BLOCK) * sizeof *lines);
            for (int o = 0; o < BLOCK; o++) { /* o in pair order, as it lies in w; natural order leaves */
                const uint32_t high = high_word((most[o] - least[o]) / steps);
                uint32_t low;
                memcpy(&low, &least[o], sizeof low);
                to[o / 2 + o % 2 * LANES] = high | low >> 16;
                scale[o] = widened((bf16)(high >> 16));
            }
            for (int64_t i = 0; i < n; i++)
                for (int o = 0; o < BLOCK; o++) {
                    float q = scale[o] > 0.0f ? rintf((widened(w[i * BLOCK + o]) - least[o]) / scale[o]) : 0.0f;
                    q = q >= 0.0f ? (q > steps ? steps : q) : 0.0f; /* no weight may be NaN; its bits would be undefined */
                    lines[i * bits / 32 * BLOCK + o / 2 + o % 2 * LANES] |= (uint32_t)q << (i % 4 * 8 + bits * (i / 4 % 2) % 8);
                }
            to = lines + n * bits / 32 * BLOCK;
        }
}
