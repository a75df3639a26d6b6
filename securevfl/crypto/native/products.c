/* Arithmetic on BFV ciphertexts of Microsoft SEAL, degree 8192: the evaluator's from the bytes of
 * inputs to the bytes of replies, and the owner's with its secret key.
 *
 * Reply (rows, g) = sum over chunks c of plain(rows, c) * input(c, g) + u * (public key) + noise.
 * The last two terms, with a fresh ternary u, are an encryption of zero. Coefficients of c0 at the
 * positions get the given masks. Layouts are in bfv_parameters.py and ring_layout.py, the bytes in
 * bfv_core.py; the words are SEAL's.
 *
 * No branch and no address depends on a key, the matrix, noise or a mask. Whoever calls has checked
 * all sizes; a peer's numbers are checked here.
 */
#include "native.h"

typedef struct {
    u64 p, one;                           /* a ciphertext's prime; floor(2^64/p) */
    u64 base[2], bases[2], shift;         /* r0 and r0*r1 modulo p, with quotients; (1 - R)/2 */
    u64 over[PRIMES], overs[PRIMES], half[PRIMES]; /* 1/p' and (p' - 1)/2 modulo p, p' dropped */
    u64 part, parts;                      /* p/q modulo p, q being the product of all */
    u64 units, rest, rests, more;         /* t/p and t modulo p; one*2^64 + more = floor(2^128/p) */
} modulus;
/* The product R = r0*r1(*r2) of the transforms' primes exceeds twice every sum. */
typedef struct {
    int primes, kept, transforms, vector;
    u64 plain, moduli[PRIMES], garner[TRANSFORMS], garners[TRANSFORMS], r0, r0s; /* r0 modulo r2 */
    modulus at[PRIMES];
} engine;

INLINE size_t width(const engine *e) { return e->vector ? N : 2 * N; } /* cells of a polynomial's sums */
INLINE size_t each(const engine *e) { return (size_t)e->primes * e->transforms; }

API void *svfl_new(int primes, int kept, const u64 *moduli, int transforms, u64 plain, int vector) {
    engine *e = calloc(1, sizeof *e);
    const u64 *r = TRANSFORM;
    if (!e) return 0;
    e->primes = primes, e->kept = kept, e->transforms = transforms, e->vector = vector;
    e->plain = plain;
    e->garner[1] = power(r[0] % r[1], r[1] - 2, r[1]), e->garners[1] = shoup(e->garner[1], r[1]);
    e->r0 = r[0] % r[2], e->r0s = shoup(e->r0, r[2]);
    e->garner[2] = power((u64)((u128)e->r0 * r[1] % r[2]), r[2] - 2, r[2]);
    e->garners[2] = shoup(e->garner[2], r[2]);
    for (int k = 0; k < primes; k++) {
        modulus *q = e->at + k;
        u64 p = q->p = e->moduli[k] = moduli[k], whole;
        q->one = shoup(1, p);
        q->base[0] = r[0] % p, q->base[1] = (u64)((u128)r[0] * r[1] % p);
        for (int i = 0; i < 2; i++) q->bases[i] = shoup(q->base[i], p);
        whole = transforms == 2 ? q->base[1] : (u64)((u128)q->base[1] * (r[2] % p) % p);
        q->shift = (u64)((u128)(p + 1 - whole) * ((p + 1) / 2) % p);
        for (int l = kept > k + 1 ? kept : k + 1; l < primes; l++) {
            q->over[l] = power(moduli[l] % p, p - 2, p), q->overs[l] = shoup(q->over[l], p);
            q->half[l] = (moduli[l] >> 1) % p;
        }
        q->part = 1;
        for (int l = 0; l < primes; l++)
            if (l != k) q->part = (u64)((u128)q->part * (moduli[l] % p) % p);
        q->part = power(q->part, p - 2, p), q->parts = shoup(q->part, p);
        q->units = plain / p, q->rest = plain % p, q->rests = shoup(q->rest, p);
        q->more = (u64)(((u128)(u64)(((u128)1 << 64) % p) << 64) / p);
    }
    return e;
}
API void svfl_free(void *e) { free(e); }

/* ---- packed words: two residues of b bits in b/4 bytes, 32 <= b <= 60 ---- */
static const uint8_t *unpack(const uint8_t *in, int64_t count, int bits, u64 *out) {
    u64 mask = ((u64)1 << bits) - 1;
    for (int64_t j = 0; j < count; j += 2, in += bits / 4) {
        u64 a, b;
        memcpy(&a, in, 8), memcpy(&b, in + bits / 4 - 8, 8);
        out[j] = a & mask, out[j + 1] = b >> (64 - bits);
    }
    return in;
}
static uint8_t *pack(const u64 *in, int64_t count, int bits, uint8_t *out) {
    for (int64_t j = 0; j < count; j += 2, out += bits / 4) {
        u64 a = in[j], b = a >> (2 * bits - 64) | in[j + 1] << (64 - bits);
        memcpy(out, &a, 8), memcpy(out + bits / 4 - 8, &b, 8);
    }
    return out;
}

/* Cells [prime][transform][poly][N] of a ciphertext, words [poly][prime][N]. */
API void svfl_cells(const engine *e, const u64 *words, cell *out) {
    for (int k = 0; k < e->primes; k++)
        for (int t = 0; t < e->transforms; t++)
            for (int poly = 0; poly < 2; poly++, out += N)
                of_words(t, e->vector, words + (size_t)N * (poly * e->primes + k), out);
}
/* An input as it travels: c0 packed, by primes; and the seed of c1. Returns 1 where a word is no
 * residue, 2 without memory. */
API int svfl_intake(const engine *e, const uint8_t *wire, const uint8_t *seed, const int *bits,
                    cell *out) {
    size_t half = (size_t)N * e->primes;
    u64 *words = scratch(16 * half), beyond = 0;
    if (!words) return 2;
    for (int k = 0; k < e->primes; k++) {
        u64 *c0 = words + (size_t)N * k;
        wire = unpack(wire, N, bits[k], c0);
        for (int j = 0; j < N; j++) beyond |= c0[j] >= e->at[k].p;
    }
    if (!beyond) {
        expand(seed, e->moduli, e->primes, e->vector, words + half);
        svfl_cells(e, words, out);
    }
    free(words);
    return (int)beyond;
}

/* Rows of M as a plaintext: each reversed, at the end of its own chunk. */
static void place(const int32_t *rows, int64_t count, int64_t inner, int64_t chunk, int64_t first,
                  int32_t *out) {
    int64_t length = inner - first < chunk ? inner - first : chunk;
    memset(out, 0, 4 * N);
    for (int64_t o = 0; o < count; o++) {
        const int32_t *from = rows + o * inner + first;
        int32_t *to = out + (o + 1) * chunk - 1;
        for (int64_t i = 0; i < length; i++) to[-i] = from[i];
    }
}
/* Add products of rows of M, (count, inner), with the inputs of its chunks.
 * inputs: cells [chunk][group][prime][transform][poly][N]; sums: [group][prime][transform][poly].
 * Returns 2 without memory. */
API int svfl_multiply(const engine *e, const int32_t *rows, int64_t count, int64_t inner,
                      int64_t chunk, int64_t chunks, const cell *inputs, int64_t groups, cell *sums) {
    size_t own = each(e) * 2, stride = (size_t)groups * own * N, room = 8 * TILE * N + 4 * N;
    cell *plain = scratch(room);
    int32_t *coefficients = (int32_t *)(plain + TILE * N);
    if (!plain) return 2;
    for (int t = 0; t < e->transforms; t++)
        for (int64_t c = 0; c < chunks; c += TILE) {
            int some = chunks - c < TILE ? (int)(chunks - c) : TILE;
            const cell *from = inputs + (size_t)c * stride;
            for (int i = 0; i < some; i++) {
                place(rows, count, inner, chunk, (c + i) * chunk, coefficients);
                of_integers(t, e->vector, coefficients, plain + (size_t)i * N);
            }
            for (int64_t at = t; at < groups * (int64_t)each(e); at += e->transforms)
                add_products(t, e->vector, 2, sums + (size_t)at * 2 * width(e), plain,
                             from + (size_t)at * 2 * N, stride, some);
        }
    forget(plain, room);
    free(plain);
    return 0;
}

/* Add up to TILE products, each of an input and a polynomial of integers within 2^47, for one group.
 * Returns 2 without memory. */
API int svfl_add(const engine *e, const int64_t *polynomials, int64_t count, const cell *inputs,
                 cell *sums) {
    size_t own = each(e) * 2, room = 8 * (TILE + 1) * N;
    cell *plain = scratch(room);
    u64 *words = (u64 *)(plain + TILE * N);
    if (!plain) return 2;
    for (int t = 0; t < e->transforms; t++) {
        for (int64_t i = 0; i < count; i++) {
            const int64_t *in = polynomials + i * N;
            for (int j = 0; j < N; j++) /* times N, as of_words divides */
                words[j] = ((u64)in[j] + (TRANSFORM[t] & (u64)(in[j] >> 63))) << LOG;
            of_words(t, e->vector, words, plain + i * N);
        }
        for (size_t at = t; at < each(e); at += e->transforms)
            add_products(t, e->vector, 2, sums + at * 2 * width(e), plain, inputs + at * 2 * N, own * N,
                         (int)count);
    }
    forget(plain, room);
    free(plain);
    return 0;
}

/* The residue modulo a ciphertext's prime of the integer with residues `a` less (R - 1)/2, plus
 * `zero`; t1 and t2 are its mixed digits. */
INLINE u64 joined(const modulus *q, u64 a, u64 t1, u64 t2, u64 zero) {
    u64 p = q->p, sum = a - high(a, q->one) * p + q->shift + zero;
    sum += times(t1, q->base[0], q->bases[0], p) + times(t2, q->base[1], q->bases[1], p);
    return below(sum - high(sum, q->one) * p, p);
}
/* One coefficient modulo all primes, from its residues x[prime][transform] at a distance of N. */
INLINE void coefficient(const engine *e, int primes, int kept, int transforms, const u64 *x,
                        const u64 *zero, u64 *out) {
    const u64 *r = TRANSFORM;
    for (int k = 0; k < primes; k++, x += (size_t)transforms * N) {
        u64 a0 = below(x[0] + (r[0] - 1) / 2, r[0]), a1 = below(x[N] + (r[1] - 1) / 2, r[1]), t2 = 0;
        u64 t1 = times(a1 + 2 * r[1] - a0, e->garner[1], e->garners[1], r[1]);
        if (transforms == 3) {
            u64 a2 = below(x[2 * N] + (r[2] - 1) / 2, r[2]), u = times(t1, e->r0, e->r0s, r[2]);
            t2 = times(a2 + 3 * r[2] - a0 - u, e->garner[2], e->garners[2], r[2]);
        }
        out[k] = joined(e->at + k, a0, t1, t2, zero[(size_t)k * N]);
    }
    /* SEAL's step to fewer primes: (x - x')/p' for x' = x modulo p', rounded as it does. */
    for (int l = primes - 1; l >= kept; l--) {
        u64 last = below(out[l] + (e->at[l].p >> 1), e->at[l].p);
        for (int k = 0; k < l; k++) {
            const modulus *q = e->at + k;
            u64 part = below(last - high(last, q->one) * q->p, q->p);
            out[k] = times(out[k] + q->p - part + q->half[l], q->over[l], q->overs[l], q->p);
        }
    }
}
/* Coefficients at these positions, or the first ones, to words [prime kept][N]. */
INLINE void coefficients(const engine *e, int primes, int kept, int transforms, const u64 *x,
                         const u64 *zero, const int64_t *positions, int64_t count, u64 *words) {
    u64 some[PRIMES];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = positions ? positions[i] : i;
        coefficient(e, primes, kept, transforms, x + at, zero + at, some);
        for (int k = 0; k < kept; k++) words[(size_t)k * N + i] = some[k];
    }
}
/* The usual sizes are compiled by themselves: loops over a few primes cost half of the time. */
static void joined_all(const engine *e, const u64 *x, const u64 *zero, const int64_t *positions,
                       int64_t count, u64 *words) {
#define WHERE(primes_, kept_, transforms_) \
    if (e->primes == primes_ && e->kept == kept_ && e->transforms == transforms_) { \
        coefficients(e, primes_, kept_, transforms_, x, zero, positions, count, words); \
        return; \
    }
    WHERE(2, 2, 2)
    WHERE(3, 3, 2)
    WHERE(3, 2, 3)
    coefficients(e, e->primes, e->kept, e->transforms, x, zero, positions, count, words);
}
/* A polynomial of small integers modulo each prime. */
static void residues(const engine *e, const int32_t *in, u64 *out) {
    for (int k = 0; k < e->primes; k++)
        for (int j = 0; j < N; j++, out++) *out = (u64)(int64_t)in[j] + (e->at[k].p & (u64)((int64_t)in[j] >> 63));
}
/* The reply of one group. noise: [poly][N]; masks: [kept prime][count]; sums are used up. Returns 2
 * without memory. */
API int svfl_reply(const engine *e, cell *sums, const int32_t *noise, const u64 *masks,
                   const int64_t *positions, int64_t count, const int *bits, uint8_t *out) {
    size_t room = 8 * ((each(e) + e->primes + 2 * (size_t)e->kept) * N);
    u64 *x = scratch(room), *added = x + each(e) * N, *made = added + (size_t)e->primes * N;
    if (!x) return 2;
    for (int poly = 0; poly < 2; poly++) {
        for (size_t i = 0; i < each(e); i++)
            back((int)(i % e->transforms), e->vector, sums + (2 * i + poly) * width(e), x + i * N);
        residues(e, noise + (size_t)poly * N, added);
        joined_all(e, x, added, poly ? 0 : positions, poly ? N : count,
                   made + (size_t)poly * e->kept * N);
    }
    for (int k = 0; k < e->kept; k++) {
        u64 *c0 = made + (size_t)k * N, *c1 = made + (size_t)(e->kept + k) * N;
        for (int64_t i = 0; i < count; i++) c0[i] = below(c0[i] + masks[k * count + i], e->at[k].p);
        out = pack(c0, count, bits[k], pack(c1, N, bits[k], out));
    }
    forget(x, room);
    free(x);
    return 0;
}

/* ---- samples, from words of a stream ---- */
/* -1, 0 or 1, each from a third of all words; -1 from one word more, as 3 does not divide 2^64. */
API void svfl_ternary(const u64 *words, int64_t count, int32_t *out) {
    for (int64_t j = 0; j < count; j++) out[j] = (int32_t)high(words[j], 3) - 1;
}
INLINE u64 ones(u64 x) { /* of 21 bits; addresses in a table would tell them */
    x -= x >> 1 & 0x155555;
    x = (x & 0x133333) + (x >> 2 & 0x133333);
    x = (x & 0x10f0f0f) + (x >> 4 & 0x10f0f0f);
    return (x + (x >> 8) + (x >> 16)) & 31;
}
/* SEAL's centred binomial noise, the sum of 21 bits less that of 21 others. */
API void svfl_noise(const u64 *words, int64_t count, int32_t *out) {
    for (int64_t j = 0; j < count; j++)
        out[j] = (int32_t)(ones(words[j] & 0x1fffff) - ones(words[j] >> 21 & 0x1fffff));
}

/* ---- the owner: its key as cells [transform][N] ---- */
API void svfl_key(const engine *e, const int32_t *secret, cell *out) {
    for (int t = 0; t < e->transforms; t++) of_integers(t, e->vector, secret, out + (size_t)t * N);
}
/* c1*s as integers, by residues [prime][transform][N]; `room` has three polynomials. */
static void by_key(const engine *e, const cell *key, const u64 *c1, u64 *x, cell *room) {
    for (int k = 0; k < e->primes; k++)
        for (int t = 0; t < e->transforms; t++, x += N) {
            of_words(t, e->vector, c1 + (size_t)k * N, room);
            memset(room + N, 0, 8 * width(e));
            add_products(t, e->vector, 1, room + N, key + (size_t)t * N, room, 0, 1);
            back(t, e->vector, room + N, x);
        }
}
/* c0 = -(c1*s + noise), [prime][N], for the c1 of a seed. Returns 2 without memory. */
API int svfl_zero(const engine *e, const cell *key, const uint8_t *seed, const int32_t *noise, u64 *c0) {
    size_t all = (size_t)N * e->primes, room = 8 * (all * (e->transforms + 2) + 3 * N);
    u64 *x = scratch(room), *c1 = x + all * e->transforms, *added = c1 + all;
    if (!x) return 2;
    expand(seed, e->moduli, e->primes, e->vector, c1);
    by_key(e, key, c1, x, (cell *)(added + all));
    residues(e, noise, added);
    joined_all(e, x, added, 0, N, c0);
    for (int k = 0; k < e->primes; k++)
        for (int j = 0; j < N; j++, c0++) *c0 = below(e->at[k].p - *c0, e->at[k].p);
    forget(x, room);
    free(x);
    return 0;
}
/* round(t*x/q) modulo t, for x = c0 + c1*s by its residues: the sum of y*t/p by primes, where
 * y = x*(p/q) modulo p. Fractions have 64 bits: only a tie within 2^-62 is rounded either way. */
INLINE u64 rounded(const engine *e, const u64 *x, int64_t stride) {
    u64 found = 0;
    u128 fractions = (u128)1 << 63;
    for (int k = 0; k < e->primes; k++) {
        const modulus *q = e->at + k;
        u64 p = q->p, y = times(x[k * stride], q->part, q->parts, p), units = high(y, q->rests);
        u64 left = y * q->rest - units * p, beyond = left >= p;
        left -= p & -beyond;
        found += y * q->units + units + beyond;
        fractions += left * q->one + high(left, q->more);
    }
    found += (u64)(fractions >> 64);
    for (int i = 0; i < PRIMES; i++) found = below(found, e->plain);
    return found;
}
/* The same for each of `count` numbers, by residues [prime][count]. */
API void svfl_rounded(const engine *e, const u64 *x, int64_t count, u64 *out) {
    for (int64_t i = 0; i < count; i++) out[i] = rounded(e, x + i, count);
}
/* Decrypt the coefficients at the positions of a reply as it travels. Returns 1 where a word is no
 * residue, 2 without memory, 3 where c1 is 0. */
API int svfl_open(const engine *e, const cell *key, const uint8_t *wire, const int *bits,
                  const int64_t *positions, int64_t count, u64 *out) {
    size_t all = (size_t)N * e->primes, room = 8 * (all * (e->transforms + 2) + 4 * N);
    u64 *x = scratch(room), *c1 = x + all * e->transforms, *c0 = c1 + all, *sent = c0 + all;
    u64 beyond = 0, any = 0;
    if (!x) return 2;
    memset(c0, 0, 8 * all);
    for (int k = 0; k < e->primes; k++) {
        u64 *words = c1 + (size_t)N * k, p = e->at[k].p;
        wire = unpack(unpack(wire, N, bits[k], words), count, bits[k], sent);
        for (int j = 0; j < N; j++) beyond |= words[j] >= p, any |= words[j];
        for (int64_t i = 0; i < count; i++) beyond |= sent[i] >= p, c0[N * k + positions[i]] = sent[i];
    }
    if (!beyond && any) {
        by_key(e, key, c1, x, (cell *)(sent + N));
        joined_all(e, x, c0, positions, count, c1);
        for (int64_t i = 0; i < count; i++) out[i] = rounded(e, c1 + i, N);
    }
    forget(x, room);
    free(x);
    return beyond ? 1 : any ? 0 : 3;
}

enum { TURNED = 256, LINE = 16 }; /* rows within the cache, integers in a line of it */

/* Rows of X, (rows, columns), as columns of out, whose rows are `stride` apart: the integers nearest to
 * (x - shift)/unit*scale. Returns 1 if any does not fit 31 bits and a sign or is no number, or 2 without
 * memory. */
API int svfl_encode(const double *x, int64_t rows, int64_t columns, const double *shift,
                    const double *unit, double scale, int64_t stride, int32_t *out) {
    size_t room = 4 * TURNED * (size_t)columns;
    int32_t *some = scratch(room);
    u64 beyond = 0;
    if (!some) return 2;
    for (int64_t first = 0; first < rows; first += TURNED) {
        int64_t count = rows - first < TURNED ? rows - first : TURNED;
        for (int64_t i = 0; i < count * columns; i += columns)
            for (int64_t j = 0; j < columns; j++) {
                cell found; /* the last bits of such a sum are the nearest integer, ties to even */
                found.real = (x[first * columns + i + j] - shift[j]) / unit[j] * scale + 0x1.8p52;
                beyond |= ((found.word + (1ULL << 31)) >> 32) ^ 0x43380000;
                some[i + j] = (int32_t)found.word;
            }
        /* A line of a column at a time: lines of columns 2^k bytes apart share their place in the cache. */
        for (int64_t j = 0; j < columns; j += LINE)
            for (int64_t line = 0; line < count; line += LINE)
                for (int64_t k = j; k < j + LINE && k < columns; k++)
                    for (int64_t i = line; i < line + LINE && i < count; i++)
                        out[k * stride + first + i] = some[i * columns + k];
    }
    forget(some, room);
    free(some);
    return beyond != 0;
}
/* (sum of words * factors + offset) modulo p below 2^61, for up to 5 rows of words. */
API void svfl_combined(const u64 *words, int rows, int64_t count, const u64 *factors, u64 offset,
                       u64 p, u64 *out) {
    u64 one = shoup(1, p);
    for (int64_t j = 0; j < count; j++) out[j] = offset;
    for (int i = 0; i < rows; i++) {
        u64 w = factors[i], ws = shoup(w, p);
        for (int64_t j = 0; j < count; j++) out[j] += times(words[i * count + j], w, ws, p);
    }
    for (int64_t j = 0; j < count; j++) out[j] = below(out[j] - high(out[j], one) * p, p);
}
