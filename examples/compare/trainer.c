/*
 * A GPT trained by hand: every forward and backward pass is a plain loop, in float32, with nothing but libm. It makes
 * its own weights and batches, takes three AdamW steps and dumps every tensor for `traindoctor compare`. patient.py is
 * the same model in PyTorch.
 *
 *     cc -O1 -std=c99 -Wall -Werror -o trainer trainer.c -lm
 *     ./trainer OUTDIR
 *
 * Sixteen bugs of the kind that hand-written trainers have are planted: -DFAULT_GELU_TANH and so on, one at a time.
 * README.md and faults.json say what each does and which tensor is the first wrong one.
 */
#include <math.h>
#include <stdlib.h>

#include "dump.h"

enum {
    STEPS = 3,
    B = 4,      /* sequences in a batch */
    T = 16,     /* tokens in a sequence */
    V = 64,     /* vocabulary */
    D = 32,     /* width of the residual stream */
    H = 4,      /* heads */
    S = D / H,  /* size of a head */
    F = 4 * D,  /* width inside the MLP */
    LAYERS = 2,
    N = B * T,  /* all tokens of a batch: rows of nearly every matrix here */
    MOST_WEIGHTS = 64
};

static const double LR = 1e-3, BETA1 = 0.9, BETA2 = 0.95, EPS = 1e-8, WEIGHT_DECAY = 0.1;

#ifdef FAULT_NORM_EPS
static const float NORM_EPS = 1e-6f;
#else
static const float NORM_EPS = 1e-5f;
#endif

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char name[64];
    int rows, cols; /* rows is 0 for a vector */
    int size;
    float *value, *gradient, *mean, *square; /* the last two are AdamW's */
    float *update;
} Weight;

typedef struct {
    Weight *weight, *bias; /* (outs, ins) and (outs), as in PyTorch; bias may be NULL */
    int ins, outs;
} Linear;

typedef struct {
    Weight *weight, *bias;
} Norm;

typedef struct {
    Norm attention_norm, mlp_norm;
    Linear qkv, out, up, down;
} Block;

static Weight weights[MOST_WEIGHTS];
static int num_weights;
static Weight *embedding, *positions;
static Block blocks[LAYERS];
static Norm last_norm;
static Linear head;

/* A linear congruential generator (Numerical Recipes) gives the same numbers on every machine. */
static uint32_t random_state = 2026;

static uint32_t random_bits(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8; /* 24 bits: the low ones of such a generator are poor */
}

/* Close to normal, with mean 0 and variance 1: four uniform numbers, of variance 1/12 each. */
static float random_normal(void) {
    float sum = -2.0f;
    for (int i = 0; i < 4; i++) sum += (float)random_bits() / 16777216.0f;
    return sum * 1.7320508f;
}

static float *zeros(int count) {
    float *made = calloc((size_t)count, sizeof *made);
    if (!made) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return made;
}

static Weight *make_weight(const char *module, const char *part, int rows, int cols, float mean, float std) {
    if (num_weights == MOST_WEIGHTS) {
        fprintf(stderr, "more than %d weights\n", MOST_WEIGHTS);
        exit(1);
    }
    Weight *w = &weights[num_weights++];
    snprintf(w->name, sizeof w->name, "%s.%s", module, part);
    w->rows = rows, w->cols = cols;
    w->size = (rows ? rows : 1) * cols;
    w->value = zeros(w->size), w->gradient = zeros(w->size);
    w->mean = zeros(w->size), w->square = zeros(w->size), w->update = zeros(w->size);
    for (int i = 0; i < w->size; i++) w->value[i] = mean + std * random_normal();
    return w;
}

/* Biases are not 0 and the scales of a norm not 1, as they would be at the start: a bug in them could not show. */
static Linear make_linear(const char *module, int ins, int outs, int with_bias) {
    Linear layer = {NULL, NULL, ins, outs};
    layer.weight = make_weight(module, "weight", outs, ins, 0.0f, 0.1f);
    if (with_bias) layer.bias = make_weight(module, "bias", 0, outs, 0.0f, 0.05f);
    return layer;
}

static Norm make_norm(const char *module) {
    Norm norm;
    norm.weight = make_weight(module, "weight", 0, D, 1.0f, 0.1f);
    norm.bias = make_weight(module, "bias", 0, D, 0.0f, 0.05f);
    return norm;
}

/* "blocks.1.mlp.up"; the text stands until the next call. */
static const char *in_block(int block, const char *part) {
    static char name[64];
    snprintf(name, sizeof name, "blocks.%d%s%s", block, *part ? "." : "", part);
    return name;
}

static void make_model(void) {
    embedding = make_weight("embedding", "weight", V, D, 0.0f, 0.1f);
    positions = make_weight("positions", "weight", T, D, 0.0f, 0.05f);
    for (int l = 0; l < LAYERS; l++) {
        Block *block = &blocks[l];
        block->attention_norm = make_norm(in_block(l, "attention_norm"));
        block->qkv = make_linear(in_block(l, "attention.qkv"), D, 3 * D, 1);
        block->out = make_linear(in_block(l, "attention.out"), D, D, 1);
        block->mlp_norm = make_norm(in_block(l, "mlp_norm"));
        block->up = make_linear(in_block(l, "mlp.up"), D, F, 1);
        block->down = make_linear(in_block(l, "mlp.down"), F, D, 1);
    }
    last_norm = make_norm("norm");
    head = make_linear("head", D, V, 0);
}

/* ---- What is dumped ---------------------------------------------------------------------------------------------- */

static Dump dump;
static int step;

/* An activation, or the gradient of one: a row of `cols` numbers for each token. */
static void save(const char *kind, const char *name, const float *values, int cols) {
    const long long shape[] = {B, T, cols};
    dump_float32(&dump, name, kind, step, shape, 3, values, NULL);
}

static void save_tokens(const char *name, const int64_t *tokens) {
    const long long shape[] = {B, T};
    dump_int64(&dump, name, "input", step, shape, 2, tokens, NULL);
}

/* The value, the gradient or the update of a weight. */
static void save_weight(const char *kind, const Weight *w, const float *values) {
    const long long shape[] = {w->rows ? w->rows : w->cols, w->cols};
    dump_float32(&dump, w->name, kind, step, shape, w->rows ? 2 : 1, values, NULL);
}

/* ---- Layers: a backward pass adds to the gradients of the weights and sets that of its input --------------------- */

static void add(float *sum, const float *a, const float *b, int count) {
    for (int i = 0; i < count; i++) sum[i] = a[i] + b[i];
}

static float weight_at(const Linear *layer, int o, int i) {
#ifdef FAULT_OUT_TRANSPOSED
    if (layer->ins == layer->outs) return layer->weight->value[i * layer->outs + o];
#endif
    return layer->weight->value[o * layer->ins + i];
}

static void linear(float *out, const float *in, const Linear *layer) {
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < layer->outs; o++) {
            float sum = layer->bias ? layer->bias->value[o] : 0.0f;
            int ins = layer->ins;
#ifdef FAULT_UP_BIAS
            if (layer->outs == F) sum = 0.0f;
#endif
#ifdef FAULT_DOWN_TILE
            if (layer->ins == F && o >= 24) ins -= 32; /* the last tile of columns stops one tile of rows early */
#endif
            for (int i = 0; i < ins; i++) sum += in[n * layer->ins + i] * weight_at(layer, o, i);
            out[n * layer->outs + o] = sum;
        }
    }
}

static void linear_backward(float *d_in, const float *d_out, const float *in, const Linear *layer) {
    const int ins = layer->ins, outs = layer->outs;
    for (int n = 0; n < N; n++)
        for (int o = 0; o < outs; o++)
            for (int i = 0; i < ins; i++) layer->weight->gradient[o * ins + i] += d_out[n * outs + o] * in[n * ins + i];
    save_weight("gradient", layer->weight, layer->weight->gradient);
    if (layer->bias) {
        int rows = N;
#ifdef FAULT_QKV_BIAS_ROWS
        if (outs == 3 * D) rows = T; /* the first sequence only */
#endif
        for (int n = 0; n < rows; n++)
            for (int o = 0; o < outs; o++) layer->bias->gradient[o] += d_out[n * outs + o];
        save_weight("gradient", layer->bias, layer->bias->gradient);
    }
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < ins; i++) {
            float sum = 0.0f;
            for (int o = 0; o < outs; o++) sum += d_out[n * outs + o] * weight_at(layer, o, i);
            d_in[n * ins + i] = sum;
        }
    }
}

static void moments(const float *x, float *mean, float *inverse_std) {
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < D; i++) sum += x[i];
    *mean = sum / D;
    for (int i = 0; i < D; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *inverse_std = 1.0f / sqrtf(squares / D + NORM_EPS);
}

static void norm_forward(float *out, const float *in, const Norm *norm) {
    for (int n = 0; n < N; n++, in += D, out += D) {
        float mean, inverse_std;
        moments(in, &mean, &inverse_std);
        for (int i = 0; i < D; i++)
            out[i] = (in[i] - mean) * inverse_std * norm->weight->value[i] + norm->bias->value[i];
    }
}

static void norm_backward(float *d_in, const float *d_out, const float *in, const Norm *norm) {
    for (int n = 0; n < N; n++, in += D, d_in += D, d_out += D) {
        float mean, inverse_std, mean_g = 0.0f, mean_gx = 0.0f;
        moments(in, &mean, &inverse_std);
        for (int i = 0; i < D; i++) {
            const float x = (in[i] - mean) * inverse_std, g = d_out[i] * norm->weight->value[i];
            mean_g += g / D;
            mean_gx += g * x / D;
            norm->weight->gradient[i] += d_out[i] * x;
            norm->bias->gradient[i] += d_out[i];
        }
#ifdef FAULT_NORM_BACKWARD
        mean_gx = 0.0f; /* as if the standard deviation did not depend on the input */
#endif
        for (int i = 0; i < D; i++) {
            const float x = (in[i] - mean) * inverse_std, g = d_out[i] * norm->weight->value[i];
            d_in[i] = inverse_std * (g - mean_g - x * mean_gx);
        }
    }
    save_weight("gradient", norm->weight, norm->weight->gradient);
    save_weight("gradient", norm->bias, norm->bias->gradient);
}

static void gelu(float *out, const float *in, int count) {
    for (int i = 0; i < count; i++) {
        const float x = in[i];
#ifdef FAULT_GELU_TANH
        out[i] = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
#else
        out[i] = 0.5f * x * (1.0f + erff(x * 0.70710678f));
#endif
    }
}

static void gelu_backward(float *d_in, const float *d_out, const float *in, int count) {
    for (int i = 0; i < count; i++) {
        const float x = in[i];
#ifdef FAULT_GELU_TANH
        const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
        const float slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
#else
        const float slope = 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
#endif
        d_in[i] = d_out[i] * slope;
    }
}

/* ---- Attention: a row of qkv holds the queries of all heads, then the keys, then the values ---------------------- */

static int last_seen(int t) {
#ifdef FAULT_MASK_NEXT
    return t + 1 < T ? t + 1 : t;
#else
    return t;
#endif
}

static float attention_scale(void) {
#ifdef FAULT_ATTENTION_SCALE
    return 1.0f;
#else
    return 1.0f / sqrtf((float)S);
#endif
}

/* Where number s of head h stands in a row of the mixed values. */
static int merged(int h, int s) {
#ifdef FAULT_HEAD_ORDER
    return s * H + h;
#else
    return h * S + s;
#endif
}

static void attention(float *mixed, float *shares, const float *qkv) {
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int t = 0; t < T; t++) {
                float *share = shares + ((b * H + h) * T + t) * T; /* of each earlier token j in the mix of t */
                const float *q = qkv + (b * T + t) * 3 * D + h * S;
                float most = -INFINITY, sum = 0.0f;
                for (int j = 0; j <= last_seen(t); j++) {
                    const float *k = qkv + (b * T + j) * 3 * D + D + h * S;
                    share[j] = 0.0f;
                    for (int s = 0; s < S; s++) share[j] += q[s] * k[s];
                    share[j] *= attention_scale();
                    if (share[j] > most) most = share[j];
                }
                for (int j = 0; j <= last_seen(t); j++) sum += share[j] = expf(share[j] - most);
                for (int j = 0; j <= last_seen(t); j++) share[j] /= sum;
                for (int s = 0; s < S; s++) {
                    float value = 0.0f;
                    for (int j = 0; j <= last_seen(t); j++)
                        value += share[j] * qkv[(b * T + j) * 3 * D + 2 * D + h * S + s];
                    mixed[(b * T + t) * D + merged(h, s)] = value;
                }
            }
        }
    }
}

static void attention_backward(float *d_qkv, const float *d_mixed, const float *shares, const float *qkv) {
    memset(d_qkv, 0, sizeof(float) * N * 3 * D);
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int t = 0; t < T; t++) {
                const float *share = shares + ((b * H + h) * T + t) * T;
                const int q = (b * T + t) * 3 * D + h * S;
                float d_share[T], mean = 0.0f;
                for (int j = 0; j <= last_seen(t); j++) {
                    const int v = (b * T + j) * 3 * D + 2 * D + h * S;
                    d_share[j] = 0.0f;
                    for (int s = 0; s < S; s++) {
                        const float d = d_mixed[(b * T + t) * D + merged(h, s)];
                        d_share[j] += d * qkv[v + s];
                        d_qkv[v + s] += d * share[j];
                    }
                    mean += d_share[j] * share[j];
                }
                for (int j = 0; j <= last_seen(t); j++) {
                    const int k = (b * T + j) * 3 * D + D + h * S;
                    const float d_score = share[j] * (d_share[j] - mean) * attention_scale();
                    for (int s = 0; s < S; s++) {
                        d_qkv[q + s] += d_score * qkv[k + s];
                        d_qkv[k + s] += d_score * qkv[q + s];
                    }
                }
            }
        }
    }
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* What the forward pass of a block leaves for the backward pass. */
typedef struct {
    float attention_norm[N * D], qkv[N * 3 * D], shares[B * H * T * T], mixed[N * D], out[N * D];
    float middle[N * D]; /* the residual stream between the two branches */
    float mlp_norm[N * D], up[N * F], bent[N * F], down[N * D];
    float output[N * D];
} Activations;

static Activations kept[LAYERS];
static float embedded[N * D], entered[N * D], normed[N * D], logits[N * V];

static int position_of(int n) {
#ifdef FAULT_POSITION_SHIFT
    return (n + 1) % T;
#else
    return n % T;
#endif
}

/* Leaves the activations where backward finds them, and returns the mean cross entropy. */
static float forward(const int64_t *tokens, const int64_t *targets) {
    for (int n = 0; n < N; n++) {
        memcpy(embedded + n * D, embedding->value + tokens[n] * D, sizeof(float) * D);
        add(entered + n * D, embedded + n * D, positions->value + position_of(n) * D, D);
    }
    save("activation", "embedding", embedded, D);
    save("activation", "blocks.0.attention_norm.input", entered, D);

    const float *x = entered;
    for (int l = 0; l < LAYERS; l++) {
        const Block *block = &blocks[l];
        Activations *a = &kept[l];
        norm_forward(a->attention_norm, x, &block->attention_norm);
        save("activation", in_block(l, "attention_norm"), a->attention_norm, D);
        linear(a->qkv, a->attention_norm, &block->qkv);
        save("activation", in_block(l, "attention.qkv"), a->qkv, 3 * D);
        attention(a->mixed, a->shares, a->qkv);
        save("activation", in_block(l, "attention.out.input"), a->mixed, D);
        linear(a->out, a->mixed, &block->out);
        save("activation", in_block(l, "attention.out"), a->out, D);
        save("activation", in_block(l, "attention"), a->out, D);
        add(a->middle, x, a->out, N * D);
        save("activation", in_block(l, "mlp_norm.input"), a->middle, D);
        norm_forward(a->mlp_norm, a->middle, &block->mlp_norm);
        save("activation", in_block(l, "mlp_norm"), a->mlp_norm, D);
        linear(a->up, a->mlp_norm, &block->up);
        save("activation", in_block(l, "mlp.up"), a->up, F);
        gelu(a->bent, a->up, N * F);
        save("activation", in_block(l, "mlp.down.input"), a->bent, F);
        linear(a->down, a->bent, &block->down);
        save("activation", in_block(l, "mlp.down"), a->down, D);
        save("activation", in_block(l, "mlp"), a->down, D);
        add(a->output, a->middle, a->down, N * D);
        save("activation", in_block(l, ""), a->output, D);
        x = a->output;
    }
    norm_forward(normed, x, &last_norm);
    save("activation", "norm", normed, D);
    linear(logits, normed, &head);
    save("activation", "head", logits, V);

    float loss = 0.0f;
    for (int n = 0; n < N; n++) {
        float most = -INFINITY, sum = 0.0f;
        for (int v = 0; v < V; v++) most = fmaxf(most, logits[n * V + v]);
        for (int v = 0; v < V; v++) sum += expf(logits[n * V + v] - most);
        loss += (most + logf(sum) - logits[n * V + targets[n]]) / N;
    }
    dump_float32(&dump, "loss", "loss", step, NULL, 0, &loss, NULL);
    return loss;
}

static void loss_backward(float *d_logits, const int64_t *targets) {
    for (int n = 0; n < N; n++) {
        float most = -INFINITY, sum = 0.0f;
        for (int v = 0; v < V; v++) most = fmaxf(most, logits[n * V + v]);
        for (int v = 0; v < V; v++) sum += expf(logits[n * V + v] - most);
        for (int v = 0; v < V; v++) {
            const float share = expf(logits[n * V + v] - most) / sum;
            d_logits[n * V + v] = share - (v == targets[n] ? 1.0f : 0.0f);
#ifndef FAULT_LOSS_SUM
            d_logits[n * V + v] /= N;
#endif
        }
    }
}

static void backward(const int64_t *tokens, const int64_t *targets) {
    /* d: of the residual stream. wide and narrow: inside a branch. */
    static float d[N * D], wide[N * F], narrow[N * D], d_qkv[N * 3 * D], d_logits[N * V];

    loss_backward(d_logits, targets);
    save("gradient", "head", d_logits, V);
    linear_backward(narrow, d_logits, normed, &head);
    save("gradient", "norm", narrow, D);
    norm_backward(d, narrow, kept[LAYERS - 1].output, &last_norm);

    for (int l = LAYERS - 1; l >= 0; l--) {
        const Block *block = &blocks[l];
        const Activations *a = &kept[l];
        save("gradient", in_block(l, ""), d, D);
        save("gradient", in_block(l, "mlp"), d, D);
        save("gradient", in_block(l, "mlp.down"), d, D);
        linear_backward(wide, d, a->bent, &block->down);
        save("gradient", in_block(l, "mlp.down.input"), wide, F);
        gelu_backward(wide, wide, a->up, N * F);
        save("gradient", in_block(l, "mlp.up"), wide, F);
        linear_backward(narrow, wide, a->mlp_norm, &block->up);
        save("gradient", in_block(l, "mlp_norm"), narrow, D);
        norm_backward(narrow, narrow, a->middle, &block->mlp_norm);
#ifdef FAULT_SKIP_GRADIENT
        memcpy(d, narrow, sizeof d);
#else
        add(d, d, narrow, N * D);
#endif
        save("gradient", in_block(l, "mlp_norm.input"), d, D);
        save("gradient", in_block(l, "attention"), d, D);
        save("gradient", in_block(l, "attention.out"), d, D);
        linear_backward(narrow, d, a->mixed, &block->out);
        save("gradient", in_block(l, "attention.out.input"), narrow, D);
        attention_backward(d_qkv, narrow, a->shares, a->qkv);
        save("gradient", in_block(l, "attention.qkv"), d_qkv, 3 * D);
        linear_backward(narrow, d_qkv, a->attention_norm, &block->qkv);
        save("gradient", in_block(l, "attention_norm"), narrow, D);
        norm_backward(narrow, narrow, l ? kept[l - 1].output : entered, &block->attention_norm);
        add(d, d, narrow, N * D);
    }
    save("gradient", "blocks.0.attention_norm.input", d, D);
    save("gradient", "embedding", d, D);
    for (int n = 0; n < N; n++) {
        float *of_token = embedding->gradient + tokens[n] * D, *of_position = positions->gradient + position_of(n) * D;
        add(of_position, of_position, d + n * D, D);
        add(of_token, of_token, d + n * D, D);
    }
    save_weight("gradient", positions, positions->gradient);
    save_weight("gradient", embedding, embedding->gradient);
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* AdamW as PyTorch's: the decay comes first, and only matrices decay. */
static void adamw(void) {
#ifdef FAULT_NO_BIAS_CORRECTION
    const float rate = (float)LR, correction2 = 1.0f;
#else
    const float rate = (float)(LR / (1.0 - pow(BETA1, step + 1)));
    const float correction2 = (float)sqrt(1.0 - pow(BETA2, step + 1));
#endif
    for (int k = 0; k < num_weights; k++) {
        Weight *w = &weights[k];
        for (int i = 0; i < w->size; i++) {
            const float before = w->value[i], g = w->gradient[i];
            w->mean[i] = (float)BETA1 * w->mean[i] + (float)(1.0 - BETA1) * g;
            w->square[i] = (float)BETA2 * w->square[i] + (float)(1.0 - BETA2) * g * g;
#ifndef FAULT_NO_DECAY
            if (w->rows) w->value[i] *= (float)(1.0 - LR * WEIGHT_DECAY);
#endif
            w->value[i] -= rate * w->mean[i] / (sqrtf(w->square[i]) / correction2 + (float)EPS);
            w->update[i] = w->value[i] - before;
        }
        save_weight("update", w, w->update);
    }
}

/* Each next token is one to eight further on, round the vocabulary: there is something to learn. */
static void next_batch(int64_t *tokens, int64_t *targets) {
    for (int b = 0; b < B; b++) {
        int64_t token = random_bits() % V;
        for (int t = 0; t < T; t++) {
            tokens[b * T + t] = token;
            token = (token + 1 + random_bits() % 8) % V;
            targets[b * T + t] = token;
        }
    }
}

int main(int argc, char **argv) {
    static int64_t tokens[N], targets[N];
    char settings[256];
    if (argc != 2) {
        fprintf(stderr, "usage: %s OUTDIR\n", argv[0]);
        return 2;
    }
    snprintf(settings, sizeof settings,
             "{\"lr\": %g, \"beta1\": %g, \"beta2\": %g, \"eps\": %g, \"weight_decay\": %g, \"heads\": %d, "
             "\"clip\": null}",
             LR, BETA1, BETA2, EPS, WEIGHT_DECAY, H);
    if (dump_open(&dump, argv[1], settings)) return 1;
    make_model();
    for (step = 0; step < STEPS; step++) {
        next_batch(tokens, targets);
        save_tokens("tokens", tokens);
        save_tokens("targets", targets);
        for (int k = 0; k < num_weights; k++) save_weight("weight", &weights[k], weights[k].value);
#ifndef FAULT_STALE_GRADIENT
        for (int k = 0; k < num_weights; k++) memset(weights[k].gradient, 0, sizeof(float) * (size_t)weights[k].size);
#endif
        printf("step %d: loss %.6f\n", step, forward(tokens, targets));
        backward(tokens, targets);
        adamw();
    }
    return dump_close(&dump) ? 1 : 0;
}
