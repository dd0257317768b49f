/* The likely tokens of a row whose logits are of few bits, computed anew from the head in 16. Included by native.c.
 *
 * Likely are those within `near` of the greatest, at most about `nearest` of them: they are counted in bins of equal width
 * below the greatest, and whole bins are taken as long as they fit. Threads count, list and compute each their share, and
 * meet between, so that what comes out does not depend on who was first.
 */

enum { BINS = 64 };

static inline int64_t bin_of(const Model *m, float greatest, float logit)
{
    return (int64_t)((greatest - logit) * ((float)BINS / m->near));
}

static float exact_logit(const Model *m, const float *x, int64_t token)
{
    const bf16 *w = m->head_rows + token * m->hidden;
    vec even = zero(), odd = zero();
    int64_t i = 0;
    for (; i + BLOCK <= m->hidden; i += BLOCK) {
        even = fma_(load(x + i), load_words(w + i), even);
        odd = fma_(load(x + i + LANES), load_words(w + i + LANES), odd);
    }
    float sum = sum_of(add(even, odd));
    for (; i < m->hidden; i++) sum += x[i] * widened(w[i]);
    return sum;
}

/* Of a thread's share of a row, first .. last - 1: count the likely tokens in `bins`, or, with `ids`, write those of the
 * first `kept` bins to ids[from], ids[from + 1], ... below `end`. */
static void likely(const Model *m, const float *logits, int64_t first, int64_t last, float greatest, int32_t *bins,
                   int32_t *ids, int64_t kept, int64_t from, int64_t end)
{
    if (!(fabsf(greatest) < INFINITY)) return; /* a broken model's: nothing is near */
    for (int64_t i = first; i < last; i += LANES)
        for (unsigned some = lanes_from_on(load(logits + i), greatest - m->near); some; some &= some - 1) {
            const int64_t token = i + __builtin_ctz(some), bin = bin_of(m, greatest, logits[token]);
            if (!ids && bin < BINS) bins[bin]++;
            if (ids && bin < kept && from < end) ids[from++] = (int32_t)token;
        }
}

static void sharpen(Worker *me, int64_t first_row)
{
    const Model *m = me->model;
    const int64_t threads = me->threads, self = me->index, blocks = m->vocab_pad / BLOCK;
    const int64_t first = share(blocks, self, threads) * BLOCK, last = share(blocks, self + 1, threads) * BLOCK;
    float greatest[GUESS_ROWS];
    int64_t count[GUESS_ROWS];
    for (int64_t r = first_row; r < m->rows; r++) {
        float *logits = m->logits + r * m->vocab_pad;
        for (int64_t i = m->vocab > first ? m->vocab : first; i < last; i++) logits[i] = -INFINITY; /* no tokens */
        vec most = all(-INFINITY);
        for (int64_t i = first; i < last; i += LANES) most = larger(most, load(logits + i));
        m->greatest[self * GUESS_ROWS + r] = largest_of(most);
    }
    sync_threads(me);
    for (int64_t r = first_row; r < m->rows; r++) {
        int32_t *bins = m->bins + (self * GUESS_ROWS + r) * BINS;
        greatest[r] = -INFINITY;
        for (int64_t t = 0; t < threads; t++) greatest[r] = fmaxf(greatest[r], m->greatest[t * GUESS_ROWS + r]);
        memset(bins, 0, BINS * sizeof *bins);
        likely(m, m->logits + r * m->vocab_pad, first, last, greatest[r], bins, NULL, 0, 0, 0);
    }
    sync_threads(me);
    for (int64_t r = first_row; r < m->rows; r++) {
        int64_t kept = 0, before = 0;
        for (count[r] = 0; kept < BINS; kept++) {
            int64_t more = 0, mine = 0;
            for (int64_t t = 0; t < threads; t++) {
                const int32_t n = m->bins[(t * GUESS_ROWS + r) * BINS + kept];
                more += n;
                if (t < self) mine += n;
            }
            if (kept && count[r] + more > m->nearest) break;
            count[r] += more;
            before += mine;
        }
        if (count[r] > m->nearest) count[r] = m->nearest; /* so many nearly tie */
        likely(m, m->logits + r * m->vocab_pad, first, last, greatest[r], NULL, m->candidates + r * m->nearest, kept, before,
               count[r]);
    }
    sync_threads(me);
    for (int64_t r = first_row; r < m->rows; r++) {
        const int32_t *ids = m->candidates + r * m->nearest;
        const int64_t end = share(count[r], self + 1, threads), step = (int64_t)m->group_rows[r] * LANES;
        const float *from = panel(m->inputs, m, r, m->width);
        float x[m->width];
        for (int64_t i = 0; i < m->width; i += LANES, from += step) store(x + i, load(from));
        for (int64_t c = share(count[r], self, threads); c < end; c++) {
            for (int64_t i = 0; c + 4 < end && i < m->hidden; i += BLOCK)
                _mm_prefetch((const char *)(m->head_rows + ids[c + 4] * m->hidden + i), _MM_HINT_T0);
            m->logits[r * m->vocab_pad + ids[c]] = exact_logit(m, x, ids[c]);
        }
    }
    sync_threads(me);
}
