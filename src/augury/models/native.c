/* One forward of a Llama-family model in one call, on CPUs with AVX-512 or AVX2.
 *
 * Promise: the bits of a row (logits, hidden state, keys, values) depend on the tokens at its positions alone.
 * It holds by construction, because every number is made by one fixed sequence of operations:
 *   - an output of a linear is one chain over k = 0, 1, 2, ... from zero, of fused multiply-adds or, where the CPU has
 *     them, of products of pairs of bfloat16, whichever of the tile kernels computes it, beside whatever other rows, on
 *     whatever thread;
 *   - a score is such a chain over the head's dimensions; a softmax sums positions p, p + 16, p + 32, ... in lane
 *     p mod 16 and then the lanes in a fixed tree; a weighted value is a chain over positions in order. Positions
 *     outside a row's sight add exact zeros or are not visited;
 *   - everything else is elementwise, or a sum over one row in a fixed tree.
 * The file must be compiled with -ffp-contract=off and without -ffast-math.
 *
 * Numbers: weights, keys and values are bfloat16; the inputs of linears are rounded to bfloat16 (nearest even);
 * all sums, the residual stream, queries, softmax and logits are float. Without products of bfloat16 weights are widened
 * in registers. With them (PAIRS) linears multiply two k at a time, which is up to twice as fast and nowhere slower;
 * queries and softmax are no bfloat16, so attention goes without.
 *
 * Layouts (1 line = 64 bytes = 32 bfloat16; "pair order" puts entry j in the low and entry 16 + j in the high
 * half of 32-bit word j, so that a shift and a mask widen a line to two vectors in natural order):
 *   weights  blocks of 32 outputs, each [k][32 outputs in pair order]; a gate_up block holds 16 gate, 16 up
 *   keys     per slot, layer, kv head: blocks of 32 cache rows, each [d][32 rows in pair order]
 *   values   per slot, layer, kv head: blocks of 32 dimensions, each [cache row][32 dimensions in pair order]
 *   panels   inputs of a group of <= 12 rows: [k / 16][row][16] floats, or bfloat16 in natural order for products
 *            of pairs
 * Weights, keys and values thus serve one kernel: out[row][0..31] = sum over k of x[row][k] * line[k].
 * Each thread's share of all linears lies in memory in the order in which a forward reads it.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef uint16_t bf16;

enum { LANES = 16, BLOCK = 32, GROUP = 12, LOW_GROUP = 4, GUESS_ROWS = 16, MAX_HEAD_DIM = 512 };
enum { ROWS, QKV, HEADS, ATTENTION, OUT, GATE_UP, DOWN, LOGITS, PHASES };

/* ------------------------------------------------------------------ what Python hands over (native.py mirrors) */

typedef struct {
    const float *pair_norm, *attn_norm, *q_norm, *k_norm, *post_attn_norm, *mlp_norm, *post_mlp_norm; /* null when absent */
    const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias;                            /* in output order */
    const float *cos, *sin; /* [context][rotated]; null without rotation */
    bf16 *keys, *values;    /* of slot 0 */
    int64_t rotated;        /* half of the rotated dimensions */
    int64_t window;         /* positions a query sees, itself included; 0 = all */
} Layer;

typedef struct {
    int64_t slot, length, first, rows; /* rows first .. first + rows - 1 of the forward go behind cache row length - 1 */
} Segment;

typedef struct {
    int64_t segment, kv_head, first, queries; /* queries of one kv head are numbered row * (heads / kv_heads) + head */
} Span;

typedef struct {
    /* Sizes with a "padded" note are rounded up so that every loop runs over whole vectors; padding is zero. */
    int64_t layers, hidden, width /* hidden, padded to 32 */, heads, kv_heads, head_dim, head_pad /* to 16 */,
        value_pad /* head_dim to 32 */, inner /* intermediate, to 16 */, qkv_width /* to 32 */, vocab_pad /* to 32 */;
    int64_t capacity /* cache rows, to 32 */, slot_keys, slot_values /* bfloat16 of one slot, all layers */, threads, gelu;
    float eps, attn_scale, attn_softcap, logit_softcap, embed_scale, near /* see below */;
    const bf16 *embed; /* [vocab][hidden], natural order */
    const float *final_norm;
    const Layer *layer;
    const bf16 *const *weights; /* [4 * layers + 1][threads]: each thread's share of qkv, o, gate_up, down, ..., head; of a
                                 * draft head one more, fuse */
    int64_t bits;               /* of a weight there: 16, or 8 or 4 as in lowbits.h */
    const bf16 *head_rows;      /* for fewer than 16 bits: the head, [vocab][hidden] in natural order, */
    int64_t vocab, nearest;     /* how many logits sharpen.h computes anew at most: those within `near` of the greatest, */
    float *greatest;            /* and its scratch: [threads][GUESS_ROWS], */
    int32_t *bins, *candidates; /* [threads][GUESS_ROWS][BINS] and [GUESS_ROWS][nearest] */
    const int64_t *order;       /* the layers that run, ascending */
    int64_t used;               /* how many */
    bf16 *tapped;               /* [slot][capacity][taps][width]: hidden states kept beside keys and values */
    const int64_t *tap_of;      /* [layers + 1]: place of the residual stream in front of a layer there, or -1 */
    int64_t taps;               /* how many; 0 keeps none */
    int64_t fused;              /* of a draft head: width of the hidden states it reads, padded to 16; 0 for a model */
    int64_t qkv_depth;          /* inputs of qkv: width, of a draft head twice that */
    /* scratch, allocated once for the largest forward */
    float *residual /* [rows][width] */, *inputs /* panels */, *inner_inputs /* panels */, *outputs /* [rows][widest] */,
        *scores /* per thread */, *logits /* [rows][vocab_pad] */, *hidden_out /* [rows][width] */;
    int64_t score_floats; /* of one thread */
    Span *spans;
    int32_t *group_start, *group_rows, *run; /* per row, filled by the forward */
    /* this forward */
    int64_t rows, segments, span_count, logit_rows /* of the last rows, those whose logits are wanted */;
    const float *given; /* of a draft head: [rows][fused] hidden states of the target, or [rows][width] its own */
    int64_t fuse;       /* whether `given` are the target's */
    const int32_t *tokens, *parents, *depths, *segment_of; /* per row */
    const Segment *segment;
    double seconds[PHASES]; /* wall time of the last forward by phase */
} Model;

/* ---------------------------------------------------------------------------------------------- thread pool
 * Workers spin briefly for the next forward, then sleep. Inside a forward all threads meet at barriers; they
 * spin with pause, and yield once the wait is long, so that a crowded machine does not crawl. */

typedef struct {
    int threads, started;
    pthread_t *handles;
    atomic_int *cpu; /* where each thread was when the last forward began */
    Model *model;
    _Alignas(64) atomic_int job; /* futex: grows by one for each forward */
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int sense;
    atomic_int stop;
} Pool;

typedef struct {
    Pool *pool;
    Model *model;
    int index, threads, sense;
    const char *ahead; /* how far the weight stream was prefetched */
    double mark;       /* when the current phase began */
} Worker;

enum { SPINS_BEFORE_YIELD = 4000, SPINS_BEFORE_SLEEP = 4000 }; /* a pause is some 40 ns */

static void sync_threads(Worker *me)
{
    Pool *p = me->pool;
    me->sense = !me->sense;
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == me->threads) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->sense, me->sense, memory_order_release);
        return;
    }
    for (int i = 0; atomic_load_explicit(&p->sense, memory_order_acquire) != me->sense; i++)
        if (i < SPINS_BEFORE_YIELD) _mm_pause();
        else sched_yield();
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All threads are done with a phase: meet, and let thread 0 note the time. */
static void end_phase(Worker *me, int phase)
{
    sync_threads(me);
    if (me->index == 0) {
        double t = now();
        me->model->seconds[phase] += t - me->mark;
        me->mark = t;
    }
}

/* A busy machine's scheduler wakes threads on their waker's CPU, where two of a team would take turns at every
 * barrier, a time slice each. Whoever finds another of the team on its CPU moves to a free one. */
static void part_ways(Worker *me)
{
    atomic_int *cpu = me->pool->cpu;
    cpu_set_t allowed, unused;
    int here = sched_getcpu(), clash = 0;
    atomic_store_explicit(cpu + me->index, here, memory_order_relaxed);
    for (int i = 0; i < me->index; i++) clash |= atomic_load_explicit(cpu + i, memory_order_relaxed) == here;
    if (!clash || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    unused = allowed;
    for (int i = 0; i < me->threads; i++) CPU_CLR(atomic_load_explicit(cpu + i, memory_order_relaxed), &unused);
    if (CPU_COUNT(&unused) == 0 || sched_setaffinity(0, sizeof unused, &unused)) return;
    sched_setaffinity(0, sizeof allowed, &allowed); /* moved; from here on it may go where it likes */
    atomic_store_explicit(cpu + me->index, sched_getcpu(), memory_order_relaxed);
}

static void forward(Worker *me);

typedef struct {
    Pool *pool;
    int index;
} Start;

static void *work(void *start)
{
    Worker me = {.pool = ((Start *)start)->pool, .index = ((Start *)start)->index};
    free(start);
    me.threads = me.pool->threads;
    for (int seen = 0;; seen++) {
        for (int i = 0; atomic_load_explicit(&me.pool->job, memory_order_acquire) == seen; i++)
            if (i < SPINS_BEFORE_SLEEP) _mm_pause();
            else syscall(SYS_futex, &me.pool->job, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        if (atomic_load(&me.pool->stop)) return NULL;
        me.model = me.pool->model;
        me.ahead = NULL; /* what the last forward prefetched says nothing of this one */
        part_ways(&me);
        forward(&me);
    }
}

static void wake(Pool *p)
{
    atomic_fetch_add_explicit(&p->job, 1, memory_order_release);
    syscall(SYS_futex, &p->job, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void augury_pool_free(Pool *p)
{
    atomic_store(&p->stop, 1);
    wake(p);
    for (int i = 0; i < p->started; i++) pthread_join(p->handles[i], NULL);
    free(p->handles);
    free(p->cpu);
    free(p);
}

Pool *augury_pool_new(int threads)
{
    Pool *p = aligned_alloc(64, sizeof(Pool));
    if (!p) return NULL;
    memset(p, 0, sizeof(Pool));
    p->threads = threads; /* the caller of a forward is one of them */
    p->handles = calloc((size_t)threads, sizeof(pthread_t));
    p->cpu = calloc((size_t)threads, sizeof(atomic_int));
    for (Start *start; p->handles && p->cpu && p->started < threads - 1; p->started++) {
        if (!(start = malloc(sizeof(Start)))) break;
        *start = (Start){p, p->started + 1};
        if (pthread_create(&p->handles[p->started], NULL, work, start)) {
            free(start);
            break;
        }
    }
    if (p->handles && p->cpu && p->started == threads - 1) return p;
    augury_pool_free(p);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ arithmetic */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "lanes512.h"
#else
#include "lanes256.h"
#endif

const char *augury_lanes(void) { return LANES_NAME; }

/* e^x: x = n ln 2 + r, |r| <= 0.35, Taylor to r^7 (remainder below 6e-9), scaled by 2^n. */
static inline vec exp_(vec x)
{
    x = clamp(x, -170.0f, 170.0f); /* beyond, a float is zero or infinite anyway */
    vec n = whole_number(mul(x, all(1.44269504f)));
    vec r = fnma_(n, all(0.693145752f), x); /* ln 2 in two parts: the first has trailing zeros */
    r = fnma_(n, all(1.42860677e-6f), r);
    vec y = fma_(r, all(1.0f / 5040), all(1.0f / 720));
    y = fma_(y, r, all(1.0f / 120));
    y = fma_(y, r, all(1.0f / 24));
    y = fma_(y, r, all(1.0f / 6));
    y = fma_(y, r, all(0.5f));
    y = fma_(y, r, all(1.0f));
    y = fma_(y, r, all(1.0f));
    return times_2_to(y, n);
}

static inline vec softcap(vec s, float cap) /* c tanh(s / c), tanh x = 1 - 2 / (e^2x + 1) */
{
    vec e = exp_(mul(s, all(2.0f / cap)));
    return mul(all(cap), sub(all(1.0f), div_(all(2.0f), add(e, all(1.0f)))));
}

/* x sigmoid(t): SiLU has t = x; tanh-GELU has t = 2 sqrt(2 / pi) (x + 0.044715 x^3). */
static inline vec activated(vec x, int gelu)
{
    vec t = x;
    if (gelu) t = mul(mul(x, all(1.59576912f)), fma_(mul(x, x), all(0.044715f), all(1.0f)));
    return div_(x, add(all(1.0f), exp_(sub(zero(), t))));
}

/* 1 / sqrt(mean of squares + eps) of x[0..padded), whose padding is zero. */
static float norm_factor(const float *x, int64_t padded, int64_t n, float eps)
{
    vec even = zero(), odd = zero();
    int64_t i = 0;
    for (; i + BLOCK <= padded; i += BLOCK) {
        vec a = load(x + i), b = load(x + i + LANES);
        even = fma_(a, a, even);
        odd = fma_(b, b, odd);
    }
    if (i < padded) even = fma_(load(x + i), load(x + i), even);
    return 1.0f / sqrtf(sum_of(add(even, odd)) / (float)n + eps);
}

/* ----------------------------------------------------------------------------------------------- prefetching */

/* How far ahead: lines go to the second-level cache early enough to cover the latency of memory and not so early that
 * they leave it before use, and to the first-level cache NEAR lines before use. */
enum { AHEAD = 65536, FARTHEST = 524288 /* bytes */, NEAR = PAIRS ? 128 : 64 };

/* Where prefetching goes on, for a kernel at weights w that will work on `lines` lines. Attention, which reads other
 * memory, moves it on too, so that memory does not idle meanwhile. */
static const char *prefetch_from(Worker *me, const bf16 *w, int64_t nearest, int64_t lines)
{
    const char *near = (const char *)w + nearest, *far = near + FARTHEST;
    const char *from = me->ahead < near ? near : me->ahead > far ? far : me->ahead;
    me->ahead = from + (lines + LANES - 1) / LANES * 1024;
    return from;
}

/* ------------------------------------------------------------------------------------------------ the kernel
 * out[row][32 b + j] = sum over k of x[row][k] * w[b][k][j] for one group of rows and 1 or 2 blocks b. The row and
 * block counts are compile-time constants, so that all sums stay in registers: 12 x 32 outputs take 24 of 32. */

typedef struct {
    int64_t row, half, block; /* where out puts row r, upper 16 outputs, block b; in floats */
} Strides;

/* Groups of rows that work on the same lines share the prefetching of what comes: of `all` groups this is number `mine`. */
typedef struct {
    int64_t mine, all;
} Turn;

enum { STRETCH = 256 }; /* lines: half of a first-level cache of 32 kB */

#define TILE_ARGS                                                                                                      \
    const float *x, const bf16 *w, int64_t pitch, int64_t depth, const char *ahead, Turn turn, float *out, Strides to
typedef void Tile(TILE_ARGS);

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

/* A tile's sums: [row][block][register of a half line][half]. */
typedef reg Sums[GROUP][2][PARTS][2];

/* sum += x * line for one k. */
INLINE void tile_step(const int rows, const int blocks, const int parts, Sums sum, const float *x, const bf16 *w,
                      int64_t pitch)
{
    reg low[2][PARTS], high[2][PARTS];
    UNROLL for (int b = 0; b < blocks; b++)
        UNROLL for (int p = 0; p < parts; p++)
            reg_widen(w + b * pitch + p * (BLOCK / PARTS), &low[b][p], &high[b][p]);
    UNROLL for (int r = 0; r < rows; r++) {
        reg v = reg_all(x[r * LANES]);
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int p = 0; p < parts; p++) {
                sum[r][b][p][0] = reg_fma(v, low[b][p], sum[r][b][p][0]);
                sum[r][b][p][1] = reg_fma(v, high[b][p], sum[r][b][p][1]);
            }
    }
}

#if PAIRS
/* sum += x[k] * line[k] + x[k + 1] * line[k + 1]; x is at a pair. */
INLINE void pair_step(const int rows, const int blocks, Sums sum, const float *x, const bf16 *w, int64_t pitch)
{
    pairs low[2], high[2];
    UNROLL for (int b = 0; b < blocks; b++)
        pair_up(line_of(w + b * pitch), line_of(w + b * pitch + BLOCK), &low[b], &high[b]);
    UNROLL for (int r = 0; r < rows; r++) {
        const pairs v = pair_all(x + r * LANES / 2);
        UNROLL for (int b = 0; b < blocks; b++) {
            sum[r][b][0][0] = pair_dot(sum[r][b][0][0], low[b], v);
            sum[r][b][0][1] = pair_dot(sum[r][b][0][1], high[b], v);
        }
    }
}
#endif

/* Which lines to fetch while 16 lines are worked on, for a stream that has been fetched up to `ahead`: in every 32 kB
 * the next two of each of eight pages, because the hardware's own prefetchers work page by page, and eight of them
 * keep more requests in flight than one. Line i of the 16 is at + i % 8 * 4096 + i / 8 * 64. */
static inline const char *spread(const char *ahead)
{
    uintptr_t at = (uintptr_t)ahead;
    return (const char *)((at & ~(uintptr_t)32767) + at % 32768 / 1024 * 128);
}

/* The sums of `rows` of the `panel_rows` rows in x, for `parts` registers of each half line; they go on from what is
 * in `out` unless this is the first of their lines. Each pass `of` several does its share of the prefetching. */
INLINE void tile(const int rows, const int blocks, const int paired, const int parts, const int panel_rows, const int pass,
                 const int of, int first, TILE_ARGS)
{
    Sums sum;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int p = 0; p < parts; p++) {
                const float *at = out + r * to.row + b * to.block + p * (LANES / PARTS);
                sum[r][b][p][0] = first ? reg_zero() : reg_load(at);
                sum[r][b][p][1] = first ? reg_zero() : reg_load(at + to.half);
            }
    const int step = paired ? 2 : 1; /* lines; linears have a multiple of 16 */
    const int64_t whole = depth / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES / 2) {
        const float *at = x + (k / LANES * LANES * panel_rows + k % LANES) / step;
        const char *fetch[2];
        const int mine = turn.mine == 0;
        turn.mine = mine ? turn.all - 1 : turn.mine - 1;
        UNROLL for (int b = 0; b < blocks; b++)
            fetch[b] = mine ? spread(ahead + (k / LANES * blocks + b) * 1024) + k % LANES / (LANES / 2) * 64 : (const char *)w;
        _Pragma("GCC unroll STEPS") for (int i = 0; i < LANES / 2; i += step, at++, w += step * BLOCK) {
            if (i % of == pass)
                UNROLL for (int b = 0; b < blocks; b++)
                    UNROLL for (int j = 0; j < step; j++) {
                        _mm_prefetch(fetch[b] + (i + j) * 4096, _MM_HINT_T1);
                        _mm_prefetch(w + b * pitch + (NEAR + j) * BLOCK, _MM_HINT_T0);
                    }
#if PAIRS
            if (paired) {
                pair_step(rows, blocks, sum, at, w, pitch);
                continue;
            }
#endif
            tile_step(rows, blocks, parts, sum, at, w, pitch);
        }
    }
    for (int64_t k = whole; k < depth; k++, w += BLOCK)
        tile_step(rows, blocks, parts, sum, x + whole * panel_rows + k - whole, w, pitch);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int p = 0; p < parts; p++) {
                float *at = out + r * to.row + b * to.block + p * (LANES / PARTS);
                reg_store(at, sum[r][b][p][0]);
                reg_store(at + to.half, sum[r][b][p][1]);
            }
}

/* A whole group of rows, in as many passes as its sums need to fit into registers. Several passes go over a stretch
 * of lines that the first-level cache can hold, then over the next. */
INLINE void passes(const int rows, const int blocks, const int paired, TILE_ARGS)
{
    const int parts = 2 * rows * blocks * PARTS <= WHOLE_LINES ? PARTS : 1;
    const int most = 2 * rows * blocks * parts <= REGISTERS ? rows : (rows + 1) / 2;
    const int64_t stretch = parts == PARTS && most == rows ? depth : STRETCH;
    int64_t k = 0;
    do {
        const int64_t lines = depth - k < stretch ? depth - k : stretch;
        UNROLL for (int r = 0; r < rows; r += most)
            UNROLL for (int p = 0; p < PARTS; p += parts)
                tile(r + most < rows ? most : rows - r, blocks, paired, parts, rows, r / most * (PARTS / parts) + p,
                     (rows + most - 1) / most * (PARTS / parts), k == 0,
                     x + k * rows + r * LANES, w + k * BLOCK + p * (BLOCK / PARTS), pitch, lines,
                     ahead + k * blocks * 64, turn, out + r * to.row + p * (LANES / PARTS), to);
        k += lines;
    } while (k < depth);
}

#define TILE(name, paired, r, b)                                                                                       \
    static __attribute__((noinline)) void name##_##r##_##b(TILE_ARGS)                                                  \
    {                                                                                                                  \
        passes(r, b, paired, x, w, pitch, depth, ahead, turn, out, to);                                                      \
    }
#define TILES(name, paired)                                                                                            \
    TILE(name, paired, 1, 1) TILE(name, paired, 2, 1) TILE(name, paired, 3, 1) TILE(name, paired, 4, 1)                \
    TILE(name, paired, 5, 1) TILE(name, paired, 6, 1) TILE(name, paired, 7, 1) TILE(name, paired, 8, 1)                \
    TILE(name, paired, 9, 1) TILE(name, paired, 10, 1) TILE(name, paired, 11, 1) TILE(name, paired, 12, 1)             \
    TILE(name, paired, 1, 2) TILE(name, paired, 2, 2) TILE(name, paired, 3, 2) TILE(name, paired, 4, 2)                \
    TILE(name, paired, 5, 2) TILE(name, paired, 6, 2)                                                                  \
    static Tile *const name##_tiles[2][GROUP + 1] = { /* of one block, of two; by rows */                                   \
        {NULL, name##_1_1, name##_2_1, name##_3_1, name##_4_1, name##_5_1, name##_6_1, name##_7_1, name##_8_1,         \
         name##_9_1, name##_10_1, name##_11_1, name##_12_1},                                                           \
        {NULL, name##_1_2, name##_2_2, name##_3_2, name##_4_2, name##_5_2, name##_6_2},                                \
    };
TILES(plain, 0)
#if PAIRS
TILES(paired, 1)
#define LINEARS paired_tiles
#else
#define LINEARS plain_tiles
#endif

/* Two blocks at a time for few rows: a chain of FMAs has a latency of four, and two chains cannot hide it. */
static inline int blocks_at_once(int64_t rows, int64_t left)
{
    return 4 * rows * PARTS <= WHOLE_LINES && left >= 2 ? 2 : 1;
}

#include "lowbits.h"

/* ----------------------------------------------------------------------------------------------------- linears */

static inline int64_t share(int64_t n, int64_t part, int64_t parts) { return n * part / parts; }

/* Floats that 16 inputs of a row take in a panel. */
static inline int64_t cell(const Model *m) { return PAIRS && m->bits == 16 ? LANES / 2 : LANES; }

/* 16 inputs of the next linear, rounded as its kernel takes them. */
static inline void put_input(const Model *m, float *panel, vec v)
{
#if PAIRS
    if (m->bits == 16) {
        store_words((bf16 *)panel, v);
        return;
    }
#endif
    (void)m;
    store(panel, rounded(v));
}

/* A row's place in a panel buffer of `depth` columns; its next 16 columns lie next_cell floats further. */
static inline float *panel(float *panels, const Model *m, int64_t row, int64_t depth)
{
    int64_t first = m->group_start[row];
    return panels + (first * depth / LANES + row - first) * cell(m);
}
static inline int64_t next_cell(const Model *m, int64_t row) { return m->group_rows[row] * cell(m); }

/* Outputs of this thread's share of one linear, from `first_row` on, which a group begins. With `inner`, the blocks are
 * gate and up: what leaves is the activated product as a panel for the next linear; else rows of `width` floats in `out`. */
static void linear(Worker *me, int64_t op, const float *panels, int64_t depth, int64_t blocks, float *out, int64_t width,
                   const Layer *inner, int64_t first_row)
{
    const Model *m = me->model;
    const bf16 *w = m->weights[op * m->threads + me->index];
    const int64_t first = share(blocks, me->index, me->threads), last = share(blocks, me->index + 1, me->threads);
    const int64_t bits = m->bits, pitch = bits == 16 ? depth * BLOCK : 2 * low_words(depth, bits);
    float pair[GROUP * BLOCK] __attribute__((aligned(64))); /* two blocks of at most 6 rows fit too */
    float bytes[bits < 16 ? m->rows * row_words(depth) : 1];
    if (bits < 16)
        for (int64_t r = first_row; r < m->rows; r++) {
            const int64_t group = m->group_start[r];
            into_bytes(panels + group * depth + (r - group) * LANES, (int64_t)m->group_rows[r] * LANES, depth, bits,
                       bytes + r * row_words(depth));
        }
    for (int64_t b = first, n; b < last; b += n, w += n * pitch) {
        /* Pairs take half as many operations: what two rows have in flight is enough, and one block is one stream. */
        n = (bits == 16 && !PAIRS) || m->rows == 1 ? blocks_at_once(m->rows, last - b) : 1;
        const char *ahead = NULL;
        for (int64_t r = first_row, rows; r < m->rows; r += rows) {
            rows = m->group_rows[r];
            const int64_t lines = n * pitch / BLOCK;
            const Turn turn = {(r - first_row) / GROUP, (m->rows - first_row + GROUP - 1) / GROUP};
            if (r == first_row) ahead = prefetch_from(me, w, AHEAD + (n - 1) * pitch * 2, lines);
            else if (bits < 16) ahead = (const char *)w;
            Tile *kernel = bits == 16 ? LINEARS[n - 1][rows] : LOW_TILES[bits == 8][n == 2 ? 0 : rows];
            const float *x = bits == 16 ? panels + r * depth / LANES * cell(m) : bytes + r * row_words(depth);
            if (!inner) {
                kernel(x, w, pitch, depth, ahead, turn, out + r * width + b * BLOCK, (Strides){width, LANES, BLOCK});
                continue;
            }
            kernel(x, w, pitch, depth, ahead, turn, pair, (Strides){BLOCK, LANES, rows * BLOCK});
            for (int64_t i = 0; i < n * rows; i++) {
                int64_t block = b + i / rows, row = r + i % rows;
                vec gate = load(pair + i * BLOCK), up = load(pair + i * BLOCK + LANES);
                if (inner->gate_up_bias) {
                    gate = add(gate, load(inner->gate_up_bias + block * BLOCK));
                    up = add(up, load(inner->gate_up_bias + block * BLOCK + LANES));
                }
                put_input(m, panel(out, m, row, m->inner) + block * next_cell(m, row), mul(activated(gate, (int)m->gelu), up));
            }
        }
    }
}

#include "sharpen.h"

/* --------------------------------------------------------------------------- rows: embedding, norms, residual */

static void embed_row(const Model *m, int64_t row)
{
    const bf16 *from = m->embed + (int64_t)m->tokens[row] * m->hidden;
    float *x = m->residual + row * m->width;
    for (int64_t i = 0; i < m->hidden; i++) x[i] = widened(from[i]) * m->embed_scale;
}

/* residual += bias + output of a linear, itself normed when the family has post norms */
static void add_to_residual(const Model *m, int64_t row, const float *bias, const float *post_norm)
{
    float *x = m->residual + row * m->width, *y = m->outputs + row * m->width;
    if (bias)
        for (int64_t i = 0; i < m->width; i += LANES) store(y + i, add(load(y + i), load(bias + i)));
    if (post_norm) {
        vec f = all(norm_factor(y, m->width, m->hidden, m->eps));
        for (int64_t i = 0; i < m->width; i += LANES) store(y + i, mul(mul(load(y + i), f), load(post_norm + i)));
    }
    for (int64_t i = 0; i < m->width; i += LANES) store(x + i, add(load(x + i), load(y + i)));
}

/* Normed row into a panel as input of the next linear, and unrounded into `plain` if not null. */
static void norm_into_panel(const Model *m, int64_t row, const float *norm, float *plain)
{
    const float *x = m->residual + row * m->width;
    const int64_t step = next_cell(m, row);
    float *to = panel(m->inputs, m, row, m->width);
    vec f = all(norm_factor(x, m->width, m->hidden, m->eps));
    for (int64_t i = 0; i < m->width; i += LANES, to += step) {
        vec v = mul(mul(load(x + i), f), load(norm + i));
        put_input(m, to, v);
        if (plain) store(plain + i, v);
    }
}

/* A row of floats, rounded, as input of the next linear. */
static void into_panel(const Model *m, int64_t row, const float *x, int64_t depth)
{
    const int64_t step = next_cell(m, row);
    float *to = panel(m->inputs, m, row, depth);
    for (int64_t i = 0; i < depth; i += LANES, to += step) put_input(m, to, load(x + i));
}

/* A draft head's first input: the token's embedding and the row's feature (the residual stream), both normed. */
static void pair_into_panel(const Model *m, int64_t row, const Layer *l)
{
    const bf16 *from = m->embed + (int64_t)m->tokens[row] * m->hidden;
    float *e = m->outputs + row * m->width, *to = panel(m->inputs, m, row, 2 * m->width);
    const float *x = m->residual + row * m->width;
    const int64_t step = next_cell(m, row);
    for (int64_t i = 0; i < m->width; i++) e[i] = i < m->hidden ? widened(from[i]) * m->embed_scale : 0.0f;
    vec f = all(norm_factor(e, m->width, m->hidden, m->eps));
    for (int64_t i = 0; i < m->width; i += LANES, to += step)
        put_input(m, to, mul(mul(load(e + i), f), load(l->pair_norm + i)));
    f = all(norm_factor(x, m->width, m->hidden, m->eps));
    for (int64_t i = 0; i < m->width; i += LANES, to += step)
        put_input(m, to, mul(mul(load(x + i), f), load(l->attn_norm + i)));
}

/* Keep a row's residual stream in front of a layer, if that is tapped. */
static void keep_tapped(const Model *m, int64_t row, int64_t layer)
{
    if (!m->taps || m->tap_of[layer] < 0) return;
    const Segment *s = m->segment + m->segment_of[row];
    const float *x = m->residual + row * m->width;
    bf16 *to = m->tapped +
               ((s->slot * m->capacity + s->length + row - s->first) * m->taps + m->tap_of[layer]) * m->width;
    for (int64_t i = 0; i < m->width; i += LANES) {
        uint32_t bits[LANES];
        store((float *)bits, rounded(load(x + i)));
        for (int64_t j = 0; j < LANES; j++) to[i + j] = (bf16)(bits[j] >> 16);
    }
}

/* ---------------------------------------------------------------------- heads: bias, norm, rotation, into cache */

static void rotate(float *x, const float *cos, const float *sin, int64_t half)
{
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t n = half - i;
        vec a = load_first(x + i, n), b = load_first(x + half + i, n);
        vec c = load_first(cos + i, n), s = load_first(sin + i, n);
        store_first(x + i, n, fms_(a, c, mul(b, s)));
        store_first(x + half + i, n, fma_(b, c, mul(a, s)));
    }
}

static bf16 *key_place(const Model *m, const Layer *l, int64_t slot, int64_t kv, int64_t row)
{
    int64_t block = kv * (m->capacity / BLOCK) + row / BLOCK;
    return l->keys + slot * m->slot_keys + block * m->head_pad * BLOCK + row % LANES * 2 + row % BLOCK / LANES;
}

static bf16 *value_place(const Model *m, const Layer *l, int64_t slot, int64_t kv, int64_t row)
{
    return l->values + slot * m->slot_values + (kv * m->value_pad * m->capacity + row * BLOCK);
}

/* Head j of one row, q heads first, then k, then v. Queries stay in `outputs`, scaled. */
static void finish_head(const Model *m, const Layer *l, int64_t row, int64_t j)
{
    const Segment *s = m->segment + m->segment_of[row];
    const int64_t n = m->head_pad, kv = (j - m->heads) % m->kv_heads, cache_row = s->length + row - s->first;
    const int is_query = j < m->heads, is_key = !is_query && j < m->heads + m->kv_heads;
    float *x = m->outputs + row * m->qkv_width + j * n;
    if (l->qkv_bias)
        for (int64_t i = 0; i < n; i += LANES) store(x + i, add(load(x + i), load(l->qkv_bias + j * n + i)));
    if (!is_query && !is_key) {
        bf16 *to = value_place(m, l, s->slot, kv, cache_row);
        for (int64_t i = 0; i < n; i += BLOCK, to += m->capacity * BLOCK)
            store_line(to, line_from(rounded(load(x + i)), i + LANES < n ? rounded(load(x + i + LANES)) : zero()));
        return;
    }
    const float *norm = is_query ? l->q_norm : l->k_norm;
    if (norm) {
        vec f = all(norm_factor(x, n, m->head_dim, m->eps));
        for (int64_t i = 0; i < n; i += LANES) store(x + i, mul(mul(load(x + i), f), load(norm + i)));
    }
    if (l->cos) {
        int64_t at = (s->length + m->depths[row]) * l->rotated;
        rotate(x, l->cos + at, l->sin + at, l->rotated);
    }
    if (is_query) {
        for (int64_t i = 0; i < n; i += LANES) store(x + i, mul(load(x + i), all(m->attn_scale)));
        return;
    }
    bf16 *to = key_place(m, l, s->slot, kv, cache_row);
    for (int64_t i = 0; i < n; i += LANES) {
        uint32_t bits[LANES];
        store((float *)bits, rounded(load(x + i)));
        for (int64_t d = 0; d < LANES; d++, to += BLOCK) *to = (bf16)(bits[d] >> 16);
    }
}

/* --------------------------------------------------------------------------------------------------- attention */

/* Rows of a path that follow the shared ones, in position order; gives how many. */
static int64_t path_tail(const int32_t *parents, int64_t row, int64_t depth, int64_t shared, int32_t *tail)
{
    for (int64_t d = depth; d >= shared; d--, row = parents[row]) tail[d - shared] = (int32_t)row;
    return depth + 1 - shared;
}

static inline float *score_at(float *scores, int64_t queries, int64_t q, int64_t position)
{
    return scores + (position / LANES * queries + q) * LANES + position % LANES;
}

/* Scores of positions low .. high become exp(score - max), all others in their chunks zero; gives the sum. */
static float softmax(float *scores, int64_t queries, int64_t q, int64_t from, int64_t low, int64_t high, float cap)
{
    const int64_t step = queries * LANES, chunks = (high - from) / LANES + 1;
    float *x = score_at(scores, queries, q, from);
    vec top = all(-INFINITY), sum = zero();
    for (int64_t c = 0; c < chunks; c++) {
        vec s = load(x + c * step);
        if (cap > 0.0f) s = softcap(s, cap);
        s = where_within(s, (int32_t)(from + c * LANES), (int32_t)low, (int32_t)high, all(-INFINITY));
        store(x + c * step, s);
        top = larger(top, s);
    }
    const vec most = all(largest_of(top));
    for (int64_t c = 0; c < chunks; c++) {
        vec s = load(x + c * step);
        vec p = where_finite(s, exp_(sub(s, most)));
        store(x + c * step, p);
        sum = add(sum, p);
    }
    return sum_of(sum);
}

/* What to prefetch while `lines` lines of cache are worked on: what follows them in the cache, when there are many
 * (`left`) yet, else the weights that come next. */
static const char *fetch_cache(Worker *me, const bf16 *from, int64_t left, int64_t lines, const bf16 *next_weights)
{
    return left * 64 > 2 * AHEAD ? (const char *)from + AHEAD : prefetch_from(me, next_weights, 0, lines);
}

/* Attention of some queries of one kv head. Their rows share a prefix whose cache rows are its positions: the
 * committed rows and, in a chain, the rows before them. It is scored and summed for all queries at once; what is
 * left of each path is fetched row by row, in position order. */
static void attend(Worker *me, const Layer *l, const bf16 *next_weights, const Span *span)
{
    const Model *m = me->model;
    const Segment *s = m->segment + span->segment;
    const int64_t group = m->heads / m->kv_heads, queries = span->queries, dims = m->head_pad, wide = m->value_pad;
    const int64_t first = span->first / group, last = (span->first + queries - 1) / group, base = s->first;
    const int32_t *parents = m->parents + base, *depths = m->depths + base;
    int64_t shared = last + 1, earliest = s->length + depths[first], low[GROUP];
    float *q = m->scores + me->index * m->score_floats, *out = q + GROUP * dims, *scores = out + GROUP * wide;
    float sums[GROUP];

    for (int64_t r = first; r <= last; r++) {
        if (m->run[base + r] < shared) shared = m->run[base + r];
        if (s->length + depths[r] < earliest) earliest = s->length + depths[r];
    }
    const int64_t from = l->window && earliest >= l->window ? (earliest - l->window + 1) / BLOCK * BLOCK : 0;
    const int64_t common = s->length + shared; /* positions below it have their own cache row */

    for (int64_t i = 0; i < queries; i++) {
        int64_t row = (span->first + i) / group, head = span->kv_head * group + (span->first + i) % group;
        const float *x = m->outputs + (base + row) * m->qkv_width + head * dims;
        for (int64_t c = 0; c < dims / LANES; c++) store(q + (c * queries + i) * LANES, load(x + c * LANES));
    }

    const int64_t blocks = (s->length + last) / BLOCK + 1;
    const bf16 *keys = key_place(m, l, s->slot, span->kv_head, from);
    for (int64_t b = from / BLOCK, n; b < blocks; b += n, keys += n * dims * BLOCK) {
        n = blocks_at_once(queries, blocks - b);
        const char *ahead = fetch_cache(me, keys, (blocks - b) * dims, n * dims, next_weights);
        plain_tiles[n - 1][queries](q, keys, dims * BLOCK, dims, ahead, (Turn){0, 1}, score_at(scores, queries, 0, b * BLOCK),
                              (Strides){LANES, queries * LANES, 2 * queries * LANES});
    }

    int32_t tail[GROUP][s->rows];
    int64_t tails[GROUP];
    for (int64_t i = 0; i < queries; i++) {
        const int64_t row = (span->first + i) / group, high = s->length + depths[row];
        tails[i] = path_tail(parents, row, depths[row], shared, tail[i]);
        for (int64_t t = 0; t < tails[i]; t++) /* in place: a row never lies before its position */
            *score_at(scores, queries, i, common + t) = *score_at(scores, queries, i, s->length + tail[i][t]);
        low[i] = l->window && high >= l->window ? high - l->window + 1 : 0;
        sums[i] = softmax(scores, queries, i, from, low[i], high, m->attn_softcap);
    }

    const bf16 *values = value_place(m, l, s->slot, span->kv_head, 0);
    const int64_t depth = common > from ? common - from : 0;
    for (int64_t b = 0; b < wide / BLOCK; b++) {
        const bf16 *w = values + (b * m->capacity + from) * BLOCK;
        plain_tiles[0][queries](score_at(scores, queries, 0, from), w, 0, depth, fetch_cache(me, w, depth, depth, next_weights), (Turn){0, 1},
                          out + b * BLOCK, (Strides){wide, LANES, 0});
    }

    for (int64_t i = 0; i < queries; i++) {
        const int64_t row = base + (span->first + i) / group, head = span->kv_head * group + (span->first + i) % group;
        const int64_t step = next_cell(m, row);
        float *to = panel(m->inputs, m, row, m->heads * dims) + head * dims / LANES * step;
        const vec scale = all(1.0f / sums[i]);
        for (int64_t d = 0; d < dims; d += BLOCK) {
            vec a = load(out + i * wide + d), b = load(out + i * wide + d + LANES);
            for (int64_t t = low[i] > common ? low[i] - common : 0; t < tails[i]; t++) {
                vec p = all(*score_at(scores, queries, i, common + t));
                line words = line_of(values + (d / BLOCK * m->capacity + s->length + tail[i][t]) * BLOCK);
                a = fma_(p, low_half(words), a);
                b = fma_(p, high_half(words), b);
            }
            put_input(m, to + d / LANES * step, mul(a, scale));
            if (d + LANES < dims) put_input(m, to + (d / LANES + 1) * step, mul(b, scale));
        }
    }
}

/* Cut each segment's queries into spans of at most 12 of one kv head. A span costs a walk through the head's cache,
 * in which up to some 9 queries are free; the busiest thread should walk least. */
static int64_t cut_spans(const Model *m)
{
    int64_t n = 0;
    for (int64_t s = 0; s < m->segments; s++) {
        const int64_t queries = m->segment[s].rows * (m->heads / m->kv_heads), fewest = (queries + GROUP - 1) / GROUP;
        int64_t pieces = fewest, least = INT64_MAX;
        for (int64_t p = fewest; p <= queries && p <= fewest + m->threads; p++) {
            const int64_t walks = (m->kv_heads * p + m->threads - 1) / m->threads, each = (queries + p - 1) / p;
            if (walks * (each < 9 ? 9 : each) >= least) continue;
            least = walks * (each < 9 ? 9 : each);
            pieces = p;
        }
        for (int64_t kv = 0; kv < m->kv_heads; kv++)
            for (int64_t p = 0; p < pieces; p++) {
                int64_t a = share(queries, p, pieces), b = share(queries, p + 1, pieces);
                m->spans[n++] = (Span){s, kv, a, b - a};
            }
    }
    return n;
}

/* ------------------------------------------------------------------------------------------------ the forward */

static void cap_logits(Worker *me, int64_t first_row)
{
    const Model *m = me->model;
    const int64_t first = share(m->vocab_pad / BLOCK, me->index, me->threads) * BLOCK,
                  last = share(m->vocab_pad / BLOCK, me->index + 1, me->threads) * BLOCK;
    for (int64_t r = first_row; r < m->rows; r++)
        for (float *x = m->logits + r * m->vocab_pad + first; x < m->logits + r * m->vocab_pad + last; x += LANES)
            store(x, softcap(load(x), m->logit_softcap));
}

/* Groups of rows for the kernels, and for each row how many of its first ancestors lie at their own position. */
static void arrange_rows(Model *m)
{
    const int64_t most = m->bits == 16 ? GROUP : LOW_GROUP;
    for (int64_t a = 0; a < m->rows; a += most) {
        const int64_t b = a + most < m->rows ? a + most : m->rows;
        for (int64_t r = a; r < b; r++) {
            m->group_start[r] = (int32_t)a;
            m->group_rows[r] = (int32_t)(b - a);
        }
    }
    for (int64_t s = 0; s < m->segments; s++) {
        const int64_t base = m->segment[s].first;
        m->run[base] = 1;
        for (int64_t r = 1; r < m->segment[s].rows; r++) {
            const int32_t p = m->parents[base + r], run = p < 0 ? 0 : m->run[base + p];
            m->run[base + r] = p == r - 1 && run == p + 1 ? run + 1 : run;
        }
    }
}

static void forward(Worker *me)
{
    Model *m = me->model;
    const int64_t threads = me->threads, self = me->index, rows = m->rows, heads = m->heads + 2 * m->kv_heads;
    /* Rows that lie side by side in a panel may share a line, which two threads would fight for. */
    const int64_t mine = share(rows, self, threads), end = share(rows, self + 1, threads);
    /* Read once: behind the last barrier the next call may set them. */
    const int64_t logit_rows = m->logit_rows, used = m->used;
    /* A prompt chunk is for its keys and values: the last layer makes them and stops, unless its output is kept. */
    const int whole = logit_rows || (m->taps && m->tap_of[m->layers] >= 0);
    /* Subnormals are zero on every thread: no slow path, and no dependence on what the caller has set. */
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    if (self == 0) {
        memset(m->seconds, 0, sizeof m->seconds);
        me->mark = now();
        arrange_rows(m);
        m->span_count = cut_spans(m);
    }
    sync_threads(me);
    if (m->fuse) {
        for (int64_t r = mine; r < end; r++) into_panel(m, r, m->given + r * m->fused, m->fused);
        end_phase(me, ROWS);
        linear(me, 4 * m->layers + 1, m->inputs, m->fused, m->width / BLOCK, m->residual, m->width, NULL, 0);
        end_phase(me, OUT);
    }
    for (int64_t r = mine; r < end; r++) {
        if (!m->fused) {
            embed_row(m, r);
            keep_tapped(m, r, 0);
            norm_into_panel(m, r, m->layer[m->order[0]].attn_norm, NULL);
            continue;
        }
        float *x = m->residual + r * m->width;
        if (!m->fuse) memcpy(x, m->given + r * m->width, (size_t)m->width * sizeof(float));
        pair_into_panel(m, r, m->layer);
    }
    end_phase(me, ROWS);
    for (int64_t at = 0; at < used; at++) {
        const int64_t i = m->order[at];
        const Layer *l = m->layer + i;
        const int is_last = at + 1 == used;
        const float *next_norm = is_last ? m->final_norm : m->layer[m->order[at + 1]].attn_norm;
        linear(me, 4 * i, m->inputs, m->qkv_depth, m->qkv_width / BLOCK, m->outputs, m->qkv_width, NULL, 0);
        end_phase(me, QKV);
        /* By head, not by row: the keys of neighbouring rows share lines, which two threads would fight for. */
        for (int64_t j = self; j < heads * ((rows + BLOCK - 1) / BLOCK); j += threads)
            for (int64_t r = j / heads * BLOCK; r < rows && r < (j / heads + 1) * BLOCK; r++)
                finish_head(m, l, r, j % heads);
        end_phase(me, HEADS);
        if (is_last && !whole) break;
        for (int64_t j = self; j < m->span_count; j += threads)
            attend(me, l, m->weights[(4 * i + 1) * threads + self], m->spans + j);
        end_phase(me, ATTENTION);
        linear(me, 4 * i + 1, m->inputs, m->heads * m->head_pad, m->width / BLOCK, m->outputs, m->width, NULL, 0);
        end_phase(me, OUT);
        for (int64_t r = mine; r < end; r++) {
            add_to_residual(m, r, l->o_bias, l->post_attn_norm);
            norm_into_panel(m, r, l->mlp_norm, NULL);
        }
        end_phase(me, ROWS);
        linear(me, 4 * i + 2, m->inputs, m->width, m->inner / LANES, m->inner_inputs, 0, l, 0);
        end_phase(me, GATE_UP);
        linear(me, 4 * i + 3, m->inner_inputs, m->inner, m->width / BLOCK, m->outputs, m->width, NULL, 0);
        end_phase(me, DOWN);
        for (int64_t r = mine; r < end; r++) {
            add_to_residual(m, r, l->down_bias, l->post_mlp_norm);
            keep_tapped(m, r, i + 1);
            norm_into_panel(m, r, next_norm, is_last ? m->hidden_out + r * m->width : NULL);
        }
        end_phase(me, ROWS);
    }
    if (logit_rows) {
        const int64_t first_row = m->group_start[rows - logit_rows];
        linear(me, 4 * m->layers, m->inputs, m->width, m->vocab_pad / BLOCK, m->logits, m->vocab_pad, NULL, first_row);
        if (m->bits < 16) sharpen(me, first_row);
        if (m->logit_softcap > 0.0f) cap_logits(me, first_row);
        end_phase(me, LOGITS);
    }
    _mm_setcsr(mode);
}

void augury_forward(Pool *pool, Model *m)
{
    Worker me = {.pool = pool, .model = m, .threads = pool->threads, .sense = atomic_load(&pool->sense)};
    pool->model = m;
    part_ways(&me);
    wake(pool);
    forward(&me);
}

/* ------------------------------------------------------------------------------------------------ cache, memory */

/* Copy cache rows `rows` (ascending, rows[j] >= to + j) of a slot to to, to + 1, ... in every layer. */
void augury_move(const Model *m, int64_t slot, const int64_t *rows, int64_t n, int64_t to)
{
    const int64_t line = m->taps * m->width;
    for (int64_t j = 0; j < n && line; j++) {
        bf16 *a = m->tapped + (slot * m->capacity + to + j) * line;
        memmove(a, m->tapped + (slot * m->capacity + rows[j]) * line, (size_t)line * sizeof(bf16));
    }
    for (int64_t i = 0; i < m->layers; i++)
        for (int64_t kv = 0; kv < m->kv_heads; kv++)
            for (int64_t j = 0; j < n; j++) {
                bf16 *a = key_place(m, m->layer + i, slot, kv, to + j), *b = key_place(m, m->layer + i, slot, kv, rows[j]);
                for (int64_t d = 0; d < m->head_pad; d++) a[d * BLOCK] = b[d * BLOCK];
                a = value_place(m, m->layer + i, slot, kv, to + j);
                b = value_place(m, m->layer + i, slot, kv, rows[j]);
                for (int64_t d = 0; d < m->value_pad; d += BLOCK, a += m->capacity * BLOCK, b += m->capacity * BLOCK)
                    store_line(a, line_of(b));
            }
}

/* ------------------------------------------------------------------------------------------------------ the floor
 * What no forward can beat on this machine: reading memory, and multiplying what lies in registers. */

/* Read whole kB as the kernel does, and do nothing with them. */
float augury_read(const char *from, int64_t bytes)
{
    reg sums[4] = {reg_zero(), reg_zero(), reg_zero(), reg_zero()};
    float out[LANES];
    for (const char *p = from, *end = from + bytes / 1024 * 1024; p < end; p += 1024) {
        const char *fetch = spread(p + AHEAD);
        for (int i = 0; i < 8; i++) {
            _mm_prefetch(fetch + i * 4096, _MM_HINT_T1);
            _mm_prefetch(fetch + i * 4096 + 64, _MM_HINT_T1);
        }
        for (int64_t i = 0; i < 1024; i += 4 * (int64_t)sizeof(reg))
            UNROLL for (int j = 0; j < 4; j++)
                sums[j] = reg_add(sums[j], reg_load((const float *)(p + i + j * (int64_t)sizeof(reg))));
    }
    reg_store(out, reg_add(reg_add(sums[0], sums[1]), reg_add(sums[2], sums[3])));
    return out[0];
}

/* `times` x 12 operations of a whole register as linears use them, as many in flight as the kernel has; how many
 * multiply-adds these were. */
int64_t augury_multiply(int64_t times)
{
    static volatile float kept; /* or all of it would be left out */
    reg sums[12];
    float out[LANES];
    UNROLL for (int i = 0; i < 12; i++) sums[i] = reg_all((float)i);
#if PAIRS
    const float ones = 1.0f; /* two bfloat16 that are nearly one, and nearly nothing */
    const pairs x = pair_all(&ones), y = x;
    for (int64_t t = 0; t < times; t++)
        UNROLL for (int i = 0; i < 12; i++) sums[i] = pair_dot(sums[i], x, y);
#else
    const reg x = reg_all(0.999f), y = reg_all(1e-6f);
    for (int64_t t = 0; t < times; t++)
        UNROLL for (int i = 0; i < 12; i++) sums[i] = reg_fma(sums[i], x, y);
#endif
    UNROLL for (int i = 1; i < 12; i++) sums[0] = reg_add(sums[0], sums[i]);
    reg_store(out, sums[0]);
    kept = out[0];
    return times * 12 * (int64_t)(sizeof(reg) / sizeof(float)) * (PAIRS + 1);
}

/* Ask for huge pages: a forward walks through all weights, and small pages would cost a table walk each 4 kB. */
void augury_huge_pages(void *start, size_t bytes) { (void)madvise(start, bytes, MADV_HUGEPAGE); }
