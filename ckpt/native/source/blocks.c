/* Checksums of blocks, and of their concatenation, from one look at the bytes.
 *
 * CRC-32 of A followed by B is crc(A) * x^(8 |B|) + crc(B) modulo the polynomial (Mark Adler,
 * crc32_combine of zlib): all blocks but the last are equally long, so the power is computed once.
 */
#include "ckpt_native.h"

/* IEEE 802.3, bit-reversed: bit 31 is x^0. */
#define POLYNOMIAL 0xEDB88320u
#define ONE 0x80000000u
#define X_TO_THE_8 0x00800000u

/* a * b in GF(2)[x] modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* x^(8 n) modulo the polynomial. */
static uint32_t shift_of(size_t bytes)
{
    uint32_t factor = ONE;
    for (uint32_t square = X_TO_THE_8; bytes != 0; bytes >>= 1) {
        if (bytes & 1)
            factor = multiply(factor, square);
        square = multiply(square, square);
    }
    return factor;
}

uint32_t ckpt_join_blocks(const uint32_t *crcs, size_t length, size_t block)
{
    uint32_t whole = 0, shift = shift_of(block);
    size_t blocks = length / block, rest = length % block;
    for (size_t number = 0; number < blocks; number++)
        whole = multiply(whole, shift) ^ crcs[number];
    return rest == 0 ? whole : multiply(whole, shift_of(rest)) ^ crcs[blocks];
}

uint32_t ckpt_sum_blocks(const struct ckpt_kernels *kernels, const unsigned char *bytes,
                         size_t length, size_t block, uint32_t *crcs)
{
    for (size_t at = 0, number = 0; at < length; at += block, number++)
        crcs[number] = kernels->crc32(0, bytes + at, length - at < block ? length - at : block);
    return ckpt_join_blocks(crcs, length, block);
}
