/* Runs the C library over random shapes beside plain C, in memory that ends where its buffers end.
 *
 * It needs neither Python nor ISA-L, so that it runs under sanitizers and under an emulator of another
 * machine. It prints how many calls agreed; anything else is a fault.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckpt_native.h"

static uint64_t state;

static uint32_t draw(uint32_t bound)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % bound;
}

static uint32_t plain_crc32(uint32_t start, const unsigned char *bytes, uint64_t length)
{
    uint32_t crc = ~start;
    for (uint64_t at = 0; at < length; at++) {
        crc ^= bytes[at];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* Output i is the sum of all inputs and of i: no field is needed to see where bytes come from. */
static void plain_encode(int length, int inputs, int outputs, unsigned char *tables,
                         unsigned char **from, unsigned char **to)
{
    for (int out = 0; out < outputs; out++)
        for (int at = 0; at < length; at++) {
            unsigned char sum = tables[out];
            for (int in = 0; in < inputs; in++)
                sum ^= from[in][at];
            to[out][at] = sum;
        }
}

static const struct ckpt_kernels kernels = {plain_crc32, plain_encode};

static unsigned char *filled(size_t length)
{
    unsigned char *bytes = malloc(length ? length : 1);
    for (size_t at = 0; at < length; at++)
        bytes[at] = (unsigned char)draw(256);
    return bytes;
}

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("%s differs\n", what);
        exit(1);
    }
}

static void one_transform(void)
{
    int inputs = 1 + (int)draw(32), outputs = (int)draw(5);
    size_t length = draw(4) ? draw(9000) : draw(40000);
    unsigned char *from[32], *to[4], tables[4], *wanted[4];
    uint32_t *reads = malloc((size_t)inputs * sizeof *reads);
    uint32_t *writes = malloc(outputs ? (size_t)outputs * sizeof *writes : 1);
    uint32_t *sums = draw(2) ? reads : NULL;

    for (int cell = 0; cell < inputs; cell++)
        from[cell] = filled(length);
    for (int cell = 0; cell < outputs; cell++) {
        to[cell] = filled(length);
        wanted[cell] = filled(length);
        tables[cell] = (unsigned char)cell;
    }
    ckpt_transform(&kernels, length, inputs, outputs, tables, from, to, sums, writes);
    plain_encode((int)length, inputs, outputs, tables, from, wanted);
    for (int cell = 0; cell < inputs; cell++) {
        check(sums == NULL || sums[cell] == plain_crc32(0, from[cell], length), "an input's sum");
        free(from[cell]);
    }
    for (int cell = 0; cell < outputs; cell++) {
        check(memcmp(to[cell], wanted[cell], length) == 0, "an output");
        check(writes[cell] == plain_crc32(0, to[cell], length), "an output's sum");
        free(to[cell]);
        free(wanted[cell]);
    }
    free(reads);
    free(writes);
}

static void one_sum(void)
{
    size_t length = draw(20000), block = 1 + draw(3000), count = (length + block - 1) / block;
    unsigned char *bytes = filled(length);
    uint32_t *crcs = malloc(count ? count * sizeof *crcs : 1);

    check(ckpt_sum_blocks(&kernels, bytes, length, block, crcs) == plain_crc32(0, bytes, length),
          "the whole's sum");
    for (size_t number = 0; number < count; number++) {
        size_t left = length - number * block;
        check(crcs[number] == plain_crc32(0, bytes + number * block, left < block ? left : block),
              "a block's sum");
    }
    free(bytes);
    free(crcs);
}

/* What a guard was given: the bytes one after the other, until it refuses. */
struct given {
    size_t count, refuses_at;
    uint32_t crc;
};

#define CIPHER 0x5a
#define TAIL_BYTES 16

static int take(void *context, unsigned char *out, int *written, const unsigned char *bytes,
                int length)
{
    struct given *given = context;
    check(out == NULL || out == bytes, "the place of what is guarded");
    *written = length;
    for (int at = 0; out != NULL && at < length; at++)
        out[at] ^= CIPHER;
    given->crc = plain_crc32(given->crc, bytes, (uint64_t)length);
    given->count += (size_t)length;
    return given->count < given->refuses_at;
}

/* A cipher whose output goes elsewhere. */
static int mask(void *context, unsigned char *out, int *written, const unsigned char *bytes,
                int length)
{
    struct given *given = context;
    *written = length;
    for (int at = 0; at < length; at++)
        out[at] = bytes[at] ^ CIPHER;
    given->count += (size_t)length;
    return given->count < given->refuses_at;
}

/* The sender writes pieces of any size; some of the bytes came before, with the head. */
static void one_landing(void)
{
    size_t length = 1 + draw(60000), block = 1 + draw(9000), count = (length + block - 1) / block;
    size_t tail_length = draw(2) ? TAIL_BYTES : 0, whole = length + tail_length;
    size_t at = draw(3) ? 0 : draw((uint32_t)whole + 1);
    unsigned char *text = filled(length), *sent = filled(whole), *bytes = filled(length);
    unsigned char *tail = filled(tail_length);
    uint32_t *crcs = malloc(count * sizeof *crcs);
    struct given given = {0, SIZE_MAX, 0};
    struct ckpt_guard guard = {&given, take, (int)draw(2)};
    struct ckpt_landing landing = {bytes, length, block, crcs, at, 0, draw(2) ? &guard : NULL,
                                   tail, tail_length, .wake_max = (int)draw(2) * 5000};
    int ends[2], outcome, cipher = landing.guard != NULL && guard.decrypts ? CIPHER : 0;

    for (size_t each = 0; each < length; each++)
        sent[each] = text[each] ^ (unsigned char)cipher;
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
    memcpy(bytes, sent, at < length ? at : length);
    if (at > length)
        memcpy(tail, sent + length, at - length);
    while ((outcome = ckpt_land(&kernels, ends[1], &landing)) == EAGAIN) {
        size_t piece = 1 + draw(20000);
        ssize_t went = send(ends[0], sent + at, piece < whole - at ? piece : whole - at, 0);
        check(went > 0, "sending");
        at += (size_t)went;
    }
    check(outcome == 0 && landing.filled == whole && landing.summed == length, "the landing");
    check(memcmp(bytes, text, length) == 0, "what landed");
    check(memcmp(tail, sent + length, tail_length) == 0, "its tail");
    check(ckpt_join_blocks(crcs, length, block) == plain_crc32(0, text, length), "its sum");
    if (landing.guard != NULL)
        check(given.count == length && given.crc == plain_crc32(0, text, length),
              "the guard's bytes");

    landing.summed = 0;
    landing.guard = &guard;
    given.refuses_at = 0;
    check(ckpt_land(&kernels, ends[1], &landing) == CKPT_GUARD_FAILED, "a guard that refuses");

    landing.guard = NULL;
    landing.filled = landing.summed = 0;
    close(ends[0]);
    check(ckpt_land(&kernels, ends[1], &landing) == CKPT_CLOSED, "the end");
    close(ends[1]);
    check(ckpt_land(&kernels, -1, &landing) == EBADF, "the error");
    free(text);
    free(sent);
    free(bytes);
    free(tail);
    free(crcs);
}

/* Some of the sockets have a landing, some only bytes; each is written to in pieces, in any order. */
#define SOCKETS 5
static void one_poll(void)
{
    struct ckpt_landing landings[SOCKETS];
    struct ckpt_bulk table[1024] = {{NULL, NULL, NULL}};
    struct ckpt_ready ready[CKPT_READY_MAX];
    int ends[SOCKETS][2], left = 0, epoll = epoll_create1(0);
    struct ckpt_poll poll = {&kernels, table, 1024, epoll, 1000000000, 0};
    unsigned char *text[SOCKETS];
    size_t sent[SOCKETS] = {0}, length = 1 + draw(20000);

    for (int each = 0; each < SOCKETS; each++) {
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[each]) == 0, "a pair of sockets");
        struct epoll_event wanted = {EPOLLIN, {.fd = ends[each][1]}};
        check(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[each][1], &wanted) == 0, "watching");
        text[each] = filled(length);
        landings[each] = (struct ckpt_landing){
            .bytes = filled(length), .length = length, .block = 4096,
            .crcs = malloc((length / 4096 + 1) * sizeof(uint32_t))};
        table[ends[each][1]].landing = &landings[each];
        left++;
    }
    check(ckpt_poll(&poll, 0, ready) == 0, "nothing is ready");
    while (left > 0) {
        int each = (int)draw(SOCKETS);
        size_t piece = 1 + draw(9000), rest = length - sent[each];
        if (rest == 0)
            continue;
        piece = piece < rest ? piece : rest;
        check(send(ends[each][0], text[each] + sent[each], piece, 0) == (ssize_t)piece, "sending");
        sent[each] += piece;
        int count = ckpt_poll(&poll, 0, ready);
        check(count == (piece == rest), "only a whole one is shown");
        if (count == 0)
            continue;
        check(ready[0].descriptor == ends[each][1] && ready[0].events == EPOLLIN, "which it is");
        check(ckpt_land(&kernels, ends[each][1], &landings[each]) == 0, "it is whole");
        check(memcmp(landings[each].bytes, text[each], length) == 0, "what landed");
        table[ends[each][1]].landing = NULL;
        left--;
    }
    check(send(ends[0][0], "x", 1, 0) == 1, "sending");
    check(ckpt_poll(&poll, 1000, ready) == 1, "a socket without a landing is shown");
    check(recv(ends[0][1], text[0], 1, 0) == 1, "and not read");
    landings[1].filled = landings[1].summed = 0;
    table[ends[1][1]].landing = &landings[1];
    close(ends[1][0]);
    check(ckpt_poll(&poll, 1000, ready) == 1 && ready[0].events & EPOLLIN, "an end is shown");
    poll.show_us = 0;
    landings[2].filled = landings[2].summed = 0;
    landings[2].length = length + 1;
    table[ends[2][1]].landing = &landings[2];
    close(ends[1][1]);
    check(send(ends[2][0], "x", 1, 0) == 1, "sending");
    check(ckpt_poll(&poll, 1000, ready) == 1 && landings[2].filled == 1, "one that goes on is shown");
    for (int each = 0; each < SOCKETS; each++) {
        free(text[each]);
        free(landings[each].bytes);
        free(landings[each].crcs);
        if (each == 1)
            continue;
        close(ends[each][0]);
        close(ends[each][1]);
    }
    close(epoll);
    check(ckpt_poll(&poll, 0, ready) == -EBADF, "the error");
}

/* As it is, or encrypted: it leaves as its reader takes pieces of any size, without a word. */
static void one_departure(void)
{
    size_t length = 200000 + draw(60000), slice_length = 1 + draw(9000), at = 0;
    int ends[2], epoll = epoll_create1(0), buffer = 4096, encrypts = (int)draw(2), count;
    unsigned char *text = filled(length), *came = malloc(length), *slice = malloc(slice_length);
    struct given given = {0, SIZE_MAX, 0};
    struct ckpt_guard guard = {&given, mask, 0};
    struct ckpt_sending sending = {text, length, 0, 0};
    struct ckpt_sealing sealing = {text, length, 0, slice, slice_length, 0, 0, &guard, 0};
    struct ckpt_bulk table[1024] = {{NULL, NULL, NULL}};
    struct ckpt_poll poll = {&kernels, table, 1024, epoll, 1000000000, 0};
    struct ckpt_ready ready[CKPT_READY_MAX];

    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
    check(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer) == 0, "a buffer");
    struct epoll_event wanted = {EPOLLOUT, {.fd = ends[0]}};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &wanted) == 0, "watching");
    if (encrypts)
        table[ends[0]].sealing = &sealing;
    else
        table[ends[0]].sending = &sending;
    while ((count = ckpt_poll(&poll, 0, ready)) == 0) {
        size_t piece = 1 + draw(20000);
        ssize_t got = recv(ends[1], came + at, piece < length - at ? piece : length - at, 0);
        check(got > 0, "receiving");
        at += (size_t)got;
    }
    check(count == 1 && ready[0].descriptor == ends[0] && ready[0].events == EPOLLOUT,
          "a whole one is shown");
    check(encrypts ? ckpt_seal(ends[0], &sealing) == 0 : sending.sent == length, "it has left");
    while (at < length) {
        ssize_t got = recv(ends[1], came + at, length - at, 0);
        check(got > 0, "receiving");
        at += (size_t)got;
    }
    for (size_t each = 0; encrypts && each < length; each++)
        came[each] ^= CIPHER;
    check(memcmp(came, text, length) == 0, "what left");
    close(ends[1]);
    table[ends[0]] = (struct ckpt_bulk){NULL, &sending, NULL};
    sending.sent = 0;
    check(ckpt_poll(&poll, 0, ready) == 1, "an end is shown");
    check(ckpt_send(ends[0], &sending) == EPIPE, "the end");
    close(ends[0]);
    close(epoll);
    check(ckpt_send(-1, &sending) == EBADF, "the error");
    free(text);
    free(came);
    free(slice);
}

/* The receiver takes pieces of any size; the guard flips bits, and may refuse. */
static void one_sealing(void)
{
    size_t length = 1 + draw(60000), slice_length = 1 + draw(9000), at = 0;
    unsigned char *text = filled(length), *kept = malloc(length), *came = malloc(length);
    unsigned char *slice = malloc(slice_length);
    struct given given = {0, draw(8) ? SIZE_MAX : 1 + draw((uint32_t)length), 0};
    struct ckpt_guard guard = {&given, mask, 0};
    struct ckpt_sealing sealing = {text, length, 0, slice, slice_length, 0, 0, &guard, 0};
    int ends[2], outcome, buffer = 4096;

    memcpy(kept, text, length);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
    check(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer) == 0, "a buffer");
    while ((outcome = ckpt_seal(ends[0], &sealing)) == EAGAIN) {
        size_t piece = 1 + draw(20000);
        ssize_t count = recv(ends[1], came + at, piece < length - at ? piece : length - at, 0);
        check(count > 0, "receiving");
        at += (size_t)count;
    }
    check(outcome == (given.refuses_at == SIZE_MAX ? 0 : CKPT_GUARD_FAILED), "the sealing");
    check(memcmp(text, kept, length) == 0, "what is the caller's");
    if (outcome == 0) {
        while (at < length) {
            ssize_t count = recv(ends[1], came + at, length - at, 0);
            check(count > 0, "receiving");
            at += (size_t)count;
        }
        for (size_t each = 0; each < length; each++)
            came[each] ^= CIPHER;
        check(memcmp(came, text, length) == 0, "what was sealed");
    }
    sealing = (struct ckpt_sealing){text, length, 0, slice, slice_length, 0, 0, &guard, 0};
    given = (struct given){0, SIZE_MAX, 0};
    close(ends[1]);
    check(ckpt_seal(ends[0], &sealing) == EPIPE, "the end");
    close(ends[0]);
    check(ckpt_seal(-1, &sealing) == EBADF, "the error");
    free(text);
    free(kept);
    free(came);
    free(slice);
}

/* MessagePack as it is written. */
struct text {
    unsigned char *bytes;
    size_t length;
};

static void put(struct text *text, unsigned char byte)
{
    text->bytes[text->length++] = byte;
}

/* In any form that holds it. */
static int64_t put_number(struct text *text, int signs)
{
    int power = (int)draw(4), width = 1 << power, has_sign = signs && draw(2);
    uint64_t value = (uint64_t)draw(UINT32_MAX) << 32 | draw(UINT32_MAX);
    value >>= 64 - 8 * width + (has_sign || width == 8);
    if (value < 0x80 && draw(2)) {
        put(text, (unsigned char)value);
        return (int64_t)value;
    }
    put(text, (unsigned char)((has_sign ? 0xd0 : 0xcc) + power));
    for (int at = width - 1; at >= 0; at--)
        put(text, (unsigned char)(value >> (8 * at)));
    return (int64_t)value;
}

static void put_array(struct text *text, size_t count)
{
    if (count < 16 && draw(4)) {
        put(text, (unsigned char)(0x90 + count));
    } else {
        put(text, 0xdc);
        put(text, (unsigned char)(count >> 8));
        put(text, (unsigned char)count);
    }
}

static void put_text(struct text *text)
{
    size_t length = draw(40);
    if (length < 32 && draw(2)) {
        put(text, (unsigned char)(0xa0 + length));
    } else {
        put(text, 0xd9);
        put(text, (unsigned char)length);
    }
    while (length--)
        put(text, (unsigned char)draw(256));
}

#define ENTRIES 12
#define AXES 5

struct wanted {
    int64_t wholes[ENTRIES * AXES], offsets[ENTRIES * AXES], shapes[ENTRIES * AXES];
    int64_t pieces[CKPT_PIECE_NUMBERS][ENTRIES];
    size_t axes, form_bytes, begins[ENTRIES];
};

static void put_pieces(struct text *text, struct wanted *wanted, size_t entry)
{
    size_t pieces = draw(8) ? draw(2) : 2;
    int64_t none[CKPT_PIECE_NUMBERS] = {0, 0, CKPT_NO_PIECE, -1, -1};
    for (int at = 0; at < CKPT_PIECE_NUMBERS; at++)
        wanted->pieces[at][entry] = none[at];
    put_array(text, pieces);
    for (size_t piece = 0; piece < pieces; piece++) {
        int numbers = draw(2) ? 3 : CKPT_PIECE_NUMBERS;
        put_array(text, (size_t)numbers);
        for (int at = 0; at < numbers; at++) {
            int64_t number = put_number(text, 1);
            if (pieces == 1)
                wanted->pieces[at][entry] = number;
        }
    }
    if (pieces > 1)
        wanted->pieces[2][entry] = CKPT_MANY_PIECES;
}

static void put_entry(struct text *text, struct wanted *wanted, size_t entry)
{
    size_t axes = draw(AXES + 1), begin;
    int64_t *numbers[3] = {wanted->wholes, wanted->offsets, wanted->shapes};
    wanted->begins[entry] = text->length;
    put_array(text, 8);
    begin = text->length;
    for (int each = 0; each < 3; each++)
        put_text(text);
    for (int each = 0; each < 3; each++) {
        put_array(text, axes);
        for (size_t axis = 0; axis < axes; axis++)
            numbers[each][wanted->axes + axis] = put_number(text, 1);
        if (each == 0)
            wanted->form_bytes += text->length - begin;
    }
    wanted->axes += axes;
    put_pieces(text, wanted, entry);
    put(text, 0xc4);
    put(text, draw(2) ? 16 : 0);
    for (int left = text->bytes[text->length - 1]; left > 0; left--)
        put(text, (unsigned char)draw(256));
}

/* Reads bytes in memory that ends with them, into arrays that end with what was counted. */
static int read_exactly(const unsigned char *bytes, size_t length, struct ckpt_table *table)
{
    unsigned char *raw = malloc(length ? length : 1);
    int reads;
    memcpy(raw, bytes, length);
    memset(table, 0, sizeof *table);
    reads = ckpt_read_table(raw, length, table);
    if (reads) {
        size_t entries = table->entries, axes = table->axes, each = sizeof(int64_t);
        table->entries_max = entries;
        table->axes_max = axes;
        table->form_bytes_max = table->form_bytes;
        table->form = malloc(table->form_bytes + 1);
        table->begins = malloc(entries * each + 1);
        table->form_ends = malloc(entries * each + 1);
        table->marks = malloc(entries * each + 1);
        table->axes_each = malloc(entries + 1);
        table->wholes = malloc(axes * each + 1);
        table->offsets = malloc(axes * each + 1);
        table->shapes = malloc(axes * each + 1);
        table->pieces = malloc(CKPT_PIECE_NUMBERS * entries * each + 1);
        table->prints = malloc(16 * entries + 1);
        table->printed = malloc(entries + 1);
        table->kinds = malloc(entries * each + 1);
        table->name_bytes = malloc(entries * each + 1);
        table->plain = malloc(entries + 1);
        check(ckpt_read_table(raw, length, table), "the second look");
        if (axes > 0) {
            table->axes_max = axes - 1;
            check(!ckpt_read_table(raw, length, table), "too little room for axes");
            table->axes_max = axes;
        }
        if (entries > 0) {
            table->form_bytes_max -= 1;
            check(!ckpt_read_table(raw, length, table), "too little room for the form");
            table->form_bytes_max += 1;
        }
        check(ckpt_read_table(raw, length, table), "the third look");
    }
    free(raw);
    return reads;
}

static void let_go(struct ckpt_table *table)
{
    free(table->form);
    free(table->begins);
    free(table->form_ends);
    free(table->marks);
    free(table->axes_each);
    free(table->wholes);
    free(table->offsets);
    free(table->shapes);
    free(table->pieces);
    free(table->prints);
    free(table->printed);
    free(table->kinds);
    free(table->name_bytes);
    free(table->plain);
}

/* Every entry as a tensor of an index: of as many bytes as C says, into no more than it may have. */
static void write_each(const unsigned char *bytes, size_t length, const struct ckpt_table *table)
{
    static const unsigned char rank[1] = {7};
    unsigned char *raw = malloc(length ? length : 1);
    memcpy(raw, bytes, length);
    for (size_t entry = 0; entry < table->entries; entry++) {
        const int64_t *begin = table->begins + entry;
        size_t most = length + 64, written;
        unsigned char *out = malloc(most), *exact;
        written = ckpt_write_tensors(raw, length, begin, 1, rank, 1, out, most);
        check(written || !table->plain[entry], "a plain entry is written");
        if (written) {
            exact = malloc(written);
            check(ckpt_write_tensors(raw, length, begin, 1, rank, 1, exact, written) == written &&
                      !memcmp(exact, out, written),
                  "the same into as much");
            check(!ckpt_write_tensors(raw, length, begin, 1, rank, 1, exact, written - 1),
                  "too little room for a tensor");
            free(exact);
        }
        free(out);
    }
    free(raw);
}

static void one_table(void)
{
    struct text text = {malloc(1 << 16), 0};
    struct wanted wanted = {.axes = 0};
    struct ckpt_table table;
    size_t entries = draw(ENTRIES + 1);
    int64_t rank, world_size;

    put_array(&text, 3);
    rank = put_number(&text, 1);
    world_size = put_number(&text, 1);
    put_array(&text, entries);
    for (size_t entry = 0; entry < entries; entry++)
        put_entry(&text, &wanted, entry);

    check(read_exactly(text.bytes, text.length, &table), "a table");
    check(table.rank == rank && table.world_size == world_size, "whose it is");
    check(table.entries == entries && table.axes == wanted.axes, "what it has");
    check(table.form_bytes == wanted.form_bytes, "its form");
    check(!memcmp(table.wholes, wanted.wholes, wanted.axes * 8), "the tensors");
    check(!memcmp(table.offsets, wanted.offsets, wanted.axes * 8), "the offsets");
    check(!memcmp(table.shapes, wanted.shapes, wanted.axes * 8), "the shapes");
    for (size_t entry = 0; entry < entries; entry++) {
        check(table.begins[entry] == (int64_t)wanted.begins[entry], "where an entry begins");
        for (int at = 0; at < CKPT_PIECE_NUMBERS; at++)
            check(table.pieces[(size_t)at * entries + entry] == wanted.pieces[at][entry],
                  "a piece");
    }
    write_each(text.bytes, text.length, &table);
    let_go(&table);

    for (int damage = 0; damage < 30; damage++) {
        size_t length = draw(3) ? text.length : draw((uint32_t)text.length);
        size_t at = draw((uint32_t)text.length);
        unsigned char was = text.bytes[at];
        text.bytes[at] = (unsigned char)draw(256);
        if (read_exactly(text.bytes, length, &table)) {
            write_each(text.bytes, length, &table);
            let_go(&table);
        }
        text.bytes[at] = was;
    }
    free(text.bytes);
}

static void one_fetch(void)
{
    size_t before = draw(5000), length = 1 + draw(60000), block = 1 + draw(3000);
    size_t count = (length + block - 1) / block, slice_length = block * (1 + draw(6));
    unsigned char *text = filled(length), *came = calloc(1, length), *slice = malloc(slice_length);
    uint32_t *crcs = malloc(count * sizeof *crcs);
    size_t wrong = draw(3) ? count : draw((uint32_t)count), lacks = draw(3) ? 0 : draw((uint32_t)length);
    FILE *file = tmpfile();
    struct ckpt_fetch fetch = {0, (int64_t)before, length, block, crcs, came, slice, slice_length, 0, 0};

    check(file != NULL, "a file");
    fetch.descriptor = fileno(file);
    ckpt_sum_blocks(&kernels, text, length, block, crcs);
    if (wrong < count)
        crcs[wrong] ^= 1;
    check(pwrite(fetch.descriptor, text, length - lacks, (off_t)before) == (ssize_t)(length - lacks), "writing");
    int outcome = ckpt_fetch(&kernels, &fetch);
    check(wrong < count || lacks ? outcome == CKPT_GUARD_FAILED || outcome == CKPT_CLOSED : outcome == 0,
          "the fetch");
    check(outcome != 0 || fetch.fetched == length, "what was fetched");
    check(outcome != CKPT_GUARD_FAILED || wrong * block < fetch.fetched + slice_length, "where it ended");
    check(memcmp(came, text, fetch.fetched) == 0, "what came");
    for (size_t at = fetch.fetched; at < length; at++)
        check(came[at] == 0, "what is not there");
    fetch.fetched = 0;
    ckpt_let_go(&fetch);
    ckpt_let_go(&fetch);
    memset(came, 0, length);
    check(ckpt_fetch(&kernels, &fetch) == ECANCELED && fetch.fetched == 0, "what was let go");
    for (size_t at = 0; at < length; at++)
        check(came[at] == 0, "what came after that");
    fclose(file);
    free(text);
    free(came);
    free(slice);
    free(crcs);
}

int main(int count, char **words)
{
    int calls = count > 1 ? atoi(words[1]) : 100;
    state = count > 2 ? (uint64_t)atoll(words[2]) : 1;
    for (int call = 0; call < calls; call++) {
        one_transform();
        one_sum();
        one_landing();
        one_poll();
        one_departure();
        one_sealing();
        one_table();
        one_fetch();
    }
    printf("%s: %d calls agree\n", ckpt_build(), 8 * calls);
    return 0;
}
