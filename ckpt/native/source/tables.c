/* A rank's table (ckpt/format/table.py) as arrays: what all ranks of a model say alike, and numbers.
 *
 * MessagePack is read here as far as tables of the usual form go. Anything else (a number below 0,
 * bytes that are left over) is no fault: Python decodes such a table, and says what is wrong with it,
 * if anything is.
 */
#include <string.h>

#include "ckpt_native.h"

#define PRINT_BYTES 16
#define ENTRY_FIELDS 8
#define AXES_MAX 64
/* A model's tensors have few kinds; of those that find no place each is one by itself. */
#define KINDS_MAX 512
#define KIND_TRIES 16

struct cursor {
    const unsigned char *at, *end;
};

struct text {
    const unsigned char *bytes;
    size_t length;
};

/* Meaning, dtype and global shape of an entry, as they came, and the first entry that has them. */
struct kind {
    struct text text;
    int64_t first;
};

/* What is known of the entries that were read. */
struct reading {
    struct text name; /* of the last one */
    struct kind kinds[KINDS_MAX];
};

static uint64_t big_endian(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t at = 0; at < count; at++)
        value = value << 8 | bytes[at];
    return value;
}

static int take_bytes(struct cursor *cursor, size_t count, const unsigned char **bytes)
{
    if ((size_t)(cursor->end - cursor->at) < count)
        return 0;
    *bytes = cursor->at;
    cursor->at += count;
    return 1;
}

/* An unsigned number of `count` bytes. */
static int take_plain(struct cursor *cursor, size_t count, uint64_t *value)
{
    const unsigned char *bytes;
    if (!take_bytes(cursor, count, &bytes))
        return 0;
    *value = big_endian(bytes, count);
    return 1;
}

/* A whole number from 0 to the greatest that an int64_t holds. */
static int take_number(struct cursor *cursor, int64_t *number)
{
    const unsigned char *head;
    uint64_t value;
    if (!take_bytes(cursor, 1, &head))
        return 0;
    if (*head < 0x80) {
        *number = *head;
        return 1;
    }
    if (*head < 0xcc || *head > 0xd3)
        return 0;
    size_t width = (size_t)1 << (*head & 3);
    if (!take_plain(cursor, width, &value))
        return 0;
    /* 0xd0 to 0xd3 have a sign. */
    if (value >> 63 || (*head >= 0xd0 && value >> (8 * width - 1)))
        return 0;
    *number = (int64_t)value;
    return 1;
}

/* The length after a head that is `small` and up to `most` for short ones, and `heads[i]` before a
 * length of 1 << i bytes; 0 stands for no such head. */
static int take_length(struct cursor *cursor, unsigned char small, unsigned char most,
                       const unsigned char heads[3], size_t *length)
{
    const unsigned char *head;
    uint64_t value;
    if (!take_bytes(cursor, 1, &head))
        return 0;
    if (most != 0 && *head >= small && *head <= most) {
        *length = *head - small;
        return 1;
    }
    for (int power = 0; power < 3; power++)
        if (heads[power] != 0 && *head == heads[power]) {
            if (!take_plain(cursor, (size_t)1 << power, &value))
                return 0;
            *length = (size_t)value;
            return 1;
        }
    return 0;
}

static int take_array(struct cursor *cursor, size_t *count)
{
    static const unsigned char heads[3] = {0, 0xdc, 0xdd};
    return take_length(cursor, 0x90, 0x9f, heads, count);
}

static int take_text(struct cursor *cursor, struct text *text)
{
    static const unsigned char heads[3] = {0xd9, 0xda, 0xdb};
    return take_length(cursor, 0xa0, 0xbf, heads, &text->length) &&
           take_bytes(cursor, text->length, &text->bytes);
}

static int skip_text(struct cursor *cursor)
{
    struct text text;
    return take_text(cursor, &text);
}

/* `axes` numbers after their head, into `numbers` unless that is NULL. */
static int take_axes(struct cursor *cursor, size_t axes, int64_t *numbers)
{
    size_t count;
    int64_t number;
    if (!take_array(cursor, &count) || count != axes)
        return 0;
    for (size_t axis = 0; axis < axes; axis++) {
        if (!take_number(cursor, &number))
            return 0;
        if (numbers != NULL)
            numbers[axis] = number;
    }
    return 1;
}

/* start, place, length, and of an earlier generation term and counter. */
static int take_piece(struct cursor *cursor, int64_t piece[CKPT_PIECE_NUMBERS])
{
    size_t count;
    if (!take_array(cursor, &count) || (count != 3 && count != CKPT_PIECE_NUMBERS))
        return 0;
    for (size_t at = 0; at < count; at++)
        if (!take_number(cursor, &piece[at]))
            return 0;
    return 1;
}

/* The one piece of an entry, or that it has none or many. */
static int take_pieces(struct cursor *cursor, int64_t piece[CKPT_PIECE_NUMBERS])
{
    size_t pieces;
    int64_t none[CKPT_PIECE_NUMBERS] = {0, 0, CKPT_NO_PIECE, -1, -1}, other[CKPT_PIECE_NUMBERS];
    memcpy(piece, none, sizeof none);
    if (!take_array(cursor, &pieces))
        return 0;
    if (pieces == 1)
        return take_piece(cursor, piece);
    for (size_t at = 0; at < pieces; at++)
        if (!take_piece(cursor, other))
            return 0;
    if (pieces > 1)
        piece[2] = CKPT_MANY_PIECES;
    return 1;
}

static int take_print(struct cursor *cursor, const unsigned char **print, size_t *length)
{
    static const unsigned char heads[3] = {0xc4, 0xc5, 0xc6};
    return take_length(cursor, 0, 0, heads, length) && (*length == 0 || *length == PRINT_BYTES) &&
           take_bytes(cursor, *length, print);
}

/* A number that equal bytes have in common, and others hardly ever. */
static uint64_t mark_of(const unsigned char *bytes, size_t length)
{
    uint64_t mark = length, word;
    for (; length >= sizeof word; bytes += sizeof word, length -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        mark = (mark ^ word) * 0x9e3779b97f4a7c15u;
        mark ^= mark >> 32;
    }
    word = 0;
    memcpy(&word, bytes, length);
    mark = (mark ^ word) * 0x9e3779b97f4a7c15u;
    return mark ^ mark >> 29;
}

/* The first entry of this kind; it is this one where none is known. */
static int64_t kind_of(struct kind kinds[KINDS_MAX], struct text text, int64_t entry)
{
    uint64_t mark = mark_of(text.bytes, text.length);
    for (int try = 0; try < KIND_TRIES; try++) {
        struct kind *kind = &kinds[(mark + (uint64_t)try) % KINDS_MAX];
        if (kind->text.bytes == NULL) {
            kind->text = text;
            kind->first = entry;
            return entry;
        }
        if (kind->text.length == text.length &&
            memcmp(kind->text.bytes, text.bytes, text.length) == 0)
            return kind->first;
    }
    return entry;
}

static int is_ascii(struct text text)
{
    for (size_t at = 0; at < text.length; at++)
        if (text.bytes[at] >= 0x80)
            return 0;
    return 1;
}

/* In the order of their bytes, which is that of Unicode. */
static int is_after(struct text text, struct text before)
{
    size_t shorter = text.length < before.length ? text.length : before.length;
    int order = memcmp(text.bytes, before.bytes, shorter);
    return order > 0 || (order == 0 && text.length > before.length);
}

/* What `plain` of ckpt_table says of an entry whose numbers are written there. */
static int is_plain(const struct ckpt_table *table, size_t from, size_t axes, const int64_t *piece)
{
    for (size_t axis = from; axis < from + axes; axis++)
        if (table->offsets[axis] != 0 || table->shapes[axis] != table->wholes[axis])
            return 0;
    return piece[0] == 0 && piece[2] > 0 && piece[3] < 0;
}

/* How many axes the array at the cursor says, which stays where it is. */
static int see_axes(const struct cursor *cursor, size_t *axes)
{
    struct cursor ahead = *cursor;
    return take_array(&ahead, axes) && *axes <= AXES_MAX;
}

/* One entry; it is added to what the table counts, and written where there is room for it. */
static int take_entry(struct cursor *cursor, const unsigned char *raw, struct reading *reading,
                      struct ckpt_table *table)
{
    int fills = table->form != NULL;
    size_t fields, axes, number = table->entries, from = table->axes;
    int64_t piece[CKPT_PIECE_NUMBERS];
    const unsigned char *entry = cursor->at, *begin, *print;
    size_t length, print_length;
    struct text name, kind;

    if (!take_array(cursor, &fields) || fields != ENTRY_FIELDS)
        return 0;
    begin = cursor->at;
    if (!take_text(cursor, &name))
        return 0;
    kind.bytes = cursor->at;
    if (!skip_text(cursor) || !skip_text(cursor) || !see_axes(cursor, &axes))
        return 0;
    if (fills && (number >= table->entries_max || from + axes > table->axes_max))
        return 0;
    if (!take_axes(cursor, axes, fills ? table->wholes + from : NULL))
        return 0;
    length = (size_t)(cursor->at - begin);
    kind.length = (size_t)(cursor->at - kind.bytes);
    if (!take_axes(cursor, axes, fills ? table->offsets + from : NULL) ||
        !take_axes(cursor, axes, fills ? table->shapes + from : NULL) ||
        !take_pieces(cursor, piece) || !take_print(cursor, &print, &print_length))
        return 0;
    if (fills) {
        if (table->form_bytes + length > table->form_bytes_max)
            return 0;
        memcpy(table->form + table->form_bytes, begin, length);
        table->begins[number] = entry - raw;
        table->form_ends[number] = (int64_t)(table->form_bytes + length);
        table->marks[number] = mark_of(begin, length);
        table->axes_each[number] = (unsigned char)axes;
        for (int at = 0; at < CKPT_PIECE_NUMBERS; at++)
            table->pieces[(size_t)at * table->entries_max + number] = piece[at];
        memcpy(table->prints + PRINT_BYTES * number, print, print_length);
        table->printed[number] = print_length != 0;
        table->kinds[number] = kind_of(reading->kinds, kind, (int64_t)number);
        table->name_bytes[number] = (int64_t)name.length;
        table->plain[number] = is_plain(table, from, axes, piece) && is_ascii(name) &&
                               (number == 0 || is_after(name, reading->name));
        reading->name = name;
    }
    table->entries += 1;
    table->axes += axes;
    table->form_bytes += length;
    return 1;
}

int ckpt_read_table(const unsigned char *raw, size_t length, struct ckpt_table *table)
{
    struct cursor cursor = {raw, raw + length};
    struct reading reading;
    size_t fields, entries;

    memset(&reading, 0, sizeof reading);
    table->entries = table->axes = table->form_bytes = 0;
    if (!take_array(&cursor, &fields) || fields != 3 || !take_number(&cursor, &table->rank) ||
        !take_number(&cursor, &table->world_size) || !take_array(&cursor, &entries))
        return 0;
    for (size_t entry = 0; entry < entries; entry++)
        if (!take_entry(&cursor, raw, &reading, table))
            return 0;
    return cursor.at == cursor.end;
}

struct output {
    unsigned char *at, *end;
};

static int put_bytes(struct output *output, const unsigned char *bytes, size_t length)
{
    if ((size_t)(output->end - output->at) < length)
        return 0;
    memcpy(output->at, bytes, length);
    output->at += length;
    return 1;
}

static int put_byte(struct output *output, unsigned char byte)
{
    return put_bytes(output, &byte, 1);
}

/* The array of axes at the cursor, as it came. */
static int copy_axes(struct cursor *cursor, struct output *output)
{
    const unsigned char *begin = cursor->at;
    size_t axes;
    return see_axes(cursor, &axes) && take_axes(cursor, axes, NULL) &&
           put_bytes(output, begin, (size_t)(cursor->at - begin));
}

/* A plain entry: [name, meaning, dtype, [dims], [[rank, [offset], [dims],
 * [[rank, start, place, length, nil, nil]], false]]] */
static int write_tensor(struct cursor *cursor, const unsigned char *rank, size_t rank_length,
                        struct output *output)
{
    static const unsigned char box[2] = {0x91, 0x95}, location[2] = {0x91, 0x96},
                               end[3] = {0xc0, 0xc0, 0xc2};
    const unsigned char *begin;
    size_t count;
    int64_t number;
    if (!take_array(cursor, &count) || count != ENTRY_FIELDS || !put_byte(output, 0x95))
        return 0;
    begin = cursor->at;
    if (!skip_text(cursor) || !skip_text(cursor) || !skip_text(cursor) ||
        !put_bytes(output, begin, (size_t)(cursor->at - begin)) || !copy_axes(cursor, output))
        return 0;
    if (!put_bytes(output, box, sizeof box) || !put_bytes(output, rank, rank_length) ||
        !copy_axes(cursor, output) || !copy_axes(cursor, output))
        return 0;
    if (!take_array(cursor, &count) || count != 1 || !take_array(cursor, &count) || count != 3)
        return 0;
    begin = cursor->at;
    for (size_t at = 0; at < count; at++)
        if (!take_number(cursor, &number))
            return 0;
    return put_bytes(output, location, sizeof location) && put_bytes(output, rank, rank_length) &&
           put_bytes(output, begin, (size_t)(cursor->at - begin)) &&
           put_bytes(output, end, sizeof end);
}

size_t ckpt_write_tensors(const unsigned char *raw, size_t length, const int64_t *begins,
                          size_t entries, const unsigned char *rank, size_t rank_length,
                          unsigned char *out, size_t out_bytes_max)
{
    struct output output = {out, out + out_bytes_max};
    for (size_t entry = 0; entry < entries; entry++) {
        if (begins[entry] < 0 || (uint64_t)begins[entry] > length)
            return 0;
        struct cursor cursor = {raw + begins[entry], raw + length};
        if (!write_tensor(&cursor, rank, rank_length, &output))
            return 0;
    }
    return (size_t)(output.at - out);
}
