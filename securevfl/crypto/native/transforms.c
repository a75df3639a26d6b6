/* Transforms modulo three primes below 2^48, and sums of products in NTT form.
 *
 * Ciphertexts have primes of up to 60 bits, which doubles cannot hold. So products are computed as
 * integers, by their residues modulo primes of our own; products.c puts them together. A plaintext
 * is transformed twice, whatever the number of a ciphertext's primes.
 *
 * Portable path: residues as words, by Harvey's butterflies ("Faster arithmetic for number-theoretic
 * transforms", 2014). Vector path (AVX2 and FMA): integers as doubles, exact below 2^53. A product
 * a*w modulo p, with |w| <= p/2, is
 *     h = fl(a*w),  l = a*w - h (exact by FMA),  k = round(h/p),  r = (h - k*p) + l,
 *     |r| <= (1/2 + 3/2 * |a|/2^53) p.
 * From V to V' = 1.047 V + 0.5 times p by level, 13 levels without a reduction end below 12 p < 2^52,
 * if the first one ends at 2 p or less.
 */
#include "native.h"

/* The largest primes below 2^48 that are 1 modulo 2N; SEAL's choice of roots, the least ones. */
const u64 TRANSFORM[TRANSFORMS] = {0xffffffffc001, 0xfffffffd8001, 0xfffffffa0001};
static const u64 ROOT[TRANSFORMS] = {23715932133, 75118967791, 20065790490};

typedef struct {
    u64 w[N], ws[N], v[N], vs[N]; /* powers of the root and its inverse, bits reversed; quotients */
    u64 one, r64, r64s, ninv, ninvs;                /* floor(2^64/p); 2^64 modulo p; 1/N */
    double wd[N], vd[N], wd2[2][N / 4], vd2[2][N / 4]; /* centred; the last level's even and odd */
    double first[4]; /* 1/N, 2^30/N, then times the first level's root */
} tables;
static tables OF[TRANSFORMS];
enum { BLOCK = 512 }; /* sums of a block stay in the first cache, and few streams are read at once */

static double centred(u64 w, u64 p) { return w > p / 2 ? -(double)(p - w) : (double)w; }
static void fill(tables *q, u64 p, u64 root) {
    u64 forth = 1, back_root = power(root, p - 2, p), again = 1;
    for (int j = 0; j < N; j++) {
        int r = 0;
        for (int b = 0; b < LOG; b++) r |= (j >> b & 1) << (LOG - 1 - b);
        q->w[r] = forth, q->v[r] = again;
        q->ws[r] = shoup(forth, p), q->vs[r] = shoup(again, p);
        q->wd[r] = centred(forth, p), q->vd[r] = centred(again, p);
        forth = (u64)((u128)forth * root % p), again = (u64)((u128)again * back_root % p);
    }
    for (int j = 0; j < N / 2; j++) {
        q->wd2[j & 1][j / 2] = q->wd[N / 2 + j];
        q->vd2[j & 1][j / 2] = q->vd[N / 2 + j];
    }
    q->one = shoup(1, p);
    q->r64 = (u64)(((u128)1 << 64) % p), q->r64s = shoup(q->r64, p);
    q->ninv = power(N, p - 2, p), q->ninvs = shoup(q->ninv, p);
    for (int i = 0; i < 4; i++) {
        u64 x = (u64)((u128)q->ninv * (i & 1 ? 1 << 30 : 1) % p);
        q->first[i] = centred(i & 2 ? (u64)((u128)x * q->w[1] % p) : x, p);
    }
}
API void svfl_start(void) {
    for (int t = 0; t < TRANSFORMS; t++) fill(OF + t, TRANSFORM[t], ROOT[t]);
}
API int svfl_has_vector(void) {
#ifdef HAVE_VECTOR
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

/* ---- portable path ---- */
static void ntt_words(u64 *x, const tables *q, u64 p) { /* values below 4p on the way */
    u64 p2 = 2 * p;
    for (int m = 1, t = N / 2; m < N; m <<= 1, t >>= 1)
        for (int i = 0; i < m; i++) {
            u64 w = q->w[m + i], ws = q->ws[m + i], *a = x + 2 * i * t, *b = a + t;
            for (int j = 0; j < t; j++) {
                u64 u = below(a[j], p2), v = lazy(b[j], w, ws, p);
                a[j] = u + v, b[j] = u - v + p2;
            }
        }
    for (int j = 0; j < N; j++) x[j] = below(below(x[j], p2), p);
}
static void intt_words(u64 *x, const tables *q, u64 p) {
    u64 p2 = 2 * p;
    for (int m = N / 2, t = 1; m; m >>= 1, t <<= 1)
        for (int i = 0; i < m; i++) {
            u64 w = q->v[m + i], ws = q->vs[m + i], *a = x + 2 * i * t, *b = a + t;
            for (int j = 0; j < t; j++) {
                u64 u = a[j], v = b[j];
                a[j] = below(u + v, p2), b[j] = lazy(u - v + p2, w, ws, p);
            }
        }
    for (int j = 0; j < N; j++) x[j] = below(x[j], p);
}
/* 128-bit sums, low words before high words: room for 2^32 products of 96 bits. */
static void add_words(int polys, cell *sums, const cell *plain, const cell *inputs, size_t stride,
                      int count) {
    for (int poly = 0; poly < polys; poly++, sums += 2 * N, inputs += N)
        for (int from = 0; from < N; from += BLOCK)
            for (int i = 0; i < count; i++)
                for (int j = from; j < from + BLOCK; j++) {
                    u128 sum = (u128)sums[N + j].word << 64 | sums[j].word;
                    sum += (u128)plain[(size_t)i * N + j].word * inputs[i * stride + j].word;
                    sums[j].word = (u64)sum, sums[N + j].word = (u64)(sum >> 64);
                }
}
static void settle_words(cell *sums, const tables *q, u64 p) {
    for (int j = 0; j < N; j++) {
        u64 low = sums[j].word, s = below(low - high(low, q->one) * p, p);
        sums[j].word = below(times(sums[N + j].word, q->r64, q->r64s, p) + s, p);
    }
}

/* ---- vector path ---- */
#ifdef HAVE_VECTOR
typedef __m256d D;
#define LOAD(at) _mm256_loadu_pd(at)
#define STORE(at, x) _mm256_storeu_pd(at, x)
#define ALL(c) _mm256_set1_pd(c)
#define MODULUS D p = ALL((double)TRANSFORM[t]), pinv = ALL(1.0 / (double)TRANSFORM[t])
AVX_INLINE D quotient(D x, D pinv) { /* round(x/p) below 2^51: cheaper than the rounding instruction */
    D magic = ALL(6755399441055744.0);
    return _mm256_sub_pd(_mm256_fmadd_pd(x, pinv, magic), magic);
}
AVX_INLINE D nearest(D x, D p, D pinv) { return _mm256_fnmadd_pd(quotient(x, pinv), p, x); }
AVX_INLINE D product(D a, D w, D p, D pinv) {
    D h = _mm256_mul_pd(a, w), l = _mm256_fmsub_pd(a, w, h), k = quotient(h, pinv);
    return _mm256_add_pd(_mm256_fnmadd_pd(k, p, h), l);
}
AVX_INLINE void transpose(D *x) {
    D a = _mm256_unpacklo_pd(x[0], x[1]), b = _mm256_unpackhi_pd(x[0], x[1]);
    D c = _mm256_unpacklo_pd(x[2], x[3]), d = _mm256_unpackhi_pd(x[2], x[3]);
    x[0] = _mm256_permute2f128_pd(a, c, 0x20), x[1] = _mm256_permute2f128_pd(b, d, 0x20);
    x[2] = _mm256_permute2f128_pd(a, c, 0x31), x[3] = _mm256_permute2f128_pd(b, d, 0x31);
}
AVX_INLINE void two_levels(D *x, D w, D w0, D w1, D p, D pinv) {
    D r = product(x[2], w, p, pinv), s = product(x[3], w, p, pinv);
    D a = _mm256_add_pd(x[0], r), b = _mm256_add_pd(x[1], s);
    D c = _mm256_sub_pd(x[0], r), d = _mm256_sub_pd(x[1], s);
    r = product(b, w0, p, pinv), s = product(d, w1, p, pinv);
    x[0] = _mm256_add_pd(a, r), x[1] = _mm256_sub_pd(a, r);
    x[2] = _mm256_add_pd(c, s), x[3] = _mm256_sub_pd(c, s);
}
/* Only x[0] grows fourfold: it is reduced. */
AVX_INLINE void two_levels_back(D *x, D w, D w0, D w1, D p, D pinv) {
    D a = _mm256_add_pd(x[0], x[1]), b = product(_mm256_sub_pd(x[0], x[1]), w0, p, pinv);
    D c = _mm256_add_pd(x[2], x[3]), d = product(_mm256_sub_pd(x[2], x[3]), w1, p, pinv);
    x[0] = nearest(_mm256_add_pd(a, c), p, pinv), x[1] = _mm256_add_pd(b, d);
    x[2] = product(_mm256_sub_pd(a, c), w, p, pinv), x[3] = product(_mm256_sub_pd(b, d), w, p, pinv);
}
#define FOUR(x, a, s) D x[4] = {LOAD(a), LOAD((a) + (s)), LOAD((a) + 2 * (s)), LOAD((a) + 3 * (s))}
#define KEEP(x, a, s) \
    STORE(a, x[0]), STORE((a) + (s), x[1]), STORE((a) + 2 * (s), x[2]), STORE((a) + 3 * (s), x[3])
#define RADIX_4(name, levels) \
    AVX static void name(double *x, const double *w, int m, int from, int to, D p, D pinv) { \
        int q = N / m / 4; \
        for (int i = from; i < to; i++) { \
            D w0 = ALL(w[m + i]), w1 = ALL(w[2 * (m + i)]), w2 = ALL(w[2 * (m + i) + 1]); \
            for (double *a = x + 4 * q * i, *end = a + q; a < end; a += 4) { \
                FOUR(y, a, q); \
                levels(y, w0, w1, w2, p, pinv); \
                KEEP(y, a, q); \
            } \
        } \
    }
RADIX_4(radix4, two_levels)
RADIX_4(radix4_back, two_levels_back)
/* All levels but the first. Out: |x| <= p/2; each 16 cells are a 4 x 4 transpose of SEAL's order.
 * Eighths stay in the first cache once split. */
AVX static void ntt_rest(double *x, const tables *q, D p, D pinv) {
    radix4(x, q->wd, 2, 0, 2, p, pinv);
    for (int b = 0; b < 8; b++) {
        for (int m = 8; m <= 128; m <<= 2) radix4(x, q->wd, m, b * m / 8, (b + 1) * m / 8, p, pinv);
        for (int i = 64 * b; i < 64 * (b + 1); i++) {
            const double *w = q->wd + 1024 + 2 * i;
            FOUR(y, x + 16 * i, 4);
            two_levels(y, ALL(q->wd[512 + i]), ALL(w[0]), ALL(w[1]), p, pinv);
            transpose(y);
            two_levels(y, LOAD(q->wd + 2048 + 4 * i), LOAD(q->wd2[0] + 4 * i), LOAD(q->wd2[1] + 4 * i),
                       p, pinv);
            for (int k = 0; k < 4; k++) STORE(x + 16 * i + 4 * k, nearest(y[k], p, pinv));
        }
    }
    _mm256_zeroupper(); /* a compiler leaves it out for such arguments, and what follows is slow */
}
AVX static void ntt_integers(int t, const int32_t *in, double *x) {
    MODULUS, w1 = ALL(OF[t].wd[1]);
    for (int j = 0; j < N / 2; j += 4) {
        D u = _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)(in + j)));
        D v = _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)(in + j + N / 2)));
        D r = product(v, w1, p, pinv);
        STORE(x + j, _mm256_add_pd(u, r)), STORE(x + j + N / 2, _mm256_sub_pd(u, r));
    }
    ntt_rest(x, OF + t, p, pinv);
}
AVX_INLINE D real(__m256i words) { /* words below 2^52 */
    D magic = ALL(4503599627370496.0);
    return _mm256_sub_pd(_mm256_or_pd(_mm256_castsi256_pd(words), magic), magic);
}
AVX_INLINE D scaled(const u64 *at, D by, D by_2_30, D p, D pinv) { /* any words, in two parts */
    __m256i words = _mm256_loadu_si256((const __m256i *)at);
    D low = real(_mm256_and_si256(words, _mm256_set1_epi64x((1 << 30) - 1)));
    D top = real(_mm256_srli_epi64(words, 30));
    return _mm256_add_pd(product(low, by, p, pinv), product(top, by_2_30, p, pinv));
}
AVX static void ntt_full(int t, const u64 *in, double *x) {
    MODULUS;
    const double *f = OF[t].first;
    D f0 = ALL(f[0]), f1 = ALL(f[1]), f2 = ALL(f[2]), f3 = ALL(f[3]);
    for (int j = 0; j < N / 2; j += 4) {
        D u = scaled(in + j, f0, f1, p, pinv), r = scaled(in + j + N / 2, f2, f3, p, pinv);
        STORE(x + j, _mm256_add_pd(u, r)), STORE(x + j + N / 2, _mm256_sub_pd(u, r));
    }
    ntt_rest(x, OF + t, p, pinv);
}
AVX_INLINE void add_reals(int t, int polys, double *sums, const double *plain, const double *inputs,
                          size_t stride, int count) { /* sums end at p/2: at most 5p on the way */
    MODULUS;
    for (int from = 0; from < N; from += BLOCK)
        for (int i = 0; i < count; i++)
            for (int j = from; j < from + BLOCK; j += 4) {
                const double *c = inputs + i * stride + j;
                D y = LOAD(plain + (size_t)i * N + j);
                for (int poly = 0; poly < polys; poly++) {
                    double *sum = sums + poly * N + j;
                    D r = _mm256_add_pd(LOAD(sum), product(y, LOAD(c + poly * N), p, pinv));
                    STORE(sum, i == count - 1 ? nearest(r, p, pinv) : r);
                }
            }
}
AVX static void add_to_one(int t, double *sums, const double *plain, const double *inputs,
                           size_t stride, int count) {
    add_reals(t, 1, sums, plain, inputs, stride, count);
}
AVX static void add_to_both(int t, double *sums, const double *plain, const double *inputs,
                            size_t stride, int count) {
    add_reals(t, 2, sums, plain, inputs, stride, count);
}
AVX static void intt_reals(int t, double *x, u64 *out) {
    const tables *q = OF + t;
    MODULUS, v1 = ALL(q->vd[1]), magic = ALL(4503599627370496.0), zero = _mm256_setzero_pd();
    for (int b = 0; b < 8; b++) {
        for (int i = 64 * b; i < 64 * (b + 1); i++) {
            const double *v = q->vd + 1024 + 2 * i;
            FOUR(y, x + 16 * i, 4);
            two_levels_back(y, LOAD(q->vd + 2048 + 4 * i), LOAD(q->vd2[0] + 4 * i),
                            LOAD(q->vd2[1] + 4 * i), p, pinv);
            transpose(y);
            two_levels_back(y, ALL(q->vd[512 + i]), ALL(v[0]), ALL(v[1]), p, pinv);
            KEEP(y, x + 16 * i, 4);
        }
        for (int m = 128; m >= 8; m >>= 2)
            radix4_back(x, q->vd, m, b * m / 8, (b + 1) * m / 8, p, pinv);
    }
    radix4_back(x, q->vd, 2, 0, 2, p, pinv);
    for (int j = 0; j < N / 2; j += 4) {
        D u = LOAD(x + j), v = LOAD(x + j + N / 2);
        D y[2] = {_mm256_add_pd(u, v), product(_mm256_sub_pd(u, v), v1, p, pinv)};
        for (int k = 0; k < 2; k++) {
            D r = nearest(y[k], p, pinv);
            r = _mm256_add_pd(r, _mm256_and_pd(_mm256_cmp_pd(r, zero, _CMP_LT_OQ), p));
            r = _mm256_xor_pd(_mm256_add_pd(r, magic), magic);
            _mm256_storeu_si256((__m256i *)(out + j + k * N / 2), _mm256_castpd_si256(r));
        }
    }
}
#endif

/* ---- both paths ---- */
void of_words(int t, int vector, const u64 *in, cell *out) {
    const tables *q = OF + t;
#ifdef HAVE_VECTOR
    if (vector) {
        ntt_full(t, in, &out->real);
        return;
    }
#endif
    for (int j = 0; j < N; j++) out[j].word = times(in[j], q->ninv, q->ninvs, TRANSFORM[t]);
    ntt_words(&out->word, q, TRANSFORM[t]);
}
void of_integers(int t, int vector, const int32_t *in, cell *out) {
    u64 p = TRANSFORM[t];
#ifdef HAVE_VECTOR
    if (vector) {
        ntt_integers(t, in, &out->real);
        return;
    }
#endif
    for (int j = 0; j < N; j++) out[j].word = (u64)(int64_t)in[j] + (p & (u64)((int64_t)in[j] >> 63));
    ntt_words(&out->word, OF + t, p);
}
void add_products(int t, int vector, int polys, cell *sums, const cell *plain, const cell *inputs,
                  size_t stride, int count) {
#ifdef HAVE_VECTOR
    if (vector) {
        (polys == 1 ? add_to_one : add_to_both)(t, &sums->real, &plain->real, &inputs->real, stride,
                                                count);
        return;
    }
#endif
    add_words(polys, sums, plain, inputs, stride, count);
}
void back(int t, int vector, cell *sums, u64 *out) {
#ifdef HAVE_VECTOR
    if (vector) {
        intt_reals(t, &sums->real, out);
        return;
    }
#endif
    settle_words(sums, OF + t, TRANSFORM[t]);
    memcpy(out, sums, 8 * N);
    intt_words(out, OF + t, TRANSFORM[t]);
}
INLINE int place_of(int vector, int64_t j) { /* of SEAL's cell j */
    return (int)(vector ? (j & ~15) | (j & 3) << 2 | (j >> 2 & 3) : j);
}
/* A polynomial modulo TRANSFORM[0] from its values in slots, and back: slot j is at places[j] of
 * SEAL's order. Returns 2 without memory. */
API int svfl_of_slots(int vector, const u64 *in, const int64_t *places, u64 *out) {
    const tables *q = OF;
    u64 p = TRANSFORM[0];
    cell *room = scratch(16 * N);
    if (!room) return 2;
    memset(room, 0, 16 * N);
    for (int j = 0; j < N; j++) {
        cell *to = room + place_of(vector, places[j]);
        if (vector) to->real = (double)((int64_t)in[j] - (int64_t)(p & -(u64)(in[j] > p / 2)));
        else to->word = in[j];
    }
    back(0, vector, room, out);
    for (int j = 0; j < N; j++) out[j] = times(out[j], q->ninv, q->ninvs, p);
    forget(room, 16 * N);
    free(room);
    return 0;
}
API int svfl_to_slots(int vector, const u64 *in, const int64_t *places, u64 *out) {
    u64 p = TRANSFORM[0];
    cell *room = scratch(16 * N);
    if (!room) return 2;
    for (int j = 0; j < N; j++) room[N + j].word = in[j] << LOG; /* times N, as of_words divides */
    of_words(0, vector, &room[N].word, room);
    for (int j = 0; j < N; j++) {
        cell at = room[place_of(vector, places[j])];
        int64_t centred = vector ? (int64_t)at.real : (int64_t)at.word;
        out[j] = (u64)centred + (p & (u64)(centred >> 63));
    }
    forget(room, 16 * N);
    free(room);
    return 0;
}
/* For tests: a transform in SEAL's order; with `again`, N times the integers, from their transform. */
API void svfl_transform(int t, int vector, const int32_t *in, cell *room, u64 *out, u64 *again) {
    of_integers(t, vector, in, room);
    for (int j = 0; j < N; j++) {
        cell c = room[place_of(vector, j)];
        out[j] = !vector ? c.word : c.real < 0 ? TRANSFORM[t] - (u64)-c.real : (u64)c.real;
    }
    memset(room + N, 0, 8 * N);
    back(t, vector, room, again);
}
API const char *svfl_sources(void) { return SOURCES; }
