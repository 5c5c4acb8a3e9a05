/*
 * Writes a dump folder for `traindoctor compare` (docs/dump-format.md). One header, C99 or C++, little-endian machines.
 *
 *     Dump dump;
 *     dump_open(&dump, "dump", "{\"lr\": 0.001, \"heads\": 4}");
 *     const long long shape[] = {2, 16, 128};
 *     dump_float32(&dump, "blocks.0.mlp.up", "activation", 0, shape, 3, values, NULL);
 *     dump_float32(&dump, "norm", "activation", 0, shape, 3, normed, "{\"op\": \"LayerNorm\", \"eps\": 1e-05}");
 *     if (dump_close(&dump)) return 1;
 *
 * Every function returns 0, or -1 after an error. The first error goes to stderr, and nothing is written after it, so
 * that it is enough to look at what dump_close returns. What was written stays readable if the program dies.
 */
#ifndef TRAINDOCTOR_DUMP_H
#define TRAINDOCTOR_DUMP_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef _WIN32
#include <direct.h>
#define dump_make_folder(path) _mkdir(path)
#else
#include <sys/stat.h>
#define dump_make_folder(path) mkdir(path, 0777)
#endif

typedef struct {
    FILE *index, *data;
    long long offset; /* bytes in tensors.bin */
    int failed;
} Dump;

static inline int dump_fail(Dump *dump, const char *what, const char *why) {
    if (!dump->failed) fprintf(stderr, "dump: %s: %s\n", what, why);
    dump->failed = 1;
    return -1;
}

/* A text that may stand in a line of JSON as it is. */
static inline int dump_is_plain(const char *text, const char *forbidden) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || strchr(forbidden, *text)) return 0;
    return 1;
}

static inline FILE *dump_file(Dump *dump, const char *folder, const char *name) {
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || length >= (int)sizeof path) {
        dump_fail(dump, folder, "the path is too long");
        return NULL;
    }
    FILE *file = fopen(path, "wb");
    if (!file) dump_fail(dump, path, strerror(errno));
    return file;
}

/* Makes the folder if it is missing. `settings` is a JSON object on one line, or NULL. */
static inline int dump_open(Dump *dump, const char *folder, const char *settings) {
    const uint16_t one = 1;
    memset(dump, 0, sizeof *dump);
    if (!settings) settings = "{}";
    if (*(const unsigned char *)&one != 1)
        return dump_fail(dump, folder, "a dump is little-endian, this machine is not");
    if (!dump_is_plain(settings, "")) return dump_fail(dump, folder, "the settings must be one line");
    if (dump_make_folder(folder) && errno != EEXIST) return dump_fail(dump, folder, strerror(errno));
    if (!(dump->data = dump_file(dump, folder, "tensors.bin"))) return -1;
    if (!(dump->index = dump_file(dump, folder, "index.jsonl"))) return -1;
    if (fprintf(dump->index, "{\"format\": 1, \"settings\": %s}\n", settings) < 0 || fflush(dump->index))
        return dump_fail(dump, "index.jsonl", strerror(errno));
    return 0;
}

/* `values` lie row-major; `dtype` is one of docs/dump-format.md; `about` is a JSON object on one line, or NULL. */
static inline int dump_write(Dump *dump, const char *name, const char *kind, int step, const long long *shape,
                             int dimensions, const char *dtype, size_t size, const void *values,
                             const char *about) {
    size_t count = 1;
    int failed = 0;
    if (dump->failed) return -1;
    if (!dump->index) return dump_fail(dump, name, "the dump is not open");
    if (!dump_is_plain(name, "\"\\") || !dump_is_plain(kind, "\"\\"))
        return dump_fail(dump, name, "quotes, backslashes and control characters are not allowed in a name");
    if (about && !dump_is_plain(about, "")) return dump_fail(dump, name, "'about' must be one line");
    for (int i = 0; i < dimensions; i++) count *= (size_t)shape[i];

    /* The numbers go first: the index never names bytes that are not there yet. */
    if ((count && fwrite(values, size, count, dump->data) != count) || fflush(dump->data))
        return dump_fail(dump, "tensors.bin", strerror(errno));
    failed |= fprintf(dump->index, "{\"name\": \"%s\", \"kind\": \"%s\", \"step\": %d", name, kind, step) < 0;
    failed |= fputs(", \"shape\": [", dump->index) < 0;
    for (int i = 0; i < dimensions; i++) failed |= fprintf(dump->index, i ? ", %lld" : "%lld", shape[i]) < 0;
    failed |= fprintf(dump->index, "], \"dtype\": \"%s\", \"file\": \"tensors.bin\"", dtype) < 0;
    failed |= fprintf(dump->index, ", \"offset\": %lld", dump->offset) < 0;
    if (about) failed |= fprintf(dump->index, ", \"about\": %s", about) < 0;
    failed |= fputs("}\n", dump->index) < 0;
    if (fflush(dump->index) || failed) return dump_fail(dump, "index.jsonl", strerror(errno));
    dump->offset += (long long)(count * size);
    return 0;
}

static inline int dump_float32(Dump *dump, const char *name, const char *kind, int step, const long long *shape,
                               int dimensions, const float *values, const char *about) {
    return dump_write(dump, name, kind, step, shape, dimensions, "float32", sizeof *values, values, about);
}

static inline int dump_int32(Dump *dump, const char *name, const char *kind, int step, const long long *shape,
                             int dimensions, const int32_t *values, const char *about) {
    return dump_write(dump, name, kind, step, shape, dimensions, "int32", sizeof *values, values, about);
}

static inline int dump_int64(Dump *dump, const char *name, const char *kind, int step, const long long *shape,
                             int dimensions, const int64_t *values, const char *about) {
    return dump_write(dump, name, kind, step, shape, dimensions, "int64", sizeof *values, values, about);
}

/* -1 if anything went wrong since dump_open. */
static inline int dump_close(Dump *dump) {
    if (dump->data && fclose(dump->data)) dump_fail(dump, "tensors.bin", strerror(errno));
    if (dump->index && fclose(dump->index)) dump_fail(dump, "index.jsonl", strerror(errno));
    dump->data = dump->index = NULL;
    return dump->failed ? -1 : 0;
}

#endif
