/* SEAL's expansion of a seed to residues: Blake2xb, 4096 bytes a counter (randomgen.cpp, rlwe.cpp).
 *
 * Four of the 64 nodes of a counter are hashed at once. Seeds are public: rejections may branch.
 */
#include "native.h"

typedef u64 four __attribute__((vector_size(32)));
static const u64 IV[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                          0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                          0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static const uint8_t SIGMA[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
enum { WORDS = 512 };

/* Turns by whole bytes are one shuffle each, which clang finds by itself. */
#if defined(HAVE_VECTOR) && !defined(__clang__)
typedef uint8_t octets __attribute__((vector_size(32)));
#define AT(n, i) (i) / 8 * 8 + ((i) + (n)) % 8
#define FOUR_AT(n, i) AT(n, i), AT(n, i + 1), AT(n, i + 2), AT(n, i + 3)
#define EIGHT(n, i) FOUR_AT(n, i), FOUR_AT(n, i + 4)
#define SHUFFLED(x, n) \
    (four) __builtin_shuffle((octets)(x), (octets){EIGHT(n, 0), EIGHT(n, 8), EIGHT(n, 16), EIGHT(n, 24)})
#else
#define SHUFFLED SHIFTED
#endif
#define SHIFTED(x, n) ((x) >> 8 * (n) | (x) << (64 - 8 * (n)))
#define TURN(x, n) (shuffles ? SHUFFLED(x, n) : SHIFTED(x, n))
#define MIX(a, b, c, d, x, y) \
    a += b + x, d = TURN(d ^ a, 4), c += d, b = TURN(b ^ c, 3); \
    a += b + y, d = TURN(d ^ a, 2), c += d, b ^= c, b = b >> 63 | (b + b);
INLINE void compress(four *h, const four *m, u64 bytes, int last, int shuffles) {
    four v[16] = {{0}};
    for (int i = 0; i < 8; i++) v[i] = h[i], v[i + 8] += IV[i];
    v[12] ^= bytes, v[14] ^= last ? ~(u64)0 : 0;
    for (int r = 0; r < 12; r++) {
        const uint8_t *s = SIGMA[r % 10];
        for (int i = 0; i < 4; i++) {
            MIX(v[i], v[i + 4], v[i + 8], v[i + 12], m[s[2 * i]], m[s[2 * i + 1]])
        }
        for (int i = 0; i < 4; i++) {
            MIX(v[i], v[(i + 1) % 4 + 4], v[(i + 2) % 4 + 8], v[(i + 3) % 4 + 12], m[s[2 * i + 8]],
                m[s[2 * i + 9]])
        }
    }
    for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}
/* BLAKE2Xb of the counter, keyed by the seed: a root, whose hash every node hashes. */
INLINE void refill(const u64 *seed, u64 counter, u64 *out, int shuffles) {
    four root[8], h[8], m[16];
    for (int i = 0; i < 8; i++) root[i] = (four){0} + IV[i];
    root[0] ^= 0x01014040, root[1] ^= (u64)4096 << 32;
    for (int i = 0; i < 16; i++) m[i] = (four){0} + (i < 8 ? seed[i] : 0);
    compress(root, m, 128, 0, shuffles);
    for (int i = 0; i < 16; i++) m[i] = (four){0} + (i ? 0 : counter);
    compress(root, m, 136, 1, shuffles);
    for (int i = 0; i < 16; i++) m[i] = i < 8 ? root[i] : (four){0};
    for (u64 node = 0; node < 64; node += 4) {
        for (int i = 0; i < 8; i++) h[i] = (four){0} + IV[i];
        h[0] ^= (u64)64 << 32 | 64, h[2] ^= (u64)64 << 8;
        h[1] ^= (four){node, node + 1, node + 2, node + 3} | (u64)4096 << 32;
        compress(h, m, 64, 1, shuffles);
        for (int lane = 0; lane < 4; lane++)
            for (int i = 0; i < 8; i++) out[8 * (node + lane) + i] = h[i][lane];
    }
}
#ifdef HAVE_VECTOR
AVX static void refill_avx2(const u64 *seed, u64 counter, u64 *out) {
    refill(seed, counter, out, 1);
}
#endif
static void refill_any(const u64 *seed, u64 counter, u64 *out) { refill(seed, counter, out, 0); }

/* A polynomial for each prime, [prime][N]. As SEAL does, words from the largest multiple of the
 * prime less one on are replaced by later ones, after all polynomials are filled. */
void expand(const uint8_t *seed_bytes, const u64 *moduli, int primes, int vector, u64 *out) {
    u64 seed[8], more[WORDS], counter = 0;
    int left = 0;
    memcpy(seed, seed_bytes, SEED);
    for (int at = 0; at < primes * N; at += WORDS, counter++) {
#ifdef HAVE_VECTOR
        if (vector) {
            refill_avx2(seed, counter, out + at);
            continue;
        }
#endif
        refill_any(seed, counter, out + at);
    }
    for (int k = 0; k < primes; k++) {
        u64 p = moduli[k], most = ~(u64)0 - ~(u64)0 % p - 1, one = shoup(1, p);
        for (int j = 0; j < N; j++) {
            u64 x = out[k * N + j];
            while (x >= most) {
                if (!left) refill_any(seed, counter++, more), left = WORDS;
                x = more[WORDS - left--];
            }
            out[k * N + j] = below(x - high(x, one) * p, p);
        }
    }
}
API void svfl_expand(const uint8_t *seed, const u64 *moduli, int primes, int vector, u64 *out) {
    expand(seed, moduli, primes, vector, out);
}
